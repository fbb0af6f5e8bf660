"""Trace, differentiate, plan, print and save programs of many ops and of many parameters.

Each is measured in processor time at three sizes; what takes time in proportion to the size takes
four times as long at four times the size.

python -m benchmarks.linear --json OUT
"""

from __future__ import annotations

import functools
import gc
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

from absl import app

import namedmesh as nm
from benchmarks.result import publish

OPS = (5_000, 10_000, 20_000)
PARAMETERS = (1_250, 2_500, 5_000)
MESH = nm.Mesh(data=4)
B, M = nm.dims("batch=8 model=16")


def chain_ops(count: int) -> Callable[[nm.Tensor], nm.Tensor]:
    """Return a function of a chain of elementwise ops, half of them derivatives."""

    def function(x: nm.Tensor) -> nm.Tensor:
        weight = y = nm.param("w", [M])
        for _ in range(count // 4):
            y = nm.tanh(y)
        loss = nm.sum(x * y)
        nm.assign(weight, weight - nm.grad(loss, weight))
        return loss

    return function


def many_parameters(count: int) -> Callable[[nm.Tensor], nm.Tensor]:
    """Return a train step of this many parameters."""

    def function(x: nm.Tensor) -> nm.Tensor:
        loss = nm.sum(x)
        for i in range(count):
            loss = loss + nm.sum(x * nm.param(f"w{i}", [M]))
        gradients = nm.grad(loss)
        for name, weight in nm.parameters().items():
            nm.assign(weight, weight - gradients[name] * 0.1)
        return loss

    return function


def measure(function: Callable[[nm.Tensor], nm.Tensor]) -> dict[str, float]:
    """Return the processor time of each stage, in seconds."""
    seconds: dict[str, float] = {}

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        gc.collect()
        gc.disable()  # collections in the middle would charge one stage for another's objects
        start = time.process_time()
        result = work()
        seconds[stage] = time.process_time() - start
        gc.enable()
        return result

    program = timed("trace", lambda: nm.trace(function, x=nm.spec([B, M])))
    seconds["ops"] = len(program.ops)
    timed("print program", lambda: str(program))
    plan = timed("plan", lambda: nm.plan(program, MESH, "batch:data"))
    timed("plan params", lambda: nm.plan(program, MESH, "batch:data", params="model:data"))
    timed("print", lambda: str(plan))
    with tempfile.TemporaryDirectory() as folder:
        timed("save", functools.partial(plan.save, pathlib.Path(folder, "plan.json")))
    return seconds


def main(_: list[str]) -> None:
    """Measure and publish."""
    result = {}
    for what, make, sizes in (
        ("ops", chain_ops, OPS),
        ("parameters", many_parameters, PARAMETERS),
    ):
        rows = {size: measure(make(size)) for size in sizes}
        first, last = rows[sizes[0]], rows[sizes[-1]]
        result[what] = {
            "rows": rows,
            "size_ratio": sizes[-1] / sizes[0],
            "time_ratios": {stage: last[stage] / first[stage] for stage in first},
        }
    publish(result)


if __name__ == "__main__":
    app.run(main)
