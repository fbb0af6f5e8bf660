"""Reversible layers against the same ones with stored activations."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.signature.nest import flatten
from tests.checks import uniform

B, M, H, L = nm.dims("batch=8 model=6 hidden=8 layer=3")


def attend(y, shared):
    w, v = nm.param("w", [M, H]), nm.param("v", [H, M])
    h = nm.tanh(nm.einsum([y * shared, w], [B, H]))
    return nm.einsum([h, v], [B, M]) * (1.0 + nm.param("s", [M]))


def dense(y, shared):
    with nm.scope("dense"):
        return nm.sin(attend(y, shared))


def stored(functions, x, y, over):
    def layer(carry, _):
        a, b = carry
        for function in functions:
            a, b = b, a + function(b)
        return (a, b), None

    return nm.scan(layer, (x, y), over=over, stack=True)[0]


def make_step(layers):
    def step(x):
        shared = nm.param("shared", [M], nm.constant_init(0.5))
        functions = [lambda y: attend(y, shared), lambda y: dense(y, shared)]
        a, b = layers(functions, x, x * 2.0, over=L)
        loss = nm.mean(nm.square(a) + nm.square(b) * b)
        return loss, dict(nm.grad(loss)), nm.grad(loss, x)

    return step


REVERSIBLE, STORED = make_step(nm.reversible), make_step(stored)
X = uniform(0, 8, 6)


@pytest.mark.parametrize(
    "layout, params", [("batch:a", None), ("batch:a, hidden:b", None), ("batch:a+b", "model:b")]
)
def test_gradients_are_those_of_stored_activations(layout, params):
    step = nm.compile(
        REVERSIBLE, x=nm.spec([B, M]), mesh=nm.Mesh(a=2, b=2), layout=layout, params=params,
        strict=True,
    )  # fmt: skip
    state = step.init(seed=1)
    weights = {name: np.asarray(value) for name, value in state.items()}
    expected = nm.trace(STORED, x=nm.spec([B, M])).evaluate(weights, x=X)[1]
    for one, other in zip(flatten(step(state, X)[1]), flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_nothing_is_stored():
    kept = []
    for function in (REVERSIBLE, STORED):
        program = nm.trace(function, x=nm.spec([B, M]))
        kept.append(nm.plan(program, nm.Mesh(a=4), "batch:a").activation_bytes)
    assert kept[0] == 0 and kept[1] >= 2 * 2 * 6 * 4 * L.size


def test_halves_that_differ_are_explained():
    wrong = lambda x: nm.reversible([nm.tanh], x, nm.sum(x, over=B), over=L)
    with pytest.raises(nm.NamedMeshError, match=r"the first half: x is .* expected float32"):
        nm.trace(wrong, x=nm.spec([B, M]))
    with pytest.raises(nm.NamedMeshError, match="a function's result"):
        nm.trace(lambda x: nm.reversible([nm.sum], x, x, over=L), x=nm.spec([B, M]))


def test_numbers_alone():
    found = nm.evaluate(
        lambda x: nm.reversible([lambda y: y * 2.0, nm.tanh], x, x, over=L), x=([M], X[0])
    )
    a = b = X[0]
    for _ in range(3):
        a, b = b, a + b * 2
        a, b = b, a + np.tanh(b)
    np.testing.assert_allclose(found, (a, b), rtol=1e-5)
