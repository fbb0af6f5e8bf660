"""Windows, rolls and joins along a split dimension: neighbours' rows instead of everybody's."""

from types import SimpleNamespace

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.dims.hop import Hop
from namedmesh.ops.halo import Stretch, find_slabs
from tests.checks import assert_same, uniform

B = nm.Dimension("batch", 4)
MESH = nm.Mesh(a=4)
OPS = {
    "shift": (lambda x, S: nm.shift(x, S, 1), lambda x: np.pad(x, [(1, 0), (0, 0)])[:-1]),
    "shift_back": (
        lambda x, S: nm.shift(x, S, -2, value=7),
        lambda x: np.pad(x, [(0, 2), (0, 0)], constant_values=7)[2:],
    ),
    "shift_far": (lambda x, S: nm.shift(x, S, 6), lambda x: np.pad(x, [(6, 0), (0, 0)])[:-6]),
    "roll": (lambda x, S: nm.roll(x, S, 1), lambda x: np.roll(x, 1, 0)),
    "roll_back": (lambda x, S: nm.roll(x, S, -3), lambda x: np.roll(x, -3, 0)),
    "roll_far": (lambda x, S: nm.roll(x, S, 7), lambda x: np.roll(x, 7, 0)),
    "reverse": (lambda x, S: nm.reverse(x, S), lambda x: x[::-1]),
    "slice": (lambda x, S: nm.slice(x, S, 1, S.size - 2), lambda x: x[1:-1]),
    "slice_strided": (lambda x, S: nm.slice(x, S, 1, S.size // 2 - 1, 2), lambda x: x[1:-2:2]),
    "pad": (
        lambda x, S: nm.pad(x, S, 2, 3, value=5),
        lambda x: np.pad(x, [(2, 3), (0, 0)], constant_values=5),
    ),
    "concat": (
        lambda x, S: nm.concat([x, nm.slice(x, S, 1, S.size - 2), x * 2.0], "seq"),
        lambda x: np.concatenate([x, x[1:-1], x * 2]),
    ),
}


def with_gradients(function, S):
    """The result, and two derivatives of its square."""

    def all_of(x):
        y = function(x, S)
        first = nm.grad(nm.sum(y * y * y), x)
        return {"y": y, "dx": first, "ddx": nm.grad(nm.sum(first * first), x)}

    return all_of


@pytest.mark.parametrize("size", [16, 14, 9])
@pytest.mark.parametrize("name", OPS)
def test_equal_to_numpy_split_evenly_or_not(name, size):
    function, reference = OPS[name]
    S = nm.Dimension("seq", size)
    x = uniform(3, size, 4)
    step = nm.compile(
        with_gradients(function, S), nm.spec([S, B]), mesh=MESH, layout="seq:a", strict=True
    )
    _, found = step(step.init(0), x=x)
    y = reference(x)
    # The derivative by each row is that of all results that are this row, times a factor.
    rows = reference(np.repeat(np.arange(size)[:, None], 4, 1).astype(np.float64))[:, 0]
    factors = reference(np.ones((size, 4)))[:, 0]
    zero = reference(np.zeros((size, 4)))[:, 0]
    owners = np.where(factors != zero, rows / np.where(factors == 0, 1, factors), -1)
    scale = factors - zero
    dx, ddx = np.zeros_like(x), np.zeros_like(x)
    for row, (owner, factor) in enumerate(zip(owners, scale, strict=True)):
        if owner >= 0:
            dx[round(owner)] += factor * 3 * y[row] ** 2
            ddx[round(owner)] += factor**2 * 6 * y[row]
    assert_same(found, {"y": y, "dx": dx, "ddx": 2 * dx * ddx}, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["shift", "roll", "reverse", "pad"])
def test_no_more_is_sent_than_neighbours_need(name):
    S = nm.Dimension("seq", 16)
    plan = nm.plan(nm.trace(lambda x: OPS[name][0](x, S), nm.spec([S, B])), MESH, "seq:a")
    rows = {"shift": [1], "roll": [1], "reverse": [4], "pad": [4]}[name]
    moves = [one for one in plan.collectives if one.hop is not None]
    assert [one.elements for one in moves] == [count * B.size for count in rows]
    assert {one.kind for one in moves} == {"CollectivePermute"}


def test_what_is_as_dear_as_gathering_is_gathered():
    S = nm.Dimension("seq", 16)
    program = nm.trace(lambda x: nm.reverse(x, S), nm.spec([S, B]))
    assert nm.plan(program, nm.Mesh(a=2), "seq:a").collectives[0].kind == "AllGather"


@pytest.mark.parametrize("ways,shard", [(1, 5), (2, 3), (4, 4), (5, 2)])
@pytest.mark.parametrize("step,start,length,divisor", [(4, -2, 6, 1), (3, 1, 3, 1), (5, -3, 4, 2)])
def test_slabs_bring_every_row_that_is_read(ways, shard, step, start, length, divisor):
    """Literally: what arrives by all hops holds every row of every device's stretch."""
    size = ways * shard - 1
    stretch = Stretch(step, start, length, size, divisor)
    slabs = find_slabs(stretch, ways, shard)
    for p in range(ways):
        arrived = set()
        for slab in slabs:
            if slab.hop.first <= p <= slab.hop.last:
                owner = p + slab.hop.by
                tf = SimpleNamespace(clip_by_value=np.clip)
                low = slab.find_low(tf, stretch, shard, p, owner)
                arrived |= {owner * shard + row for row in range(low, low + slab.rows)}
        first = (step * p + start) // divisor
        needed = {row for row in range(first, first + length) if 0 <= row < size}
        assert needed <= arrived


def test_a_hop_along_two_axes_in_any_order():
    mesh = nm.Mesh(a=2, b=3)
    assert Hop(1, 0, 4, axes=("a", "b")).pairs(mesh) == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]
    # Position along b, then a: devices 0, 3, 1, 4, 2, 5.
    assert Hop(1, 0, 4, axes=("b", "a")).pairs(mesh) == [(3, 0), (1, 3), (4, 1), (2, 4), (5, 2)]
    with pytest.raises(nm.NamedMeshError, match="is not a hop"):
        Hop.read("1 from 2")


def test_a_region_does_not_look_beyond_its_shard():
    S = nm.Dimension("seq", 16)
    with pytest.raises(nm.NamedMeshError, match="mixes elements of dimension seq"):
        nm.trace(lambda x: nm.manual(lambda x: nm.shift(x, S, 1), x, over=S), x=nm.spec([S, B]))


def test_neighbours_inside_a_loop():
    S = nm.Dimension("seq", 16)

    def smooth(x):
        body = lambda carry, _: ((carry + nm.roll(carry, S, 1)) * 0.5, None)
        return nm.scan(body, x, over=nm.Dimension("iteration", 3))[0]

    x = uniform(5, 16, 4)
    step = nm.compile(smooth, nm.spec([S, B]), mesh=MESH, layout="seq:a", strict=True)
    assert [(one.elements, one.times) for one in step.plan.collectives] == [(4, 3)]
    want = x
    for _ in range(3):
        want = (want + np.roll(want, 1, 0)) * 0.5
    assert_same({"y": step(step.init(0), x=x)[1]}, {"y": want})


BEST = nm.Dimension("best", 2)
SEARCHES = {
    "cumsum": (lambda x, S: nm.cumsum(x, S), lambda x: np.cumsum(x, 0)),
    "cumsum_exclusive": (
        lambda x, S: nm.cumsum(x, S, exclusive=True),
        lambda x: np.cumsum(x, 0) - x,
    ),
    "cumsum_reverse": (
        lambda x, S: nm.cumsum(x, S, reverse=True),
        lambda x: np.cumsum(x[::-1], 0)[::-1],
    ),
    "argmax": (nm.argmax, lambda x: np.argmax(x, 0)),
    "argmin": (nm.argmin, lambda x: np.argmin(x, 0)),
    "top_k": (
        lambda x, S: nm.top_k(x, S, BEST)[0],
        lambda x: np.take_along_axis(x, np.argsort(-x, 0, kind="stable")[:2], 0),
    ),
    "top_k_indices": (
        lambda x, S: nm.top_k(x, S, BEST)[1],
        lambda x: np.argsort(-x, 0, kind="stable")[:2],
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8"])
@pytest.mark.parametrize("size", [64, 61, 33])
@pytest.mark.parametrize("name", SEARCHES)
def test_searches_equal_numpy(name, size, dtype):
    """Few different numbers, so that there are ties between shards."""
    function, reference = SEARCHES[name]
    S = nm.Dimension("seq", size)
    x = np.random.default_rng(size).integers(-5, 5, (size, 4)).astype(dtype)
    step = nm.compile(
        lambda x: function(x, S), nm.spec([S, B], dtype), mesh=MESH, layout="seq:a", strict=True
    )
    found = np.asarray(step(step.init(0), x=x)[1])
    np.testing.assert_array_equal(found, reference(x).astype(found.dtype))
    sent = step.plan.collectives[0]
    assert sent.kind == "AllGather"
    assert sent.elements <= 2 * 4 * 2 * B.size  # of all four shards, at most two with their indices


def test_nan_and_signed_zeros_over_shards():
    S = nm.Dimension("seq", 64)
    x = np.zeros((64, 4), np.float32)
    x[10, 0], x[50, 0], x[40, 1], x[3, 2] = np.nan, np.nan, -0.0, -np.inf

    def search(x):
        values, indices = nm.top_k(x, S, BEST)
        return {
            "values": values,
            "indices": indices,
            "max": nm.argmax(x, S),
            "min": nm.argmin(x, S),
        }

    step = nm.compile(search, nm.spec([S, B]), mesh=MESH, layout="seq:a", strict=True)
    whole = nm.evaluate(search, x=([S, B], x))
    assert_same(step(step.init(0), x=x)[1], whole)
    assert whole["indices"][:, 0].tolist() == [10, 50] and whole["max"][0] == 10


def test_the_gradient_of_a_running_sum_and_of_the_largest():
    S = nm.Dimension("seq", 64)

    def slopes(x):
        total = nm.sum(nm.cumsum(x, S) * nm.cumsum(x, S)) + nm.sum(nm.top_k(x, S, BEST)[0])
        return nm.grad(total, x)

    x = uniform(9, 64, 4)
    step = nm.compile(slopes, nm.spec([S, B]), mesh=MESH, layout="seq:a", strict=True)
    want = 2 * np.cumsum(np.cumsum(x, 0)[::-1], 0)[::-1]
    for column, rows in enumerate(np.argsort(-x, 0)[:2].T):
        want[rows, column] += 1
    assert_same({"dx": step(step.init(0), x=x)[1]}, {"dx": want}, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [32, 29])
def test_a_roll_that_is_known_only_when_it_runs(size):
    S = nm.Dimension("seq", size)

    def rolled(x, by):
        y = nm.roll(x, S, by)
        return {"y": y, "dx": nm.grad(nm.sum(y * y * nm.range(S, "float32")), x)}

    specs = nm.spec([S, B]), nm.spec([], "int32")
    step = nm.compile(rolled, *specs, mesh=MESH, layout="seq:a", strict=True)
    # Rolled in five steps; where the last shard is shorter, gathering takes less.
    exchanged = [one for one in step.plan.of_phase("forward") if one.hop]
    assert len(exchanged) == (5 if size == 32 else 0)
    x, weights = uniform(6, size, 4), np.arange(size)[:, None]
    for by in (0, 1, 7, size - 1, size + 3, -2):
        found = step(step.init(0), x, np.int32(by))[1]
        want = {"y": np.roll(x, by, 0), "dx": 2 * x * np.roll(weights, -by, 0)}
        assert_same(found, want)
    with pytest.raises(nm.NamedMeshError, match="by is not an int32 scalar"):
        nm.trace(lambda x: nm.roll(x, S, nm.sum(x)), nm.spec([S, B]))
