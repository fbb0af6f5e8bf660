"""Time nm.inspect beside jax's own time to compile, and on a module of 10 MB.

$ python -m benchmarks.inspect_models.times --json benchmarks/results/inspect/times.json

Seconds are of one processor (the compiler has threads of its own) and, as `wall`, of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax

import namedmesh as nm
from benchmarks.inspect_models import models
from benchmarks.inspect_models.__main__ import SHARDINGS, describe_batch, place
from tests.inspect.large_module import write_module

TRIES = 3


def measure(function: Callable[[], Any]) -> tuple[Any, float, float]:
    """Run a function; return its result, and seconds of the processor and of the clock."""
    wall, own = time.perf_counter(), time.process_time()
    result = function()
    return result, time.process_time() - own, time.perf_counter() - wall


def measure_best(function: Callable[[], Any]) -> tuple[float, float]:
    """Return the least seconds of several runs."""
    tries = [measure(function)[1:] for _ in range(TRIES)]
    return min(own for own, _ in tries), min(wall for _, wall in tries)


def time_steps(libraries: list[str]) -> list[dict[str, Any]]:
    """Return a row for each step of the models of other libraries."""
    rows = []
    for library in libraries:
        _, apply, params = models.MODELS[library]()
        for sharding, axes in SHARDINGS.items():
            mesh, x = describe_batch(axes)
            for name, (step, state) in models.make_steps(apply, params).items():
                lowered = jax.jit(step).lower(place(state, sharding, mesh), x)
                compiled, own, wall = measure(lowered.compile)
                ours, ours_wall = measure_best(lambda compiled=compiled: nm.inspect(compiled))
                rows.append(
                    {
                        "library": library,
                        "sharding": sharding,
                        "step": name,
                        "compile": round(own, 3),
                        "inspect": round(ours, 4),
                        "share": round(ours / own, 3),
                        "compile_wall": round(wall, 3),
                        "inspect_wall": round(ours_wall, 4),
                        "share_wall": round(ours_wall / wall, 3),
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Time what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="*", default=[*models.MODELS])
    parser.add_argument("--json", type=pathlib.Path, help="the file that is written")
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    nm.inspect(lambda x: x * 2, jax.numpy.ones(4))
    text, _ = write_module(10 * 2**20)
    seconds, wall = measure_best(lambda: nm.inspect(text))
    large = {"bytes": len(text), "inspect": round(seconds, 2), "inspect_wall": round(wall, 2)}
    print(json.dumps(large), flush=True)
    result = {
        "jax": jax.__version__,
        "load": [round(os.getloadavg()[0], 1)],
        "module": large,
        "steps": time_steps(arguments.libraries),
    }
    result["load"].append(round(os.getloadavg()[0], 1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
