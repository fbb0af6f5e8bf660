"""Training a run: its batches, its dev loss and its seeds for the Trainer; needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from examples.m4.input.batches import Batches
from examples.m4.run import Run
from examples.m4.settings import Settings
from namedmesh.runtime import Executable, State, cache_compilations, load
from namedmesh.training import (
    Checkpoints,
    Intervals,
    TraceWindow,
    Trainer,
    average_results,
    share_state,
)

ADVICE = "lower --learning_rate or lengthen --warmup, and run the same command again"


def train(
    run: Run,
    settings: Settings,
    say: Callable[[str], None] = print,
    profile: bool = False,
) -> dict[str, float]:
    """Train from the newest checkpoint, or from scratch, to the last step; return its metrics.

    With `profile`, three steps are traced into the folder trace of the run. Raises SystemExit, with
    the status that shells expect, when a signal stops the training.
    """
    cache_compilations(run.folder / "compiled")
    step = load(run.artifact("train", settings, say))
    run.save_settings(settings)
    report = step.report
    say(
        f"compiled in {report.compile_seconds:.1f} s; "
        f"{report.peak_bytes / 2**20:,.0f} MiB per device; {step.audit}"
    )
    with Checkpoints(run.checkpoints, settings.keep) as checkpoints:
        first = (checkpoints.latest or 0) + 10
        window = TraceWindow(run.folder / "trace", first, count=3) if profile else None
        trainer = make_trainer(run, settings, step, checkpoints, say=say, profile=window)
        row = trainer.run()
    if trainer.stop:
        raise SystemExit(trainer.stop.exit_status)
    return row


def make_trainer(
    run: Run,
    settings: Settings,
    step: Executable,
    checkpoints: Checkpoints | None,
    **options: Any,
) -> Trainer:
    """Make the Trainer of a run."""
    intervals = Intervals(
        settings.steps,
        log_every=settings.log_every,
        save_every=settings.save_every,
        evaluate_every=settings.dev_every,
        minutes=settings.minutes,
    )
    options = {
        "checkpoints": checkpoints,
        "metrics": run.metrics,
        "summaries": run.summaries,
        "seed": settings.seed,
        "advice": ADVICE,
        "flops": step.artifact.flops,
        **options,
    }
    if settings.by_language:
        from examples.m4.bilingual.training import make_trainer as make_bilingual_trainer

        return make_bilingual_trainer(run, settings, step, intervals, **options)

    def feed(batch: dict[str, np.ndarray], steps_taken: int) -> dict[str, Any]:
        seed = (settings.seed * 1_000_003 + steps_taken) % 2**31
        return step.feed({**batch, "seed": np.int32(seed)})

    evaluate = None
    if settings.dev_every:
        dev = load(run.artifact("evaluate", settings, options.get("say", print)))
        evaluate = lambda state: {"dev_loss": measure_dev_loss(dev, state, run, settings)}
    return Trainer(
        step,
        open_batches(run, settings, "train"),
        intervals,
        feed=feed,
        # Every process has as many packed rows, and about as many tokens in them.
        count_tokens=lambda batch: count_tokens(batch) * jax.process_count(),
        evaluate=evaluate,
        **options,
    )


def open_batches(run: Run, settings: Settings, split: str) -> Batches:
    """Open the stream of packed batches of train, or of dev; each process reads its own rows."""
    count, index = jax.process_count(), jax.process_index()
    return Batches(
        run.tokens(split),
        settings.rows,
        settings.source_length,
        settings.target_length,
        seed=settings.seed if split == "train" else 0,
        temperature=settings.temperature,
        repeat=settings.repeat if split == "train" else "pair",
        process=index,
        processes=count,
    )


def count_tokens(batch: dict[str, np.ndarray]) -> int:
    """Count the tokens of both sides that are not padding."""
    return int(sum((batch[f"{side}_segments"] > 0).sum() for side in ("source", "target")))


def measure_dev_loss(evaluate: Executable, state: State, run: Run, settings: Settings) -> float:
    """Measure the mean cross entropy of the first packed batches of the dev set."""
    stream = open_batches(run, settings, "dev").read_from(None)
    batches = (evaluate.feed(next(stream)[0]) for _ in range(settings.dev_batches))
    means = average_results(
        evaluate, share_state(state, evaluate), batches, names=["cross_entropy"]
    )
    return float(means["cross_entropy"])
