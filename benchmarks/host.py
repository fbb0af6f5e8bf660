"""The cost of a step on the host beside jax.jit, for 1, 100 and 1,000 variables.

Run as `python -m benchmarks.host --json OUT`. Both add an input to every variable, which is used up
and comes back; a variable has four numbers, so that the host is all there is to measure. The input
is a new numpy array in every step, as a batch is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import app

import namedmesh as nm
from benchmarks.result import publish

SIZES = (1, 100, 1000)
(M,) = nm.dims("model=4")


def make_step(count: int) -> Callable[[], Any]:
    """Return a namedmesh step that keeps its state from call to call."""

    def step(x):
        weights = [nm.param(f"w{i}", [M], nm.constant_init(0.0)) for i in range(count)]
        for weight in weights:
            nm.assign(weight, weight + x)
        return {"first": nm.mean(weights[0])}

    compiled = nm.Step(nm.plan(nm.trace(step, x=nm.spec([M])), nm.Mesh(all=1)), strict=True)
    held = [compiled.init(0)]

    def run() -> Any:
        held[0], results = compiled(held[0], x=np.ones(4, np.float32))
        return results

    return run


def make_jitted(count: int) -> Callable[[], Any]:
    """Return the same by hand."""

    def step(weights, x):
        return {name: w + x for name, w in weights.items()}, {"first": weights["w0"].mean()}

    jitted = jax.jit(step, donate_argnums=0)
    held = [jax.device_put({f"w{i}": np.zeros(4, np.float32) for i in range(count)})]

    def run() -> Any:
        held[0], results = jitted(held[0], np.ones(4, np.float32))
        return results

    return run


def measure(rounds: int = 300) -> dict[str, Any]:
    """Return medians of single steps, interleaved, the results fetched."""
    rows = []
    for count in SIZES:
        runs = {"namedmesh": make_step(count), "jit": make_jitted(count)}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for i in range(rounds + 20):
            for name in sorted(runs, reverse=bool(i % 2)):
                start = time.perf_counter()
                first = float(runs[name]()["first"])
                if i >= 20:
                    times[name].append(time.perf_counter() - start)
                assert first == i, (name, first, i)
        medians = {name: statistics.median(values) * 1e3 for name, values in times.items()}
        rows.append(
            {
                "variables": count,
                "namedmesh_ms": medians["namedmesh"],
                "jit_ms": medians["jit"],
                "ratio_to_jit": medians["namedmesh"] / medians["jit"],
            }
        )
    return {"rows": rows, "rounds": rounds}


def main(_: list[str]) -> None:
    """Measure and publish."""
    publish(measure())


if __name__ == "__main__":
    app.run(main)
