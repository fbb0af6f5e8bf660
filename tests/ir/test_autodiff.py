import numpy as np
import pytest
import tensorflow as tf

import namedmesh as nm
from tests.checks import MESH, assert_same, assert_sharded_same, evaluated, uniform

B, M, H = nm.dims("batch=4 model=10 hidden=8")
SPECS = {"x": nm.spec([B, M]), "t": nm.spec([B, H])}
ARRAYS = {"x": uniform(1, 4, 10), "t": uniform(2, 4, 8)}
WEIGHTS = {"inner/w": uniform(3, 10, 8) / 3, "inner/b": uniform(4, 8) / 3, "scale": np.float32(1.5)}


def network(x):
    with nm.scope("inner"):
        w, b = nm.param("w", [M, H]), nm.param("b", [H])
    h = nm.gelu(nm.einsum([x, w], [B, H]) + b)
    again = nm.einsum([h, w], [B, M])
    return h * nm.param("scale", [], nm.constant_init(1.0)) + nm.broadcast(
        nm.mean(nm.square(again), over=M), [B, H]
    )


def step(x, t):
    loss = nm.mean(nm.square(network(x) - t))
    return {"loss": loss, **nm.grad(loss), "x": nm.grad(loss, x)}


def tensorflow_step():
    """The same by TensorFlow and its tape."""
    x, t = (tf.constant(ARRAYS[key]) for key in "xt")
    weights = {name: tf.constant(value) for name, value in WEIGHTS.items()}
    with tf.GradientTape() as tape:
        tape.watch([x, *weights.values()])
        h = tf.nn.gelu(x @ weights["inner/w"] + weights["inner/b"])
        again = h @ tf.transpose(weights["inner/w"])
        y = h * weights["scale"] + tf.reduce_mean(again**2, 1, keepdims=True)
        loss = tf.reduce_mean((y - t) ** 2)
    return {"loss": loss, **tape.gradient(loss, weights | {"x": x})}


def test_against_tensorflow():
    found = evaluated(nm.trace(step, **SPECS), ARRAYS, WEIGHTS)
    assert_same(found, tensorflow_step())


@pytest.mark.parametrize(
    "layout, params",
    [("batch:a, hidden:b", None), ("batch:a, model:b", None), ("batch:a+b", "hidden:a+b")],
)
def test_sharded(layout, params):
    program = nm.trace(step, **SPECS)
    compiled = nm.compile(
        program, mesh=MESH, layout=layout, params=params, strict=True, precision="highest"
    )
    _, found = compiled(compiled.place(WEIGHTS), **ARRAYS)
    assert_same(found, evaluated(program, ARRAYS, WEIGHTS))


def test_structures_cotangents_and_what_is_not_reached():
    def structured(x, t):
        y = nm.sin(x)
        grads = nm.grad(y, {"a": [x, t], "b": y}, cotangent=nm.ones([B, M]) * 2.0)
        return {"x": grads["a"][0], "t": grads["a"][1], "y": grads["b"]}

    found = evaluated(nm.trace(structured, **SPECS), ARRAYS)
    assert_same(
        found, {"x": 2 * np.cos(ARRAYS["x"]), "t": np.zeros((4, 8)), "y": np.full((4, 10), 2.0)}
    )


def test_gradients_add_up_over_all_uses():
    def uses(x, t):
        y = nm.sum(x * x) + nm.sum(x) + nm.sum(nm.transpose(x, [M, B]) * x)
        return {"dx": nm.grad(y, x)}

    assert_same(evaluated(nm.trace(uses, **SPECS), ARRAYS), {"dx": 4 * ARRAYS["x"] + 1})


def test_the_loss_itself_and_a_loss_that_is_an_input():
    def trivial(s):
        return {"self": nm.grad(s, s), "of_square": nm.grad(s * s, s)}

    assert_same(
        evaluated(nm.trace(trivial, s=nm.spec([])), {"s": np.float32(3)}),
        {"self": 1.0, "of_square": 6.0},
    )


