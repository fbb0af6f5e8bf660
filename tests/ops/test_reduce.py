import numpy as np
import pytest

import namedmesh as nm
from tests.checks import (
    Case,
    assert_same,
    assert_sharded_same,
    distinct,
    evaluated,
    expected_of,
    function_of,
    uniform,
)

B, S, M = nm.dims("batch=4 seq=3 model=10")


def softmax(x, axes):
    e = np.exp(x - x.max(axes, keepdims=True))
    return e / e.sum(axes, keepdims=True)


CASES = {
    "sum": Case(lambda x: nm.sum(x, over=M), lambda x: x.sum(2)),
    "sum_two": Case(lambda x: nm.sum(x, over=[M, B]), lambda x: x.sum((0, 2))),
    "sum_all": Case(nm.sum, np.sum),
    "sum_middle": Case(lambda x: nm.sum(x, over=S), lambda x: x.sum(1)),
    "mean": Case(lambda x: nm.mean(x, over=[B, M]), lambda x: x.mean((0, 2))),
    "mean_all": Case(nm.mean, np.mean),
    "var": Case(lambda x: nm.var(x, over=[S, M]), lambda x: x.var((1, 2))),
    "var_sample": Case(lambda x: nm.var(x, B, correction=1), lambda x: x.var(0, ddof=1)),
    "std": Case(nm.std, np.std),
    "max": Case(lambda x: nm.max(x, over=M), lambda x: x.max(2)),
    "max_two": Case(lambda x: nm.max(x, over=[B, S]), lambda x: x.max((0, 1))),
    "min": Case(lambda x: nm.min(x, over=[B, M]), lambda x: x.min((0, 2))),
    "prod": Case(lambda p: nm.prod(p, over=M), lambda p: p.prod(2), "p"),
    "prod_two": Case(lambda p: nm.prod(p, over=[B, S]), lambda p: p.prod((0, 1)), "p"),
    "logsumexp": Case(lambda x: nm.logsumexp(x, over=M), lambda x: np.log(np.exp(x).sum(2))),
    "logsumexp_all": Case(nm.logsumexp, lambda x: np.log(np.exp(x).sum())),
    "softmax": Case(lambda x: nm.softmax(x, over=M), lambda x: softmax(x, (2,))),
    "softmax_two": Case(lambda x: nm.softmax(x, over=[B, M]), lambda x: softmax(x, (0, 2))),
    "log_softmax": Case(lambda x: nm.log_softmax(x, over=M), lambda x: np.log(softmax(x, (2,)))),
    "log_softmax_batch": Case(
        lambda x: nm.log_softmax(x, over=B), lambda x: np.log(softmax(x, (0,)))
    ),
    "any": Case(lambda x: nm.any(x > 1.5, over=M), lambda x: (x > 1.5).any(2), wrt=()),
    "all": Case(lambda x: nm.all(x > -1.9, over=[B, M]), lambda x: (x > -1.9).all((0, 2)), wrt=()),
    "argmax": Case(lambda x: nm.argmax(x, M), lambda x: x.argmax(2).astype(np.int32), wrt=()),
    "argmin": Case(lambda x: nm.argmin(x, B), lambda x: x.argmin(0).astype(np.int32), wrt=()),
    "argmax_ties": Case(lambda i: nm.argmax(i, M), lambda i: i.argmax(2).astype(np.int32), "i", ()),
    "argmin_ties": Case(lambda i: nm.argmin(i, M), lambda i: i.argmin(2).astype(np.int32), "i", ()),
    "sum_where": Case(
        lambda x, i: nm.sum(x, M, where=i > 0), lambda x, i: (x * (i > 0)).sum(2), "xi", "x"
    ),
    "mean_where": Case(
        lambda x: nm.mean(x, [B, M], where=nm.range(M) < 4),
        lambda x: x[:, :, :4].mean((0, 2)),
    ),
    "var_where": Case(
        lambda x: nm.var(x, [S, M], where=nm.range(M) < 4, correction=1),
        lambda x: x[:, :, :4].var((1, 2), ddof=1),
    ),
    "std_where": Case(lambda x: nm.std(x, M, where=nm.range(M) > 6), lambda x: x[:, :, 7:].std(2)),
    "max_where": Case(
        lambda x, i: nm.max(x, [S, M], where=i > 0),
        lambda x, i: np.where(i > 0, x, -np.inf).max((1, 2)),
        "xi",
        "x",
    ),
    "prod_where": Case(
        lambda p, i: nm.prod(p, M, where=i > 0),
        lambda p, i: np.where(i > 0, p, 1).prod(2),
        "pi",
        "p",
    ),
    "int_min_where": Case(
        lambda i: nm.min(i, M, where=nm.range(M) < 3), lambda i: i[:, :, :3].min(2), "i", ()
    ),
    "argmax_where": Case(
        lambda x: nm.argmax(x, M, where=nm.range(M) > 4),
        lambda x: (5 + x[:, :, 5:].argmax(2)).astype(np.int32),
        wrt=(),
    ),
    "all_where": Case(
        lambda x: nm.all(x > 0, M, where=x > -0.5),
        lambda x: np.all((x > 0) | (x <= -0.5), 2),
        wrt=(),
    ),
    "any_where": Case(
        lambda x: nm.any(x > 1, M, where=x < 1.5),
        lambda x: np.any((x > 1) & (x < 1.5), 2),
        wrt=(),
    ),
    "int_sum": Case(lambda i: nm.sum(i, over=M), lambda i: i.sum(2), "i", ()),
    "int_max": Case(lambda i: nm.max(i, over=B), lambda i: i.max(0), "i", ()),
}
SPECS = {"x": nm.spec([B, S, M]), "p": nm.spec([B, S, M]), "i": nm.spec([B, S, M], "int32")}
ARRAYS = {
    "x": distinct(1, 4, 3, 10) / 5,
    "p": uniform(2, 4, 3, 10, low=0.5, high=1.5),
    "i": np.random.default_rng(3).integers(-3, 3, (4, 3, 10)).astype(np.int32),
}


