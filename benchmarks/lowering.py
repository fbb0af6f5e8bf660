"""The time and size of lowering one MoE layer, with gradients, for 8, 128 and 2,048 devices."""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import tensorflow as tf
from absl import app, flags

import namedmesh as nm
from benchmarks import moe
from benchmarks.result import publish
from namedmesh.lowering.export import lower_plan

SIZES = moe.Sizes(group=2048, seq=2048, model=1024, hidden=8192, expert=2048)
DEVICES = (8, 128, 2048)

_ROUNDS = flags.DEFINE_integer(
    "rounds", 7, "Timed rounds over all numbers of devices, after one to warm up.", lower_bound=1
)


def lower_layer(devices: int) -> tuple[float, int]:
    """Return the seconds to trace, plan and lower the layer, and the bytes of its StableHLO."""
    start = time.perf_counter()
    plan = nm.plan(moe.program(SIZES), nm.Mesh(all=devices), "group:all, expert:all")
    module = lower_plan(plan)
    return time.perf_counter() - start, len(module)


def measure(rounds: int) -> dict[str, Any]:
    """Return medians of several rounds, and the most devices compared with the fewest."""
    measured: dict[int, list[tuple[float, int]]] = {devices: [] for devices in DEVICES}
    for devices in DEVICES:
        lower_layer(devices)
    for _ in range(rounds):
        for devices in DEVICES:
            measured[devices].append(lower_layer(devices))
    rows = []
    for devices, pairs in measured.items():
        seconds, sizes = zip(*pairs, strict=True)
        rows.append(
            {"devices": devices, "seconds": statistics.median(seconds), "bytes": max(sizes)}
        )
    return {
        "rows": rows,
        "size_ratio": rows[-1]["bytes"] / rows[0]["bytes"],
        "time_ratio": rows[-1]["seconds"] / rows[0]["seconds"],
        "rounds": rounds,
        "sizes": {**vars(SIZES), "capacity": SIZES.capacity},
        "versions": {"tensorflow": tf.__version__, "jax": jax.__version__},
    }


def main(_arguments: list[str]) -> None:
    """Measure and publish."""
    publish(measure(_ROUNDS.value))


if __name__ == "__main__":
    app.run(main)
