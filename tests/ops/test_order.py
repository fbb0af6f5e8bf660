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
)

B, S, M, K, L = nm.dims("batch=4 seq=6 model=10 kept=3 long=70")


def cumsum(x, axis, exclusive=False, reverse=False):
    x = np.flip(x, axis) if reverse else x
    made = np.cumsum(x, axis) - (x if exclusive else 0)
    return np.flip(made, axis) if reverse else made


def order(x, axis, descending=False):
    """Equal elements keep their order, in both directions."""
    return np.argsort(-x if descending else x, axis, kind="stable").astype(np.int32)


def arranged(x, axis, descending=False):
    return np.take_along_axis(x, order(x, axis, descending), axis)


CASES = {
    "cumsum": Case(lambda x: nm.cumsum(x, S), lambda x: cumsum(x, 1)),
    "cumsum_exclusive": Case(
        lambda x: nm.cumsum(x, M, exclusive=True), lambda x: cumsum(x, 2, True)
    ),
    "cumsum_reverse": Case(
        lambda x: nm.cumsum(x, S, reverse=True), lambda x: cumsum(x, 1, False, True)
    ),
    "cumsum_both": Case(
        lambda x: nm.cumsum(x, S, exclusive=True, reverse=True), lambda x: cumsum(x, 1, True, True)
    ),
    "long": Case(lambda y: nm.cumsum(y, L), lambda y: cumsum(y, 1), "y"),
    "long_exclusive": Case(
        lambda y: nm.cumsum(y, L, exclusive=True), lambda y: cumsum(y, 1, True), "y"
    ),
    "long_both": Case(
        lambda y: nm.cumsum(y, L, exclusive=True, reverse=True),
        lambda y: cumsum(y, 1, True, True),
        "y",
    ),
    "cumsum_int": Case(
        lambda i: nm.cumsum(i, S, exclusive=True), lambda i: cumsum(i, 1, True), "i", ()
    ),
    "argsort": Case(lambda x: nm.argsort(x, M), lambda x: order(x, 2), wrt=()),
    "argsort_ties": Case(lambda t: nm.argsort(t, S), lambda t: order(t, 1), "t", ()),
    "argsort_ties_down": Case(
        lambda t: nm.argsort(t, S, descending=True), lambda t: order(t, 1, True), "t", ()
    ),
    "argsort_int": Case(lambda i: nm.argsort(i, S), lambda i: order(i, 1), "i", ()),
    "argsort_int_down": Case(
        lambda i: nm.argsort(i, S, descending=True), lambda i: order(i, 1, True), "i", ()
    ),
    "argsort_first": Case(
        lambda t: nm.argsort(t, B, descending=True), lambda t: order(t, 0, True), "t", ()
    ),
    "sort": Case(lambda x: nm.sort(x, S), lambda x: arranged(x, 1)),
    "sort_down": Case(lambda x: nm.sort(x, M, descending=True), lambda x: arranged(x, 2, True)),
    "sort_int": Case(lambda i: nm.sort(i, S), lambda i: np.sort(i, 1), "i", ()),
    "top_k": Case(lambda x: nm.top_k(x, M, K)[0], lambda x: arranged(x, 2, True)[:, :, :3]),
    "top_k_indices": Case(
        lambda x: nm.top_k(x, M, K)[1], lambda x: order(x, 2, True)[:, :, :3], wrt=()
    ),
    "top_k_middle": Case(lambda x: nm.top_k(x, S, K)[0], lambda x: arranged(x, 1, True)[:, :3]),
    "top_k_ties": Case(lambda t: nm.top_k(t, S, K)[1], lambda t: order(t, 1, True)[:, :3], "t", ()),
    "top_k_same_name": Case(
        lambda x: nm.top_k(x, M, M.resized(4))[0], lambda x: arranged(x, 2, True)[:, :, :4]
    ),
    "top_k_all": Case(lambda x: nm.top_k(x, S, S)[0], lambda x: arranged(x, 1, True)),
}
SPECS = {
    "x": nm.spec([B, S, M]),
    "y": nm.spec([B, L]),
    "t": nm.spec([B, S]),
    "i": nm.spec([B, S], "int32"),
}
ARRAYS = {
    "x": distinct(1, 4, 6, 10) / 4,
    "y": distinct(2, 4, 70) / 10,
    "t": np.random.default_rng(3).integers(0, 3, (4, 6)).astype(np.float32),
    "i": np.array(
        [
            [2, -1, 2, 0, -1, 2],
            [0, 0, 0, 0, 0, 0],
            [5, 4, 4, 3, 3, 3],
            [-(2**31), 2**31 - 1, 0, 0, -5, -5],
        ],
        np.int32,
    ),
}


def test_values_and_gradients():
    given = ARRAYS | {"i": ARRAYS["i"].astype(np.int64)}
    expected = expected_of(CASES, given)
    expected["cumsum_int"] = expected["cumsum_int"].astype(np.int32)
    assert_same(
        evaluated(nm.trace(function_of(CASES), **SPECS), ARRAYS), expected, rtol=2e-5, atol=5e-5
    )


@pytest.mark.parametrize("layout", ["batch:b", "seq:a, batch:b", "model:b, seq:a, long:b"])
def test_sharded(layout):
    assert_sharded_same(function_of(CASES), SPECS, ARRAYS, layout)


def test_the_gradient_of_tied_winners_goes_to_the_ones_chosen():
    def chosen(t):
        values, _ = nm.top_k(t, S, K)
        return nm.grad(nm.sum(values), t)

    found = np.asarray(evaluated(nm.trace(chosen, t=SPECS["t"]), {"t": ARRAYS["t"]}))
    expected = np.zeros((4, 6), np.float32)
    np.put_along_axis(expected, order(ARRAYS["t"], 1, True)[:, :3], 1.0, 1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: nm.top_k(x, S, nm.Dimension("kept", 7)), "cannot hold"),
        (lambda x: nm.top_k(x, S, nm.Dimension("model", 2)), "cannot hold"),
        (lambda x: nm.cumsum(x > 0, S), "bool"),
        (lambda x: nm.sort(x, K), "no dimension kept"),
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=SPECS["x"])
