"""Trace, differentiate, prune, plan and print take time in proportion to the program's size."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import namedmesh as nm
from benchmarks.linear import chain_ops, many_parameters

B, M = nm.dims("batch=8 model=16")
MESH = nm.Mesh(data=4)
SPEC = nm.spec([B, M])


def least_time(work: Callable[[], Any], repeats: int = 2) -> float:
    """The processor time of the fastest of a few runs, without collecting garbage."""
    times = []
    for _ in range(repeats):
        gc.collect()
        gc.disable()
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
        gc.enable()
    return min(times)


def distinct_dims(count: int):
    """A training step of parameters whose dimensions are all different."""

    def function(x):
        loss = nm.sum(x)
        for i in range(count):
            loss = loss + nm.sum(nm.param(f"w{i}", [nm.Dimension(f"d{i}", 4)]))
        nm.grad(loss)
        return loss

    return function


def diamonds(count: int):
    """Tensors that are read twice each, of which only the last reader says where they lie."""

    def function(x):
        y = nm.broadcast(nm.full([], 1.0), [B, M])
        for _ in range(count):
            y = y + y
        return nm.reshard(y, M) * nm.reshard(x, M)

    return function


SIZES = {chain_ops: 500, many_parameters: 60, distinct_dims: 150, diamonds: 250}
LAYOUTS = {diamonds: "batch:data, model:data"}


def stages(make, size: int) -> dict[str, float]:
    """The time of every stage at a size."""
    layout = LAYOUTS.get(make, "batch:data")
    spec = nm.spec([B, M], whole=[M]) if make is diamonds else SPEC
    program = nm.trace(make(size), x=spec)
    plan = nm.plan(program, MESH, layout)
    works = {
        "trace": lambda: nm.trace(make(size), x=spec),
        "plan": lambda: nm.plan(program, MESH, layout),
        "print": lambda: (str(program), str(plan), plan.to_json()),
        "look": lambda: (program.dims, program.resting_dims, program.flops(), plan.total_bytes()),
    }
    return {stage: least_time(work) for stage, work in works.items()}


@pytest.mark.slow
@pytest.mark.parametrize("make", SIZES, ids=lambda make: make.__name__)
def test_four_times_the_size_takes_about_four_times_as_long(make):
    small, large = stages(make, SIZES[make]), stages(make, 4 * SIZES[make])
    ratios = {
        stage: large[stage] / small[stage] for stage in small if large[stage] > 0.02
    }  # shorter times are noise
    assert all(ratio < 6 for ratio in ratios.values()), ratios


def test_long_chains_need_no_deep_stack():
    """Nothing recurses from op to op: a chain of ops may be longer than Python's stack."""
    count = sys.getrecursionlimit() + 100
    program = nm.trace(chain_ops(4 * count), x=SPEC)
    plan = nm.plan(program, MESH, "batch:data", params="model:data")
    assert len(program.ops) > 4 * count and len(str(plan)) > 0 and plan.to_json()["tensors"]
    state, loss = program.evaluate({"w": np.ones(16)}, x=np.ones((8, 16), np.float32))
    assert np.isfinite(float(loss)) and state["w"].shape == (16,)


def test_one_of_many_diamonds_is_settled_at_once():
    """An error about a tensor behind many others is found without walking every path to it."""
    program = nm.trace(diamonds(60), x=nm.spec([B, M], whole=[M]))
    plan = nm.plan(program, MESH, "batch:data, model:data")
    assert {plan.shardings[op.output].mapping.get("model") for op in program.ops[-2:]} == {
        ("data",)
    }
