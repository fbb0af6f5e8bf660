"""How a run on several devices parts from one on a single device, and rounding alone does the same.

python -m benchmarks.m4_rounding --run RUN --devices 8 --steps 260 --json OUT
RUN has data, as `python -m examples.m4 export` makes it.

The same train steps on one device, on one device with every weight moved by one unit in the last
place at the start, and on several devices: losses, and the share of choices that found no room,
which changes only where a token's choice of experts does.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import app, flags

from examples.m4.run import Run
from examples.m4.settings import Settings
from examples.m4.training import open_batches
from namedmesh.runtime import load, use_cpu_devices

_RUN = flags.DEFINE_string("run", None, "A run with data.", required=True)
_STEPS = flags.DEFINE_integer("steps", 160, "Train steps of each run.")
_DEVICES = flags.DEFINE_integer("devices", 4, "Devices of the sharded run.")
_JSON = flags.DEFINE_string("json", "rounding.json", "The file for the results.")
WATCHED = ("loss", "grad_norm", "no_room")


def train(run: Run, settings: Settings, steps: int, move: bool) -> np.ndarray:
    """Return what is watched of each step; with `move`, weights start one unit apart."""
    step = load(run.artifact("train", settings))
    state = step.init(settings.seed)
    if move:
        weights = {name: np.asarray(state[name]) for name in step.variables}
        apart = {
            name: np.nextafter(one, np.float32(np.inf)) if one.dtype == np.float32 else one
            for name, one in weights.items()
            if step.variables[name].trainable
        }
        state = step.place({**weights, **apart})
    stream = open_batches(run, settings, "train").read_from(None)
    rows = []
    for number in range(steps):
        state, results = step(state, **next(stream)[0], seed=np.int32(number))
        rows.append([float(results[name]) for name in WATCHED])
    return np.array(rows)


def compare(one: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    """Return when and how far two runs part."""
    apart = np.abs(one - other)
    first = lambda far: int(far.argmax()) + 1 if far.any() else None
    return {
        "first_step_above": {
            str(limit): first(apart[:, 0] > limit) for limit in (1e-5, 1e-4, 1e-3, 1e-2)
        },
        "first_step_with_another_choice": first(apart[:, 2] > 1e-6),
        "largest_before_it": float(apart[: (first(apart[:, 2] > 1e-6) or len(apart)) - 1, 0].max()),
        "differences_of_losses": [float(f"{value:.2g}") for value in apart[:, 0]],
    }


def main(arguments: Sequence[str]) -> None:
    """Train three times and compare."""
    del arguments
    use_cpu_devices(_DEVICES.value)
    run = Run(_RUN.value)
    settings = dataclasses.replace(run.settings, mesh="all=1", layout="")
    spread = settings.but(mesh=f"all={_DEVICES.value}", layout="group:all, expert:all")
    steps = _STEPS.value
    one = train(run, settings, steps, move=False)
    words = f"--run RUN --devices {_DEVICES.value} --steps {steps} --json OUT"
    result: dict[str, Any] = {"command": f"python -m benchmarks.m4_rounding {words}"}
    for name, case in (("one_unit_apart", (settings, True)), ("devices", (spread, False))):
        result[name] = compare(one, train(run, case[0], steps, case[1]))
        print(name, {key: value for key, value in result[name].items() if "diff" not in key})
        pathlib.Path(_JSON.value).write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    app.run(main)
