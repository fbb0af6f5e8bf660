"""Training all bilingual models at once: their batches, dev losses and seeds for the Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from examples.m4.bilingual.programs import NOT_MEASURED
from examples.m4.bilingual.rows import Arrays, dev_batches, make_stream, read_rows
from examples.m4.run import Run
from examples.m4.settings import Settings
from namedmesh.runtime import Executable, State, load
from namedmesh.training import Intervals, Trainer, share_state


def make_trainer(
    run: Run, settings: Settings, step: Executable, intervals: Intervals, **options: Any
) -> Trainer:
    """Make the Trainer of a run of bilingual models.

    A step after a measurement is told of the dev losses, and keeps the weights that are the best so
    far. There is one step more than `--steps`, for the last measurement.
    """
    codes = settings.languages.split(",")
    evaluate = load(run.artifact("evaluate", settings, options.get("say", print)))
    held_out = dev_batches(read_rows(run.data, codes, "dev"), settings.rows, settings.dev_batches)
    latest: tuple[int, np.ndarray] = -1, np.zeros(0)
    absent = np.full(len(codes), NOT_MEASURED, np.float32)

    def measure() -> np.ndarray:
        nonlocal latest
        if latest[0] != trainer.steps_taken:  # a run that goes on measures again, and finds as much
            losses = measure_dev_losses(evaluate, trainer.state, held_out)
            latest = trainer.steps_taken, losses
        return latest[1]

    def feed(batch: Arrays, steps_taken: int) -> dict[str, Any]:
        seed = (settings.seed * 1_000_003 + steps_taken) % 2**31
        due = steps_taken % settings.dev_every == 0 or steps_taken == settings.steps
        measured = bool(steps_taken) and due
        return step.feed(
            {
                **batch,
                "seed": np.int32(seed),
                "dev_loss": measure() if measured else absent,
                "measured": np.int32(measured),
            }
        )

    trainer = Trainer(
        step,
        make_stream(read_rows(run.data, codes, "train"), codes, settings.rows, settings.seed),
        replace(intervals, steps=settings.steps + 1),
        feed=feed,
        count_tokens=count_tokens,
        evaluate=lambda state: {"dev_loss": float(np.mean(measure()))},
        **options,
    )
    return trainer


def count_tokens(batch: Arrays) -> int:
    """Count the tokens of both sides and all languages that are not padding."""
    return int(sum((batch[f"{side}_segments"] > 0).sum() for side in ("source", "target")))


def measure_dev_losses(evaluate: Executable, state: State, batches: Sequence[Arrays]) -> np.ndarray:
    """Measure the mean cross entropy of each language's dev tokens."""
    state = share_state(state, evaluate)
    results = [evaluate(state, **evaluate.feed(batch))[1]["cross_entropy"] for batch in batches]
    counts = [(batch["target_segments"] > 0).sum(axis=(1, 2)) for batch in batches]
    total = sum(np.asarray(one) * count for one, count in zip(results, counts, strict=True))
    return (total / np.maximum(sum(counts), 1)).astype(np.float32)
