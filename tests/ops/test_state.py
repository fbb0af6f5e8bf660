import numpy as np
import pytest

import namedmesh as nm
from tests.checks import MESH, assert_same, assert_sharded_same, evaluated, uniform

B, M, H = nm.dims("batch=8 model=10 hidden=8")


def train(x):
    """A step that trains a weight with momentum, counts, and keeps a table."""
    with nm.scope("layer"):
        w = nm.param("w", [M, H])
        with nm.scope("norm"):
            g = nm.param("g", [H], nm.constant_init(1.0))
    count = nm.state("count", [], dtype="int32")
    table = nm.state("table", [H, B], init=2.0)
    loss = nm.mean(nm.square(nm.einsum([x, w], [B, H]) * g))
    grads = nm.grad(loss)
    for name, value in nm.parameters().items():
        slot = nm.state(f"momentum/{name}", value.shape, of=value)
        moved = slot * 0.9 + grads[name]
        nm.assign(slot, moved)
        nm.assign(value, value - moved * 0.1)
    nm.assign(count, count + 1)
    nm.assign(table, nm.transpose(table, [B, H]) * 0.5)
    return loss


def numpy_train(state, x):
    w, g = state["layer/w"], state["layer/norm/g"]
    h = x @ w
    y = h * g
    dy = 2 * y / y.size
    grads = {"layer/w": x.T @ (dy * g), "layer/norm/g": (dy * h).sum(0)}
    made = dict(state)
    for name, grad in grads.items():
        made[f"momentum/{name}"] = 0.9 * state[f"momentum/{name}"] + grad
        made[name] = state[name] - 0.1 * made[f"momentum/{name}"]
    made["count"], made["table"] = state["count"] + 1, state["table"] * 0.5
    return made, np.mean(y**2)


X = uniform(1, 8, 10)


def test_two_steps():
    program = nm.trace(train, x=nm.spec([B, M]))
    state = program.initial_state(3)
    wide = {name: np.asarray(value, np.float64) for name, value in state.items()}
    for _ in range(2):
        state, loss = program.evaluate(state, x=X)
        wide, expected = numpy_train(wide, X.astype(np.float64))
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert state["count"] == 2
    assert_same(state, wide | {"count": np.int32(wide["count"])})


@pytest.mark.parametrize(
    "layout, params",
    [("batch:b, hidden:a", None), ("batch:a, model:b", None), ("batch:a+b", "model:b, hidden:a")],
)
def test_sharded(layout, params):
    """Two steps on a mesh from the same seed, state and all."""
    program = nm.trace(train, x=nm.spec([B, M]))
    step = nm.compile(
        program, mesh=MESH, layout=layout, params=params, strict=True, precision="highest"
    )
    state, reference = step.init(3), program.initial_state(3)
    assert_same({name: state[name] for name in reference}, reference)
    for _ in range(2):
        state, loss = step(state, X)
        reference, expected = program.evaluate(reference, x=X)
        np.testing.assert_allclose(np.asarray(loss), expected, rtol=1e-5)
    assert_same({name: state[name] for name in reference}, reference)


def test_names_roles_and_shapes():
    program = nm.trace(train, x=nm.spec([B, M]))
    assert set(program.parameters) == {"layer/w", "layer/norm/g"}
    assert set(program.variables) - set(program.parameters) == {
        "count",
        "table",
        "momentum/layer/w",
        "momentum/layer/norm/g",
    }
    assert program.variables["momentum/layer/w"].at_rest and not program.variables["table"].at_rest


def test_the_same_name_is_the_same_tensor():
    def tied(x):
        a, b = nm.param("w", [M]), nm.param("w", [M])
        assert a is b
        return nm.grad(nm.sum(a * x) + nm.sum(b * b))["w"]

    w = uniform(2, 10)
    found = evaluated(nm.trace(tied, x=nm.spec([B, M])), {"x": X}, {"w": w})
    np.testing.assert_allclose(found, X.sum(0) + 2 * w, rtol=1e-5, atol=1e-5)


