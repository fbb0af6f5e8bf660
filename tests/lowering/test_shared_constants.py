"""Draws of one shape in two places share no counters, whatever the compiler folds together."""

import numpy as np

import namedmesh as nm

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
