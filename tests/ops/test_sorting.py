"""Sorting along a split dimension: by merging shards, against NumPy."""

import itertools

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.ops import sorting

S, B, M = nm.dims("seq=24 batch=4 model=3")
VALUES = np.round(np.random.RandomState(0).randn(4, 24, 3), 1).astype(np.float32)  # with ties
VALUES[0, 3, 0], VALUES[1, 5, 1], VALUES[2, 7, 2] = np.nan, np.inf, -np.inf
LAYOUTS = [
    ("seq:a", nm.Mesh(a=8), "gspmd"),
    ("seq:a, batch:b", nm.Mesh(a=4, b=2), "shardy"),
    ("seq:a+b", nm.Mesh(a=4, b=2), "gspmd"),
    ("seq:a", nm.Mesh(a=3), "shardy"),
    ("seq:a", nm.Mesh(a=5), "gspmd"),
]


@pytest.mark.parametrize("count", range(2, 11))
def test_the_network_sorts_all_zeros_and_ones(count):
    for bits in itertools.product([0, 1], repeat=count):
        values = list(bits)
        for partners in sorting.list_rounds(count):
            for i, j in enumerate(partners):
                assert j < 0 or partners[j] == i
                if j > i:
                    values[i], values[j] = min(values[i], values[j]), max(values[i], values[j])
        assert values == sorted(bits)


def run(function, layout, mesh, partitioner):
    step = nm.compile(
        function,
        nm.spec([B, S, M]),
        mesh=mesh,
        layout=layout,
        strict=True,
        partitioner=partitioner,
    )
    return step(step.init(0), VALUES)[1]


@pytest.mark.parametrize(("layout", "mesh", "partitioner"), LAYOUTS)
def test_values_and_derivatives(layout, mesh, partitioner):
    def function(x):
        y = nm.sort(x, S)
        weights = nm.range(S, "float32")
        return y, nm.sort(x, S, descending=True), nm.grad(nm.sum(y * weights), x)

    up, down, slope = run(function, layout, mesh, partitioner)
    order = np.argsort(VALUES, 1, kind="stable")
    np.testing.assert_array_equal(up, np.sort(VALUES, 1))
    np.testing.assert_array_equal(down, np.sort(VALUES, 1)[:, ::-1])
    expected = np.empty_like(VALUES)
    ranks = np.broadcast_to(np.arange(24, dtype=np.float32)[:, None], VALUES.shape)
    np.put_along_axis(expected, order, ranks, 1)
    np.testing.assert_array_equal(slope, expected)


@pytest.mark.parametrize(("layout", "mesh", "partitioner"), LAYOUTS[:3])
def test_indices_keep_the_order_of_ties_when_shards_are_merged(
    layout, mesh, partitioner, monkeypatch
):
    monkeypatch.setattr(sorting, "sends_more", lambda sent, gathered: False)
    found = run(lambda x: (nm.argsort(x, S), nm.argsort(x, S, True)), layout, mesh, partitioner)
    np.testing.assert_array_equal(found[0], np.argsort(VALUES, 1, kind="stable"))
    keys = -np.where(np.isnan(VALUES), np.inf, VALUES).astype(np.float64)
    keys[0, 3, 0] = -np.inf
    nans = np.where(np.isnan(VALUES), 0, 1)
    expected = np.lexsort((keys, nans), axis=1)
    np.testing.assert_array_equal(found[1], expected)


def plan_of(function, ways):
    program = nm.trace(function, nm.spec([S.resized(128)]))
    return nm.plan(program, nm.Mesh(a=ways), "seq:a").collectives


@pytest.mark.parametrize(("ways", "rounds"), [(2, 1), (4, 3), (8, 6), (16, 10), (64, 21)])
def test_each_round_sends_a_shard(ways, rounds):
    found = plan_of(lambda x: nm.sort(x, S.resized(128)), ways)
    assert [(one.kind, one.elements) for one in found] == (
        [("CollectivePermute", 128 // ways)] * rounds
    )


def test_what_would_send_more_is_gathered():
    def function(x):
        return nm.argsort(x, S.resized(128))

    assert [one.kind for one in plan_of(function, 8)] == ["AllGather"]
    assert {one.kind for one in plan_of(function, 32)} == {"CollectivePermute"}
