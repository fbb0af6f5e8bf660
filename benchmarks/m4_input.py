"""Tokens a second that the input pipeline makes on one core against those the train step takes.

python -m benchmarks.m4_input --json OUT; tokens are those of source and target that are not padding.
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
from examples.m4.input.batches import Batches
from examples.m4.run import Run
from examples.m4.settings import PRESETS, Settings, preset
from namedmesh.runtime import load

Batch = dict[str, np.ndarray]

_DATA = flags.DEFINE_string(
    "data", "synthetic", "The corpus: synthetic, catalogs, or a directory of TSV files."
)
_PRESET = flags.DEFINE_enum(
    "preset", "small", sorted(PRESETS), "The settings whose train step is timed."
)
_RUN = flags.DEFINE_string(
    "run", None, "A folder to keep data and lowered step in; one that goes away unless said."
)
_TURNS = flags.DEFINE_integer(
    "turns", 9, "Turns of the pipeline and of the step, after one to warm up.", lower_bound=1
)
_STEPS = flags.DEFINE_integer("steps_a_turn", 5, "Train steps in a turn.", lower_bound=1)


def tokens(batch: Batch) -> int:
    """The tokens of a batch that are not padding."""
    return int(sum((batch[f"{side}_segments"] > 0).sum() for side in ("source", "target")))


@contextmanager
def one_core() -> Iterator[None]:
    """Keeps this thread on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def rates(
    stream: Iterator[Batch], batches: int, step: Callable[[Batch], Any], steps: int, turns: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens a second that the stream made and that the step took, in each of some turns.

    A turn of the stream is so many batches: those of a whole chunk, which is packed when its first batch is asked
    for. The step takes the first of them.
    """
    made, taken = [], []
    for _ in range(1 + turns):
        with one_core():
            begun = time.perf_counter()
            some = [next(stream) for _ in range(batches)]
            made.append(sum(map(tokens, some)) / (time.perf_counter() - begun))
        begun = time.perf_counter()
        for batch in some[:steps]:
            step(batch)
        taken.append(sum(map(tokens, some[:steps])) / (time.perf_counter() - begun))
    return np.array(made[1:]), np.array(taken[1:])


def measure(run: Run, settings: Settings, turns: int, steps: int) -> dict[str, Any]:
    """Both rates of a run, with the results of every step fetched."""
    shape = settings.rows, settings.source_length, settings.target_length
    stream = Batches(
        run.tokens("train"), *shape, seed=settings.seed, temperature=settings.temperature
    )
    batches = max(-(-len(stream.chunk(0)) // settings.rows), steps)
    executable = load(run.artifact("train", settings))
    state = executable.init(settings.seed)

    def step(batch: Batch) -> None:
        nonlocal state
        state, results = executable(state, **batch, seed=np.int32(0))
        jax.device_get(results)

    made, taken = rates((batch for batch, _ in stream), batches, step, steps, turns)
    chunk = stream.chunk(0)
    return {
        "ratio_to_step": float(np.median(made) / np.median(taken)),
        "paired_ratio_to_step": float(np.median(made / taken)),
        "input_tokens_per_second": float(np.median(made)),
        "step_tokens_per_second": float(np.median(taken)),
        "turns": turns,
        "batches_a_turn": batches,
        "steps_a_turn": steps,
        "fill": {"source": chunk.source_fill, "target": chunk.target_fill},
        "preset": settings.preset,
        "mesh": settings.mesh,
        "cores": os.cpu_count(),
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }


def main(_arguments: list[str]) -> None:
    """Measures and publishes."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(_RUN.value or pathlib.Path(scratch) / "run")
        settings = run.start(preset(_PRESET.value), _DATA.value)
        publish(measure(run, settings, _TURNS.value, _STEPS.value))


if __name__ == "__main__":
    app.run(main)
