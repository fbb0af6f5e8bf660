"""Training a run, from the newest checkpoint or from scratch."""

from __future__ import annotations

import hashlib
import math
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import namedmesh as nm
from examples.llm.model import LanguageModel, trace_rows
from examples.llm.settings import Settings
from examples.llm.text import Text
from namedmesh.runtime import State
from namedmesh.training import (
    Checkpoints,
    Intervals,
    NumberedBatches,
    Trainer,
    average_results,
    read_metrics,
    share_state,
)

Batch = dict[str, np.ndarray]
FREE = (
    "mesh",
    "layout",
    "params",
    "microbatches",
    "schedule",
)  # what may change between two starts of a run


def train(
    folder: pathlib.Path, settings: Settings, text: Text, say: Callable[[str], None] = print
) -> dict[str, float]:
    """Compile a run and train it to the last step.

    Returns the bytes per second, and the last dev loss in nats per byte.
    """
    save_settings(folder, settings)
    model = LanguageModel(settings)
    step, evaluation = (compile_rows(model, function) for function in (model.train, model.loss))
    weights = sum(variable.shape.elements for variable in step.plan.program.parameters.values())
    say(f"{weights:,} weights on {step.plan.mesh}; {step.audit}")
    for line in step.plan.communication.splitlines():
        if line.strip().startswith("total"):
            say(line)
    return fit(folder, step, evaluation, settings, text, say)


def fit(
    folder: pathlib.Path,
    step: nm.Step,
    evaluation: nm.Step,
    settings: Settings,
    text: Text,
    say: Callable[[str], None] = print,
) -> dict[str, float]:
    """Run compiled steps from the newest checkpoint to the last step.

    Raises SystemExit, with the status that shells expect, when a signal stops the training.
    """

    def evaluate(state: State) -> dict[str, float]:
        batches = dev_batches(text.dev, settings)
        means = average_results(evaluation, share_state(state, evaluation), batches)
        loss = float(means["cross_entropy"])
        say(f"dev: {loss / math.log(2):.3f} bits per byte")
        return {"dev_loss": loss}

    intervals = Intervals(
        settings.steps,
        log_every=max(1, settings.steps // 50),
        save_every=max(1, settings.steps // 5),
        evaluate_every=max(1, settings.steps // 10),
    )
    metrics = folder / "metrics.jsonl"
    with Checkpoints(folder / "checkpoints", keep=1) as checkpoints:
        trainer = Trainer(
            step,
            train_batches(text.train, settings),
            intervals,
            checkpoints=checkpoints,
            metrics=metrics,
            seed=settings.seed,
            count_tokens=lambda batch: batch["inputs"].size,
            evaluate=evaluate,
            say=say,
        )
        trainer.run()
    if trainer.stop:
        raise SystemExit(trainer.stop.exit_status)
    rows = read_metrics(metrics)
    speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
    dev_losses = [row["dev_loss"] for row in rows if "dev_loss" in row]
    return {"bytes_per_second": float(np.median(speeds)), "dev_loss": dev_losses[-1]}


def compile_rows(model: LanguageModel, function: Callable) -> nm.Step:
    """Compile a function of inputs and targets, under the run's layout."""
    program = trace_rows(model, function)
    return compile_program(program, model.settings)


def compile_program(program: nm.Program, settings: Settings) -> nm.Step:
    """Compile a program under a run's layout."""
    return nm.compile(program, **place_program(program, settings), strict=True)


def place_program(program: nm.Program, settings: Settings) -> dict[str, Any]:
    """Return the mesh and the layouts of a program in a run, for `nm.compile` and `nm.plan`."""
    mesh, layout = settings.devices
    params = settings.at_rest and settings.at_rest.only(program.dims)
    return {"mesh": mesh, "layout": layout.only(program.dims), "params": params}


def train_batches(data: np.ndarray, settings: Settings) -> NumberedBatches:
    """Cut rows out of the text at random places; a batch is a function of its number."""

    def make_batch(number: int) -> Batch:
        random = np.random.default_rng([settings.seed, number])
        return cut(data, random.integers(0, len(data) - settings.length, settings.batch), settings)

    return NumberedBatches(make_batch, hashlib.sha256(data.tobytes()).hexdigest())


def dev_batches(data: np.ndarray, settings: Settings) -> Iterator[Batch]:
    """Cut the held-out text into rows, one after the other."""
    starts = np.arange(0, len(data) - settings.length, settings.length)
    for first in range(0, len(starts) - settings.batch + 1, settings.batch):
        yield cut(data, starts[first : first + settings.batch], settings)


def cut(data: np.ndarray, starts: np.ndarray, settings: Settings) -> Batch:
    """Return the rows that start at some places, and the byte that follows each of theirs."""
    rows = data[starts[:, None] + np.arange(settings.length + 1)].astype(np.int32)
    return {"inputs": rows[:, :-1], "targets": rows[:, 1:]}


def save_settings(folder: pathlib.Path, settings: Settings) -> None:
    """Write the settings of a run; raise if one that has begun has others."""
    if (folder / "settings.json").exists() and any((folder / "checkpoints").glob("*")):
        before = load_settings(folder)
        same = {name: getattr(settings, name) for name in FREE}
        if before.but(**same) != settings:
            pairs = {name: (getattr(before, name), one) for name, one in vars(settings).items()}
            raise nm.NamedMeshError(
                f"{folder} is a run with other settings",
                *(
                    f"{name}: {there} there, {here} here"
                    for name, (there, here) in pairs.items()
                    if there != here and name not in FREE
                ),
                fix="use the settings of the run, or name another folder",
            )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(settings.to_json())


def load_settings(folder: pathlib.Path) -> Settings:
    """Read the settings of a run."""
    try:
        return Settings.from_json((folder / "settings.json").read_text())
    except FileNotFoundError:
        raise nm.NamedMeshError(
            f"{folder} is not a run: it has no settings.json",
            fix="train one first, or name another folder with --run",
        ) from None
