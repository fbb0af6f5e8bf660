"""Tokens per second that the input pipeline makes on one core, and that the train step takes.

python -m benchmarks.m4_input --json OUT; padding does not count as tokens.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from absl import app, flags

from benchmarks.result import publish
from examples.m4.run import Run
from examples.m4.settings import PRESETS, Settings, preset
from examples.m4.training import count_tokens, open_batches
from namedmesh.runtime import load

Batch = dict[str, np.ndarray]

_DATA = flags.DEFINE_string(
    "data", "synthetic", "The corpus: synthetic, catalogs, or a directory of TSV files."
)
_PRESET = flags.DEFINE_enum(
    "preset", "small", sorted(PRESETS), "The settings whose train step is timed."
)
_RUN = flags.DEFINE_string(
    "run", None, "A folder for data and lowered step; by default a temporary one."
)
_ITERATIONS = flags.DEFINE_integer(
    "iterations",
    9,
    "Iterations of the pipeline and of the step, after one to warm up.",
    lower_bound=1,
)
_STEPS = flags.DEFINE_integer(
    "steps_an_iteration", 5, "Train steps in an iteration.", lower_bound=1
)


@contextmanager
def use_one_core() -> Iterator[None]:
    """Keep this thread on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure_rates(
    stream: Iterator[Batch], batches: int, step: Callable[[Batch], Any], steps: int, iterations: int
) -> tuple[np.ndarray, np.ndarray]:
    """Measure the tokens per second of the stream and of the step, in each of some iterations.

    An iteration of the stream is the batches of a whole chunk, since a chunk is packed when its
    first batch is asked for. The step takes the first of them.
    """
    streamed, consumed = [], []
    for _ in range(1 + iterations):
        with use_one_core():
            start = time.perf_counter()
            some = [next(stream) for _ in range(batches)]
            streamed.append(sum(map(count_tokens, some)) / (time.perf_counter() - start))
        start = time.perf_counter()
        for batch in some[:steps]:
            step(batch)
        consumed.append(sum(map(count_tokens, some[:steps])) / (time.perf_counter() - start))
    return np.array(streamed[1:]), np.array(consumed[1:])


def measure(run: Run, settings: Settings, iterations: int, steps: int) -> dict[str, Any]:
    """Measure both rates of a run, fetching the results of every step."""
    executable = load(run.artifact("train", settings))  # first: it sets the number of devices
    state = executable.init(settings.seed)
    stream = open_batches(run, settings, "train")
    batches = max(-(-len(stream.chunk(0)) // settings.rows), steps)

    def step(batch: Batch) -> None:
        nonlocal state
        state, results = executable(state, **batch, seed=np.int32(0))
        jax.device_get(results)

    streamed, consumed = measure_rates(
        (batch for batch, _ in stream), batches, step, steps, iterations
    )
    chunk = stream.chunk(0)
    return {
        "ratio_to_step": float(np.median(streamed) / np.median(consumed)),
        "paired_ratio_to_step": float(np.median(streamed / consumed)),
        "input_tokens_per_second": float(np.median(streamed)),
        "step_tokens_per_second": float(np.median(consumed)),
        "iterations": iterations,
        "batches_an_iteration": batches,
        "steps_an_iteration": steps,
        "fill": {"source": chunk.source_fill, "target": chunk.target_fill},
        "preset": settings.preset,
        "mesh": settings.mesh,
        "cores": os.cpu_count(),
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }


def main(_arguments: list[str]) -> None:
    """Measure and publish."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(_RUN.value or pathlib.Path(scratch) / "run")
        settings = run.start(preset(_PRESET.value), _DATA.value)
        publish(measure(run, settings, _ITERATIONS.value, _STEPS.value))


if __name__ == "__main__":
    app.run(main)
