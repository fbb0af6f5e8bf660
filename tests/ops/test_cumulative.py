"""Running products and running results of any associative function, against loops."""

import itertools

import numpy as np
import pytest

import namedmesh as nm
from tests.checks import Case, assert_same, assert_sharded_same, evaluated, expected_of, function_of
from tests.checks import uniform as numbers

B, S, L, T = nm.dims("batch=4 seq=11 long=64 one=1")
ARRAYS = {
    "x": numbers(0, 4, 11),
    "a": numbers(1, 4, 11, low=0.5, high=1.2),
    "zero": np.where(np.arange(11) % 4 == 2, 0.0, numbers(2, 4, 11)).astype("float32"),
    "long": numbers(3, 64, low=0.8, high=1.2),
    "i": np.random.default_rng(4).integers(-3, 4, (4, 11)).astype("int32"),
}
SPECS = {
    **{name: nm.spec([B, S]) for name in ("x", "a", "zero")},
    "long": nm.spec([L]),
    "i": nm.spec([B, S], "int32"),
}


def products(x, exclusive, reverse):
    """By multiplying what lies before each element."""
    x = x[..., ::-1] if reverse else x
    ends = [x[..., : i + (not exclusive)].prod(-1) for i in range(x.shape[-1])]
    y = np.stack(ends, -1)
    return y[..., ::-1] if reverse else y


def recurrence(a, b, reverse=False):
    """h = a h + b, one after the other."""
    order = range(a.shape[1])[::-1] if reverse else range(a.shape[1])
    h, states = np.zeros(len(a)), np.zeros(a.shape)
    for i in order:
        h = a[:, i] * h + b[:, i]
        states[:, i] = h
    return states


def follow(first, second):
    (a, b), (c, d) = first, second
    return a * c, b * c + d


CASES = {
    f"cumprod {name} {exclusive} {reverse}": Case(
        lambda x, e=exclusive, r=reverse: nm.cumprod(x, S, e, r),
        lambda x, e=exclusive, r=reverse: products(x, e, r),
        (name,),
    )
    for name, exclusive, reverse in itertools.product(["x", "zero"], [False, True], [False, True])
} | {
    "cumprod long": Case(
        lambda x: nm.cumprod(x, L), lambda x: products(x, False, False), ("long",)
    ),
    "cumprod whole": Case(
        lambda i: nm.cumprod(i, S), lambda i: np.cumprod(i.astype(int), 1), ("i",), ()
    ),
    "recurrence": Case(
        lambda a, b: nm.associative_scan(follow, (a, b), S)[1], recurrence, ("a", "x")
    ),
    "recurrence backwards": Case(
        lambda a, b: nm.associative_scan(follow, (a, b), S, reverse=True)[1],
        lambda a, b: recurrence(a, b, True),
        ("a", "x"),
    ),
    "largest": Case(
        lambda x: nm.associative_scan(nm.maximum, x, L),
        lambda x: np.maximum.accumulate(x),
        ("long",),
    ),
    "any": Case(
        lambda x: nm.cast(nm.associative_scan(nm.logical_or, x > 1.2, S), "int32"),
        lambda x: np.logical_or.accumulate(x > 1.2, 1).astype(int),
        ("x",),
        (),
    ),
}


def test_against_loops():
    found = evaluated(nm.trace(function_of(CASES), **SPECS), ARRAYS)
    assert_same(found, expected_of(CASES, ARRAYS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["seq:a, long:b", "batch:b, long:a"])
def test_sharded(layout):
    assert_sharded_same(function_of(CASES), SPECS, ARRAYS, layout)


def test_products_of_shards_are_gathered():
    """Each device sends one number a row, whatever the length of its shard."""
    program = nm.trace(lambda x: nm.cumprod(x, L), x=nm.spec([L]))
    plan = nm.plan(program, nm.Mesh(a=4), "long:a")
    assert [(one.kind, one.elements) for one in plan.collectives] == [("AllGather", 4)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 13])
def test_every_size(size):
    D = nm.Dimension("seq", size)
    x = numbers(size, size)
    found = nm.evaluate(lambda x: nm.associative_scan(lambda a, b: a + b, x, D), x=([D], x))
    np.testing.assert_allclose(found, np.cumsum(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: nm.associative_scan(nm.add, x, L), "no dimension long"),
        (lambda x: nm.associative_scan(lambda a, b: (a, b), x, S), "the function returned 2"),
        (lambda x: nm.associative_scan(lambda a, b: nm.sum(a, B), x, S), "others than"),
        (lambda x: nm.associative_scan(nm.add, (), S), "nothing to scan"),
        (lambda x: nm.cumprod(x > 0, S), "number"),
    ],
)
def test_errors(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=nm.spec([B, S]))
