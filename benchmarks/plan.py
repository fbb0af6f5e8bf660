"""Import, trace and plan the train step of a 600-billion-weight model for 2,048 devices.

Each figure comes from a fresh process, the median of several; beside it, what importing TensorFlow
takes.

python -m benchmarks.plan --json OUT
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

from absl import app, flags

from benchmarks.result import publish

MODEL, DEVICES = "moe_2048e_36l", 2048
PLANNED = f"""
import json, sys, time
start = time.perf_counter()
import namedmesh as nm
nm.trace, nm.plan, nm.layers.Transformer  # names are imported when they are first asked for
imported = time.perf_counter()
model = nm.layers.Transformer(nm.layers.config("{MODEL}"), {DEVICES}, 1024, 1024)

def train_step(batch, seed):
    loss, metrics = model.loss(nm.layers.batch_of(batch), nm.random.key_from_seed(seed))
    nm.layers.Adafactor(unfactored=[model.E]).apply(nm.grad(loss))
    return metrics["loss"]

program = nm.trace(train_step, batch=model.specs(), seed=nm.spec([], "int32"))
traced = time.perf_counter()
plan = nm.plan(program, nm.Mesh(all={DEVICES}), "group:all, expert:all")
planned = time.perf_counter()
text, document = str(plan), json.dumps(plan.to_json())
printed = time.perf_counter()
print(json.dumps({{
    "import_seconds": imported - start,
    "trace_seconds": traced - imported,
    "plan_seconds": planned - traced,
    "print_seconds": printed - planned,
    "imported_tensorflow": "tensorflow" in sys.modules,
    "imported_jax": "jax" in sys.modules,
    "weights": sum(variable.shape.elements for variable in program.parameters.values()),
    "collectives": len(plan.collectives),
}}))
"""
TENSORFLOW = """
import json, time
start = time.perf_counter()
import tensorflow
print(json.dumps({"tensorflow_import_seconds": time.perf_counter() - start}))
"""


def run_fresh(code: str) -> dict[str, Any]:
    """Run code in a process of its own and return the JSON of its last line."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(repeats: int = 5) -> dict[str, Any]:
    """Measure both in turn, so that a busy machine slows them alike; return medians."""
    rows = [run_fresh(PLANNED) | run_fresh(TENSORFLOW) for _ in range(repeats)]
    seconds = {
        key: statistics.median(row[key] for row in rows) for key in rows[0] if "_seconds" in key
    }
    ratio = seconds["import_seconds"] / seconds["tensorflow_import_seconds"]
    return {**rows[0], **seconds, "import_ratio_to_tensorflow": ratio, "repeats": repeats}


_REPEATS = flags.DEFINE_integer("repeats", 5, "fresh processes of each kind", lower_bound=1)


def main(_: list[str]) -> None:
    """Measure and publish."""
    publish(measure(_REPEATS.value))


if __name__ == "__main__":
    app.run(main)