def test_second_and_third_derivatives():
    def several(x, t):
        first = nm.grad(nm.sum(nm.sin(x) * nm.square(x)), x)
        second = nm.grad(nm.sum(first), x)
        return {"first": first, "second": second, "third": nm.grad(nm.sum(second), x)}

    x = ARRAYS["x"].astype(np.float64)
    sin, cos = np.sin(x), np.cos(x)
    expected = {
        "first": cos * x**2 + 2 * x * sin,
        "second": -sin * x**2 + 4 * x * cos + 2 * sin,
        "third": -cos * x**2 - 6 * x * sin + 6 * cos,
    }
    assert_same(evaluated(nm.trace(several, **SPECS), ARRAYS), expected)
    assert_sharded_same(several, SPECS, ARRAYS, "batch:a, model:b")


def test_ops_are_forward_backward_and_update_in_iteration():
    def train(x, t):
        w = nm.param("w", [M, H])
        loss = nm.mean(nm.square(nm.einsum([x, w], [B, H]) - t))
        nm.assign(w, w - nm.grad(loss)["w"] * 0.1)
        return loss

    phases = [op.phase for op in nm.trace(train, **SPECS).ops]
    assert phases == sorted(phases, key=["forward", "backward", "update"].index)
    assert set(phases) == {"forward", "backward", "update"}


def test_every_cotangent_lies_where_its_tensor_lies():
    """A gradient holds the axes that its tensor holds, and is called after it."""

    def loss(x):
        w = nm.param("w", [M, H])
        h = nm.einsum([x, w], [B, H])
        return nm.grad(nm.sum(nm.square(h)), {"x": x, "w": w})

    program = nm.trace(loss, x=SPECS["x"])
    plan = nm.plan(program, MESH, "batch:a, hidden:b")
    dx, dw = program.outputs
    assert plan.shardings[dw] == plan.shardings[program.variables["w"].tensor]
    assert plan.shardings[dx] == plan.shardings[program.inputs["x"]]
    assert (dx.label, dw.label) == ("d_x", "d_w")


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: nm.grad(x, x), "no floating point scalar"),
        (lambda x: nm.grad(nm.sum(x)), "nothing to differentiate"),
        (lambda x: nm.grad(nm.sum(x), nm.cast(x, "int32")), "cannot differentiate"),
        (lambda x: nm.grad(x, x, cotangent=nm.ones([M, B])), "not like the loss"),
        (lambda x: nm.grad([x, x], x, cotangent=[x]), "the cotangents are .*, expected"),
        (lambda x: nm.grad([nm.sum(x)], x), "is not a Tensor"),
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=SPECS["x"])


def test_outside_a_program():
    with pytest.raises(nm.NamedMeshError, match="outside a traced function"):
        nm.zeros([B])


def test_a_cotangent_may_be_the_value_itself_or_another_one():
    """A tensor of the forward pass was marked as its own cotangent: endless recursion in a plan."""

    def slopes(x):
        y, z = nm.tanh(x), nm.sin(x)
        own = nm.grad(y, x, cotangent=y)
        return {"own": own, "crossed": nm.grad(y, x, cotangent=z) + nm.grad(z, x, cotangent=y)}

    x = uniform(0, 4, 10)
    step = assert_sharded_same(slopes, {"x": nm.spec([B, M])}, {"x": x}, "batch:b")
    y, z = np.tanh(x), np.sin(x)
    wanted = {"own": y * (1 - y * y), "crossed": z * (1 - y * y) + y * np.cos(x)}
    assert_same(step(None, x=x)[1], wanted)
    weight = nm.trace(
        lambda x: nm.grad(y := nm.einsum([x, nm.param("w", [M, H])], [B, H]), cotangent=y),
        nm.spec([B, M]),
    )
    assert nm.plan(weight, MESH, "batch:b").collectives[0].tensor == "d_w"


def test_several_outputs_have_a_cotangent_each():
    def slopes(x, t):
        y = {"square": x * x, "total": [nm.sum(x, over=M), nm.sin(x)]}
        cotangents = {"total": [nm.sum(t, over=H), x], "square": nm.cos(x)}
        shared = nm.grad([y["square"], y["square"]], x, cotangent=[x, x])
        return {"several": nm.grad(y, x, cotangent=cotangents), "twice": shared}

    x, t = ARRAYS["x"], ARRAYS["t"]
    step = assert_sharded_same(slopes, SPECS, ARRAYS, "batch:b, model:a")
    wanted = 2 * x * np.cos(x) + t.sum(1)[:, None] + x * np.cos(x)
    assert_same(step(None, x=x, t=t)[1], {"several": wanted, "twice": 4 * x * x})