def test_values_and_gradients():
    program = nm.trace(function_of(CASES), **SPECS)
    assert_same(evaluated(program, ARRAYS), expected_of(CASES, ARRAYS), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("layout", ["batch:b, model:a", "batch:a, model:b", "model:a+b"])
def test_sharded(layout):
    assert_sharded_same(function_of(CASES), SPECS, ARRAYS, layout)


def test_where_without_a_number_that_counts():
    """An element that counts is found though it is as small as can be; nothing has no variance."""
    row = np.array([5.0, -np.inf, -np.inf, 5.0], "float32")
    mask = np.array([False, True, True, False])
    four = nm.Dimension("four", 4)
    given = {"x": ([four], row), "m": ([four], mask)}
    assert nm.evaluate(lambda x, m: nm.argmax(x, four, where=m), **given) == 1
    assert nm.evaluate(lambda x, m: nm.argmin(-x, four, where=m), **given) == 1
    least = {"x": ([four], np.array([5, -(2**31), 0, 5], "int32")), "m": ([four], mask)}
    assert nm.evaluate(lambda x, m: nm.argmin(x, four, where=m), **least) == 1
    ones = ([four], np.ones(4, "float32"))
    assert np.isnan(nm.evaluate(lambda x: nm.var(x, where=x < 0.0, correction=1), x=ones))


def extremes(x):
    """Reductions at ties and zeros."""
    made = {
        "max": nm.max(x, over=M),
        "min": nm.min(x, over=M),
        "prod": nm.prod(x, over=M),
        "prod_all": nm.prod(x),
    }
    return made | {f"d{name}": nm.grad(nm.sum(y), x) for name, y in made.items()}


TIES = np.array(
    [
        [1, 3, 3, 0, 0, 3, 2, 1, 1, 2],
        [1, 2, 1, 2, 0, 1, 2, 1, 3, 1],
        [2, 2, 2, 2, 1, 1, 1, 1, 1, 3],
        [-1, -1, -1, -1, -1, -1, -1, -1, -1, -1],
    ],
    np.float32,
)


def test_gradients_at_ties_and_zeros():
    """Elements that tie share the gradient; a product's is right where elements are zero."""
    found = evaluated(nm.trace(extremes, x=nm.spec([B, M])), {"x": TIES})
    others = np.stack([[np.prod(np.delete(row, i)) for i in range(10)] for row in TIES])
    top, low = (
        np.equal(TIES, TIES.max(1, keepdims=True)),
        np.equal(TIES, TIES.min(1, keepdims=True)),
    )
    expected = {
        "max": TIES.max(1),
        "min": TIES.min(1),
        "prod": TIES.prod(1),
        "prod_all": TIES.prod(),
        "dmax": top / top.sum(1, keepdims=True),
        "dmin": low / low.sum(1, keepdims=True),
        "dprod": others,
        "dprod_all": np.zeros((4, 10)),
    }
    assert others.any(), "one row has a single zero, whose gradient is not zero"
    assert_same(found, expected)


@pytest.mark.parametrize("layout", ["model:b", "batch:b, model:a"])
def test_ties_and_zeros_sharded(layout):
    assert_sharded_same(extremes, {"x": nm.spec([B, M])}, {"x": TIES}, layout)


def test_softmax_of_large_and_of_impossible_logits():
    """Neither overflows, and an impossible choice gets probability zero and gradient zero."""

    def masked(x):
        logits = nm.where(nm.range(M) < 4, x + 1000.0, -float("inf"))
        p, q, z = (
            nm.softmax(logits, over=M),
            nm.log_softmax(x * 1000.0, over=M),
            nm.logsumexp(logits, over=M),
        )
        return {
            "p": p,
            "q": q,
            "z": z,
            "dp": nm.grad(nm.sum(p * x), x),
            "dz": nm.grad(nm.sum(z), x),
        }

    x = uniform(4, 4, 10)
    found = evaluated(nm.trace(masked, x=nm.spec([B, M])), {"x": x})
    wide = x.astype(np.float64)
    p = np.concatenate([softmax(wide[:, :4], (1,)), np.zeros((4, 6))], 1)
    top = wide * 1000 - (wide * 1000).max(1, keepdims=True)
    inner = p * (wide - (p * wide).sum(1, keepdims=True)) + p
    expected = {
        "p": p,
        "q": top - np.log(np.exp(top).sum(1, keepdims=True)),
        "z": np.log(np.exp(wide[:, :4]).sum(1)) + 1000,
        "dp": inner,
        "dz": p,
    }
    assert_same(found, expected, rtol=1e-4, atol=1e-4)


def test_logsumexp_of_nothing_possible_is_minus_infinity():
    def nothing(x):
        return nm.logsumexp(nm.where(x > 100.0, x, -float("inf")), over=M)

    assert np.all(
        np.asarray(evaluated(nm.trace(nothing, x=nm.spec([B, M])), {"x": TIES})) == -np.inf
    )


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: nm.sum(x, over=S), "no dimension seq"),
        (lambda x: nm.prod(x > 0, over=M), "number"),
        (lambda x: nm.any(x, over=M), "bool"),
        (lambda x: nm.max(x, over=[M, M]), "twice"),
        (lambda x: nm.sum(x, over=2), "not a Dimension"),  # pyright: ignore
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=nm.spec([B, M]))
