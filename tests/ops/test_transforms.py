"""Checkpoints, values with gradients and directional derivatives, against jax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from tests.checks import assert_same as same
from tests.checks import assert_sharded_same, number_leaves
from tests.checks import uniform as numbers

B, M, H, T = nm.dims("batch=8 model=16 hidden=32 iteration=3")
ARRAYS = {"x": numbers(0, 8, 16), "w": 0.1 * numbers(1, 16, 32), "v": numbers(2, 8, 16)}
SPECS = {"x": nm.spec([B, M]), "w": nm.spec([M, H]), "v": nm.spec([B, M])}
LAYOUTS = ["hidden:b, batch:a", "model:b"]


def layer(x, w):
    return nm.einsum([nm.tanh(nm.einsum([nm.sin(x), w], [B, H])), w], [B, M])


def in_jax(x, w):
    return jnp.tanh(jnp.sin(x) @ w) @ w.T


def checked(function, reference, layout):
    """Compares an unsharded run with jax, and a sharded one with it."""
    program = nm.trace(function, **SPECS)
    _, found = program.evaluate({}, **ARRAYS)
    expected = number_leaves(jax.tree.leaves(reference(*map(jnp.asarray, ARRAYS.values()))))
    same(number_leaves(found), expected, rtol=1e-4, atol=1e-4)
    return assert_sharded_same(program, SPECS, ARRAYS, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("policy", ["full", "dots"])
def test_checkpoint(policy, layout):
    def loss(x, w, v):
        again = nm.checkpoint(layer, policy)
        y = nm.sum(nm.square(again(again(x, w), w)))
        return y, nm.grad(y, [x, w])

    def reference(x, w, v):
        return jax.value_and_grad(lambda x, w: jnp.sum(in_jax(in_jax(x, w), w) ** 2), (0, 1))(x, w)

    checked(loss, reference, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checkpoint_in_a_loop(layout):
    def loss(x, w, v):
        y, _ = nm.scan(lambda c, _: (nm.checkpoint(layer)(c, w), None), x, over=T)
        return nm.grad(nm.sum(nm.square(y)), [x, w])

    def reference(x, w, v):
        def iterations(x, w):
            return jnp.sum(in_jax(in_jax(in_jax(x, w), w), w) ** 2)

        return jax.grad(iterations, (0, 1))(x, w)

    checked(loss, reference, layout)


def test_second_derivative_of_a_checkpoint():
    def loss(x, w, v):
        slope = nm.grad(nm.sum(nm.square(nm.checkpoint(layer)(x, w))), x)
        return nm.grad(nm.sum(slope * v), w)

    def reference(x, w, v):
        def inner(w):
            slope = jax.grad(lambda x: jnp.sum(in_jax(x, w) ** 2))(x)
            return jnp.sum(slope * v)

        return jax.grad(inner)(w)

    checked(loss, reference, "hidden:b")


def test_parameters_made_in_a_checkpoint_learn():
    def loss(x):
        def hidden(x):
            return nm.relu(nm.einsum([x, nm.param("w", [M, H])], [B, H]))

        return nm.grad(nm.sum(nm.checkpoint(hidden)(x)))

    program = nm.trace(loss, x=SPECS["x"])
    w = ARRAYS["w"]
    _, found = program.evaluate({"w": w}, x=ARRAYS["x"])
    expected = ARRAYS["x"].T @ (ARRAYS["x"] @ w > 0).astype("float32")
    np.testing.assert_allclose(found["w"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("policy, products", [("none", 6), ("dots", 6), ("full", 7)])
def test_what_is_computed_again(policy, products):
    """Two products forward and four backward; "full" makes the inner one again, "dots" none."""

    def loss(x, w, v):
        again = layer if policy == "none" else nm.checkpoint(layer, policy)
        return nm.grad(nm.sum(nm.square(again(x, w))), [x, w])

    program = nm.trace(loss, **SPECS)
    assert sum(op.kind == "einsum" for op in program.ops) == products


@pytest.mark.parametrize("layout", LAYOUTS)
def test_jvp(layout):
    def change(x, w, v):
        return nm.jvp(layer, (x, w), (v, nm.sin(w)))

    checked(change, lambda x, w, v: jax.jvp(in_jax, (x, w), (v, jnp.sin(w))), layout)


def test_value_and_grad():
    def both(x, w, v):
        loss = nm.value_and_grad(lambda x, w: (nm.sum(layer(x, w)), x), [1, 0], has_aux=True)
        return loss(x, w)

    def reference(x, w, v):
        loss, (dw, dx) = jax.value_and_grad(lambda w, x: jnp.sum(in_jax(x, w)), (0, 1))(w, x)
        return (loss, x), (dw, dx)

    checked(both, reference, "hidden:b")


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: nm.checkpoint(layer, "some"), "policy='some'"),
        (lambda x: nm.checkpoint(3), "function"),  # pyright: ignore[reportArgumentType]
        (lambda x: nm.value_and_grad(nm.sum, 2)(x), "none of 1 arguments"),
        (lambda x: nm.value_and_grad(nm.sum, 0, has_aux=True)(x), "has_aux"),
        (lambda x: nm.jvp(nm.exp, (x,), ()), "0 tangents do not fit 1 arguments"),
        (lambda x: nm.jvp(nm.exp, x, x), "not tuples"),
    ],
)
def test_errors(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=SPECS["x"])
