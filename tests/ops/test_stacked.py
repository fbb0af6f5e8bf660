"""Variables made in a loop body with stack=True: a slice per iteration, as if stacked by hand."""

import numpy as np
import pytest

import namedmesh as nm

B, M, H, L, K = nm.dims("batch=8 model=4 hidden=8 layer=3 inner=2")


def block(h):
    w = nm.param("w", [M, H], nm.normal_init(0.5))
    v = nm.param("v", [H, M], nm.normal_init(0.5))
    return h + nm.einsum([nm.tanh(nm.einsum([h, w], [B, H])), v], [B, M])


def stacked(x):
    y, _ = nm.scan(lambda h, _: (block(h), None), x, over=L, stack=True, remat="full")
    loss = nm.mean(y * y)
    return {"loss": loss, **nm.grad(loss)}


def by_hand(x):
    w = nm.param("w", [L, M, H], nm.normal_init(0.5))
    v = nm.param("v", [L, H, M], nm.normal_init(0.5))
    layer = lambda h, ws: (
        h + nm.einsum([nm.tanh(nm.einsum([h, ws[0]], [B, H])), ws[1]], [B, M]),
        None,
    )
    y, _ = nm.scan(layer, x, (w, v), over=L)
    loss = nm.mean(y * y)
    return {"loss": loss, **nm.grad(loss)}


def test_a_stack_is_what_one_would_write_by_hand():
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    one, other = (nm.trace(function, nm.spec([B, M])) for function in (stacked, by_hand))
    assert {name: str(v.shape) for name, v in one.variables.items()} == {
        "w": "[layer=3, model=4, hidden=8]",
        "v": "[layer=3, hidden=8, model=4]",
    }
    state = one.initial_state(0)
    for name, value in other.initial_state(0).items():
        np.testing.assert_array_equal(state[name], value)
    wanted = other.evaluate(state, x=x)[1]
    for name, value in one.evaluate(state, x=x)[1].items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("params", [None, "model:data"])
def test_a_stack_runs_sharded(params):
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    step = nm.compile(
        stacked,
        nm.spec([B, M]),
        mesh=nm.Mesh(data=4, model=2),
        layout="batch:data, hidden:model",
        params=params,
    )
    state = step.program.initial_state(0)
    wanted = step.program.evaluate(state, x=x)[1]
    _, got = step(step.place({name: np.asarray(value) for name, value in state.items()}), x)
    assert step.audit.exact
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-6)


def test_stacks_nest_and_without_stack_a_variable_is_shared():
    def nested(x):
        def outer(h, _):
            h, _ = nm.scan(
                lambda g, _: (g * nm.param("gain", [M]) + 1.0, None), h, over=K, stack=True
            )
            return h * nm.param("scale", [M]), None

        h, _ = nm.scan(outer, x, over=L, stack=True)
        h, _ = nm.scan(lambda g, _: (g + nm.param("shared", [M]), None), h, over=K)
        return h

    program = nm.trace(nested, nm.spec([B, M]))
    assert {name: v.shape.names for name, v in program.variables.items()} == {
        "gain": ("layer", "inner", "model"),
        "scale": ("layer", "model"),
        "shared": ("model",),
    }
    rng = np.random.default_rng(1)
    state = {
        name: rng.normal(size=v.shape.sizes).astype(np.float32)
        for name, v in program.variables.items()
    }
    x = rng.normal(size=(8, 4)).astype(np.float32)
    h = x
    for layer in range(3):
        for inner in range(2):
            h = h * state["gain"][layer, inner] + 1.0
        h = h * state["scale"][layer]
    h = h + 2 * state["shared"]
    np.testing.assert_allclose(program.evaluate(state, x=x)[1], h, rtol=1e-5, atol=1e-5)
