"""The time to export whole train steps, beside hand-written JAX that exports the same models.

Run as `python -m benchmarks.export --json OUT`. With `--before FOLDER`, the checkout of another
version of namedmesh, its time stands beside ours. Every export has a process of its own, after what
a process does once; the systems take turns.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

from absl import app, flags

from benchmarks import export_once
from benchmarks.result import publish

MODELS = ("tiny", "base", "moe_2048e_36l")
HERE = pathlib.Path(__file__).resolve().parent.parent

_BEFORE = flags.DEFINE_string("before", None, "The checkout of a version to compare with.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Exports of each model and system.", lower_bound=1)
_MODELS = flags.DEFINE_list("models", list(MODELS), "The models.")


def export_apart(system: str, model: str, checkout: pathlib.Path) -> dict[str, Any]:
    """Export a model in another process, with the namedmesh of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-W", "ignore", export_once.__file__, system, model]
    result = subprocess.run(command, env=environment, cwd=checkout, stdout=subprocess.PIPE)
    if result.returncode:
        raise SystemExit(f"the export of {model} by {system} failed")
    return json.loads(result.stdout.splitlines()[-1])


def measure(model: str, rounds: int, before: pathlib.Path | None) -> dict[str, Any]:
    """Return the median seconds of each system, and their ratios."""
    systems = {"namedmesh": HERE, "jax": HERE} | ({"before": before} if before else {})
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
    for i in range(rounds):
        for name in sorted(systems, reverse=bool(i % 2)):
            system = "jax" if name == "jax" else "namedmesh"
            found[name].append(export_apart(system, model, systems[name]))
    seconds = {name: statistics.median(one["seconds"] for one in found[name]) for name in found}
    row = {
        "model": model,
        "seconds": seconds["namedmesh"],
        "jax_seconds": seconds["jax"],
        "ratio_to_jax": seconds["namedmesh"] / seconds["jax"],
        "bytes": found["namedmesh"][0]["bytes"],
        "jax_bytes": found["jax"][0]["bytes"],
    }
    if before:
        row |= {
            "seconds_before": seconds["before"],
            "times_faster_than_before": seconds["before"] / seconds["namedmesh"],
        }
    return row


def main(_: list[str]) -> None:
    """Measure and publish."""
    before = pathlib.Path(_BEFORE.value).resolve() if _BEFORE.value else None
    rows = [measure(model, _ROUNDS.value, before) for model in _MODELS.value]
    publish({"rows": rows, "rounds": _ROUNDS.value})


if __name__ == "__main__":
    app.run(main)