def test_parameters_made_inside_a_loop_belong_to_the_program():
    times = nm.Dimension("times", 3)

    def looped(x):
        y = nm.scan(
            lambda h, _: (nm.sin(h * nm.param("w", [M], nm.constant_init(0.5))), None),
            x,
            over=times,
        )[0]
        return {"y": y, **nm.grad(nm.sum(y))}

    program = nm.trace(looped, x=nm.spec([B, M]))
    assert set(program.parameters) == {"w"}
    w = np.full(10, 0.5)

    def loss(w):
        h = X.astype(np.float64)
        for _ in range(3):
            h = np.sin(h * w)
        return h

    slope = [(loss(w + 1e-6 * one) - loss(w - 1e-6 * one)).sum() / 2e-6 for one in np.eye(10)]
    assert_same(evaluated(program, {"x": X}), {"y": loss(w), "w": np.array(slope)})
    assert_sharded_same(looped, {"x": nm.spec([B, M])}, {"x": X}, "batch:b, model:a")


def test_initializers():
    rows, columns = nm.dims("rows=400 columns=300")

    def made():
        return [
            nm.param("default", [rows, columns]),
            nm.param("fan", [rows, columns], nm.fan_in_init(rows, columns, scale=2.0)),
            nm.param("normal", [rows, columns], nm.normal_init(0.3)),
            nm.param("constant", [rows], nm.constant_init(7.0)),
            nm.param("vector", [rows]),
            nm.param("own", [rows], lambda key, shape, dtype: nm.cast(nm.range(shape[0]), dtype)),
            nm.state("flag", [rows], init=True, dtype="bool"),
        ]

    state = {name: np.asarray(value) for name, value in nm.trace(made).initial_state(1).items()}
    for name, deviation in {
        "default": 400**-0.5,
        "fan": (2 / 120_000) ** 0.5,
        "normal": 0.3,
    }.items():
        assert (
            abs(state[name].std() / deviation - 1) < 0.02
            and abs(state[name].mean()) < 0.02 * deviation
        ), name
    assert np.all(state["constant"] == 7) and np.all(state["vector"] == 0) and np.all(state["flag"])
    np.testing.assert_array_equal(state["own"], np.arange(400))
    assert abs(np.corrcoef(state["default"].ravel(), state["normal"].ravel())[0, 1]) < 0.02, (
        "each has a stream of its own"
    )
    assert not np.array_equal(state["normal"], nm.trace(made).initial_state(2)["normal"])


def test_whole_dimensions_of_a_variable_stay_whole():
    def two(x):
        return nm.einsum([x, nm.param("w", [M, H], whole=[H])], [B, H]), nm.param("v", [H]) * 2.0

    program = nm.trace(two, x=nm.spec([B, M]))
    plan = nm.plan(program, MESH, "batch:a, hidden:b")
    assert plan.shardings[program.variables["w"].tensor].axes("hidden") == ()
    assert plan.shardings[program.variables["v"].tensor].axes("hidden") == ("b",)


def test_updates_go_to_their_own_variables_whatever_the_order_of_assignment():
    def swapped(x):
        a, b = nm.state("a", [M]), nm.state("b", [M], init=1.0)
        nm.assign(b, x * 2.0)
        nm.assign(a, b + x)
        return nm.sum(a)

    assert_sharded_same(swapped, {"x": nm.spec([M])}, {"x": uniform(4, 10)}, "model:a")


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: nm.param("w", [M], dtype="int32"), "floating point"),
        (lambda x: [nm.param("w", [M]), nm.param("w", [H])], "exists already"),
        (lambda x: [nm.param("w", [M]), nm.state("w", [M])], "exists already"),
        (lambda x: nm.param("a b", [M]), "a b"),
        (lambda x: nm.assign(x, x), "not a variable"),
        (lambda x: nm.assign(nm.param("w", [M]), nm.zeros([H])), "is float32"),
        (
            lambda x: [nm.assign(nm.param("w", [M]), nm.zeros([M])) for _ in range(2)],
            "assigned twice",
        ),
        (
            lambda x: nm.scan(lambda c, _: (nm.assign(nm.param("w", []), c), None), 0.0, over=H),
            "inside a loop",
        ),
        (lambda x: nm.param("w", [M], whole=[H]), "not one of its dimensions"),
        (lambda x: nm.state("s", [M], of=x), "not a variable"),
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=nm.spec([B, M]))
