"""Transfers of a state between random pairs of meshes and layouts, against the least bytes.

Run as `python -m benchmarks.transfer --json benchmarks/results/transfer/transfer.json`.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Any

import jax
import numpy as np
from absl import app, flags

import namedmesh as nm
from benchmarks.checkpoints import peak_memory
from benchmarks.result import publish
from namedmesh.dims.sharding import Sharding
from namedmesh.runtime import VariableSpec, use_cpu_devices
from tests.training.transfers import empty, least_bytes, place, random_program

_PAIRS = flags.DEFINE_integer("pairs", 200, "Random pairs of meshes and layouts.")
_MEBIBYTES = flags.DEFINE_integer("mebibytes", 1024, "The size of the state that is timed.")
_BOUND = flags.DEFINE_integer("memory", 64, "The bound of memory beside both states, in MiB.")


def measure_random(pairs: int) -> dict[str, Any]:
    """Bytes sent over the least, for random pairs, on one host and between two."""
    ratios, moved = [], 0
    for seed in range(pairs):
        random = np.random.default_rng(seed)
        sizes = [tuple(map(int, random.integers(1, 14, rank))) for rank in random.integers(0, 4, 3)]
        before, after = random_program(random, sizes), random_program(random, sizes)
        plan = nm.transfer(before, after)
        least, _ = least_bytes(before, after, 8)
        if least:
            ratios.append(plan.bytes_moved / least)
        moved += bool(plan.bytes_moved)
    return {"pairs": pairs, "with_moves": moved, "worst": max(ratios), "least": min(ratios)}


def measure_large(mebibytes: int, memory: int) -> dict[str, Any]:
    """Seconds and memory of moving one large state from rows to columns, on CPU devices."""
    rows = mebibytes * 2**20 // (4 * 4 * 4096)
    shape = nm.Shape(nm.dims(f"rows={rows} columns=4096"))

    def program(dim: str, count: int) -> nm.Artifact:
        specs = (
            VariableSpec(f"w{i}", shape, "float32", Sharding.of({dim: ["a"]}), True, True)
            for i in range(4)
        )
        return dataclasses.replace(empty(), mesh=nm.Mesh(a=count), variables=tuple(specs))

    before, after = program("rows", 8), program("columns", 4)
    whole = np.random.default_rng(0).normal(size=shape.sizes).astype(np.float32)
    state = place(before, {f"w{i}": whole + np.float32(i) for i in range(4)})
    plan, times = nm.transfer(before, after, memory=memory * 2**20), []
    print(plan)
    for _ in range(3):
        started = peak_memory()
        start = time.perf_counter()
        jax.block_until_ready(plan(state, verify=False).arrays)
        times.append(time.perf_counter() - start)
    size = 4 * whole.nbytes
    start = time.perf_counter()
    copies = {name: np.array(array) for name, array in state.arrays.items()}
    copied = time.perf_counter() - start
    del copies
    moved = plan(state, donate=True)
    for i in range(4):
        assert np.array_equal(np.asarray(moved.arrays[f"w{i}"]), whole + np.float32(i))
    return {
        "gigabytes": size / 1e9,
        "moved_gigabytes": plan.bytes_moved / 1e9,
        "seconds": statistics.median(times),
        "seconds_of_a_copy_by_numpy": copied,
        "bound_mib": memory,
        "peak_memory_gigabytes": started / 1e9,
    }


def main(_: list[str]) -> None:
    """Measure and publish."""
    use_cpu_devices(8)
    random = measure_random(_PAIRS.value)
    publish({"random": random, "large": measure_large(_MEBIBYTES.value, _BOUND.value)})


if __name__ == "__main__":
    app.run(main)
