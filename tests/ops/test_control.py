import numpy as np
import pytest

import namedmesh as nm
from tests.checks import (
    Case,
    assert_same,
    assert_sharded_same,
    evaluated,
    expected_of,
    function_of,
    uniform,
)

B, M, H = nm.dims("batch=4 model=10 hidden=8")


def chosen(n):
    """A choice between a product with w and something without it, by a number known at run time."""

    def function(x, w, k):
        yes = lambda: nm.tanh(nm.einsum([x, w], [B, H]))
        no = lambda: nm.broadcast(nm.sum(nm.square(x), over=M), [B, H]) * 0.1
        return nm.cond(k > n, yes, no)

    def reference(x, w, k):
        return (
            np.tanh(x @ w) if k > n else np.broadcast_to((x**2).sum(1, keepdims=True) * 0.1, (4, 8))
        )

    return Case(function, reference, ("x", "w", "k"), ("x", "w"))


def halved(x, k):
    """Halves until the largest is small; counts how often."""
    limit = nm.cast(k, "float32")
    return nm.while_loop(
        lambda x, n: nm.max(nm.absolute(x)) > limit * 0.1, lambda x, n: (x * 0.5, n + 1), x, 0
    )


def halved_reference(x, k):
    n = 0
    while np.abs(x).max() > k * 0.1:
        x, n = x * 0.5, n + 1
    return x, np.int32(n)


def structured(x, k):
    yes = lambda x, y: {"a": x * 2.0, "b": (y, nm.sum(x))}
    no = lambda x, y: {
        "a": nm.transpose(nm.transpose(y, [M, B]), [M, B]),
        "b": (x, nm.sum(y) + 1.0),
    }
    made = nm.cond(k > 5, yes, no, x, nm.square(x))
    return made["a"] + made["b"][0] * made["b"][1]


CASES = {
    "yes": chosen(0),
    "no": chosen(9),
    "operands": Case(structured, lambda x, k: x**2 + x * ((x**2).sum() + 1), ("x", "k"), "x"),
    "nested": Case(
        lambda x, k: nm.cond(
            k > 1, lambda: nm.cond(k > 2, lambda: nm.sin(x), lambda: x), lambda: nm.cos(x)
        ),
        lambda x, k: np.sin(x),
        ("x", "k"),
        "x",
    ),
    "of_a_value": Case(
        lambda x: nm.cond(nm.sum(x) > 0, lambda: x * 2.0, lambda: nm.square(x)),
        lambda x: 2 * x if x.sum() > 0 else x * x,
    ),
    "while": Case(
        lambda x, k: halved(x, k)[0], lambda x, k: halved_reference(x, k)[0], ("x", "k"), ()
    ),
    "while_count": Case(
        lambda x, k: halved(x, k)[1], lambda x, k: halved_reference(x, k)[1], ("x", "k"), ()
    ),
    "while_one": Case(
        lambda k: nm.while_loop(lambda n: n < 100, lambda n: n * k + 1, 1),
        lambda k: np.int32(121),
        "k",
        (),
    ),
    "while_captures": Case(
        lambda x, w: nm.while_loop(
            lambda h, n: n < 3,
            lambda h, n: (nm.tanh(nm.einsum([x, w], [B, H]) + h), n + 1),
            nm.zeros([B, H]),
            0,
        )[0],
        lambda x, w: np.tanh(x @ w + np.tanh(x @ w + np.tanh(x @ w))),
        ("x", "w"),
        (),
    ),
}
SPECS = {"x": nm.spec([B, M]), "w": nm.spec([M, H]), "k": nm.spec([], "int32")}
ARRAYS = {"x": uniform(1, 4, 10), "w": uniform(2, 10, 8) / 4, "k": np.int32(3)}


def test_values_and_gradients():
    program = nm.trace(function_of(CASES), **SPECS)
    assert_same(evaluated(program, ARRAYS), expected_of(CASES, ARRAYS), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("layout", ["batch:b", "batch:a, model:b", "batch:a, hidden:b"])
def test_sharded(layout):
    assert_sharded_same(function_of(CASES), SPECS, ARRAYS, layout)


def test_a_branch_that_gives_out_the_shapes_it_takes_in_leaves_those_where_they_are():
    """XLA split the replicated argument like the result, by two AllReduces that nobody planned."""
    E, D, A = nm.dims("e=4 d=1 a=4")

    def step(x, w):
        y = nm.cond(nm.sum(x) > 0.0, lambda: nm.tanh(x) * 2.0, lambda: x * x * 0.1)
        return {"y": nm.sum(y * y), "m": nm.sum(nm.einsum([x, w], [D, A]))}

    specs = {"x": nm.spec([E, D]), "w": nm.spec([D, A, E])}
    arrays = {"x": uniform(3, 4, 1), "w": uniform(4, 1, 4, 4)}
    program = nm.trace(step, **specs)
    compiled = nm.Step(nm.plan(program, nm.Mesh(x=4, y=2), "a:x+y, e:y+x"), strict=True)
    assert_same(compiled(None, **arrays)[1], evaluated(program, arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: nm.cond(x > 0, lambda: x, lambda: x), "bool scalar"),
        (lambda x: nm.cond(nm.sum(x) > 0, lambda: x, lambda: nm.sum(x)), "expected"),
        (lambda x: nm.cond(nm.sum(x) > 0, lambda: (x, x), lambda: x), "1 tensors where 2"),
        (lambda x: nm.while_loop(lambda x: x > 0, lambda x: x, x), "bool scalar"),
        (lambda x: nm.while_loop(lambda x: nm.sum(x) > 0, lambda x: nm.sum(x), x), "expected"),
        (
            lambda x: nm.grad(
                nm.sum(nm.while_loop(lambda x: nm.sum(x) > 0, lambda x: x * 0.5, x)), x
            ),
            "unknown length",
        ),
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=SPECS["x"])


def test_dicts_go_by_their_names_whatever_their_order():
    def function(x, k):
        made = nm.cond(k > 0, lambda: {"a": x, "b": -x}, lambda: {"b": -x, "a": x})
        final, _ = nm.scan(
            lambda carry, _: ({"b": carry["b"], "a": carry["a"]}, None), made, over=H
        )
        last = nm.while_loop(
            lambda c: nm.sum(c["a"]) < 0, lambda c: {"b": c["b"], "a": c["a"] + 100.0}, final
        )
        return last["a"] - last["b"]

    program = nm.trace(function, x=nm.spec([B]), k=nm.spec([], "int32"))
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(
        [program.evaluate({}, x=x, k=k)[1] for k in (0, 1)], [2 * x, 2 * x]
    )
