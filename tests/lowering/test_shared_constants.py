"""Ops of one shape in two places share no constants, whatever the compiler folds together."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import top_k_gating

V, W, M = nm.dims("source_vocab=64 target_vocab=64 model=32")


def test_two_tables_of_one_shape_are_made_where_they_lie():
    def step():
        one = nm.param("one", [V, M], nm.normal_init(1.0))
        other = nm.param("other", [W, M], nm.normal_init(1.0))
        nm.assign(one, one * 2.0)
        nm.assign(other, other * 2.0)

    compiled = nm.compile(
        step, mesh=nm.Mesh(data=2, model=4), layout="target_vocab:model", strict=True
    )
    state = compiled.init(0)
    for name, value in compiled.program.initial_state(0).items():
        np.testing.assert_allclose(state[name], value, rtol=1e-4, atol=1e-5)
    assert state["other"].sharding.shard_shape((64, 32)) == (16, 32)


def test_one_group_is_routed_where_experts_are_split():
    """Gates are whole and what is left of them is split: both are made into keys of their order."""
    G, S, E, C, N = nm.dims("group=1 seq=32 expert=4 capacity=16 inner=8")

    def step(x):
        logits = nm.einsum([x, nm.param("wg", [N, E], whole=[E])], [G, S, E])
        return top_k_gating(logits, S, E, C, second="all").weight

    program = nm.trace(step, nm.spec([G, S, N]))
    run = nm.compile(program, mesh=nm.Mesh(all=4), layout="group:all, expert:all", strict=True)
    x = np.random.default_rng(0).normal(size=(1, 32, 8)).astype(np.float32)
    wanted = program.evaluate(program.initial_state(0), x=x)[1]
    np.testing.assert_allclose(run(run.init(0), x=x)[1], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(8, 8), (5, 3), (5, 8)])
def test_an_array_is_made_for_each_reader_where_that_lies(sizes):
    """Its indices are no more shared than its numbers are."""
    rows, columns = map(nm.Dimension, ("row", "column"), sizes)
    numbers = np.cos(np.arange(rows.size * columns.size)).reshape(sizes).astype(np.float32)

    def step(x):
        weights = nm.constant(numbers, [rows, columns])
        return nm.sum(x * weights), nm.reshard(x, columns) * weights, nm.replicate(x) * weights

    run = nm.compile(
        step,
        nm.spec([rows, columns]),
        mesh=nm.Mesh(all=8),
        layout="row:all, column:all",
        strict=True,
    )
    x = np.random.default_rng(0).normal(size=sizes).astype(np.float32)
    total, moved, whole = run(None, x)[1]
    np.testing.assert_allclose(total, (x * numbers).sum(), rtol=1e-5)
    np.testing.assert_allclose(moved, x * numbers, rtol=1e-6)
    np.testing.assert_allclose(whole, x * numbers, rtol=1e-6)
