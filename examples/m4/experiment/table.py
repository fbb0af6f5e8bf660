"""The table of an experiment: a row for each model, with what it cost and how well it does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from examples.m4.experiment.cells import Experiment
from examples.m4.experiment.grid import Cell
from examples.m4.settings import Settings
from namedmesh.runtime import Artifact
from namedmesh.training import read_metrics, render_table

COLUMNS = (
    "model", "experts", "layers", "weights", "flops_per_token", "tokens", "minutes",
    "steps_per_second", "flops", "core_years", "dev_loss", "bleu", "chrf", "low", "mid", "high",
)  # fmt: skip
YEAR = 365.25 * 86400  # seconds


def make_row(experiment: Experiment, cell: Cell) -> dict[str, Any]:
    """Make the row of a cell that was trained and evaluated.

    Thirds are of chrF; a bilingual model has none. Bilingual models that were trained at once have
    the `dev_losses` of their languages. Core-years are those of TPU v3 cores that would have taken
    the same steps, by estimate.
    """
    run = experiment.run_of(cell)
    settings = run.settings
    artifact = Artifact.load(run.artifact("train", settings, lambda text: None))
    rows = read_metrics(run.metrics)
    curve = dev_curve(rows)
    evaluation = experiment.evaluation_of(cell)
    averages = average_over_sets(evaluation)
    own = {
        one["language"]: round(one["dev_loss"], 4)
        for one in evaluation["languages"]
        if "dev_loss" in one
    }
    lowest = min(row["dev_loss"] for row in curve) if cell.language else curve[-1]["dev_loss"]
    last = curve[-1]
    return {
        "model": cell.name,
        "experts": settings.model.experts,
        "layers": settings.model.layers,
        "weights": sum(
            int(np.prod([dim.size for dim in spec.shape]))
            for spec in artifact.variables
            if spec.trainable
        ),
        "flops_per_token": round(artifact.flops / count_places(settings)),
        "tokens": int(rows[-1]["tokens"]),
        "minutes": round(last["minutes"], 4),
        "steps_per_second": round(last["step"] / (60 * last["minutes"]), 2),
        "flops": artifact.flops * last["step"],
        "core_years": float(f"{estimate_seconds(settings) * last['step'] / YEAR:.3g}"),
        "dev_loss": round(lowest, 4),
        "bleu": round(averages["all"]["bleu"], 2),
        "chrf": round(averages["all"]["chrf"], 2),
        **{third: round(averages[third]["chrf"], 2) for third in ("low", "mid", "high")
           if third in averages and not cell.language},
        **({"dev_losses": own} if own else {}),
    }  # fmt: skip


def estimate_seconds(settings: Settings) -> float:
    """Estimate the seconds of a train step on one core of a TPU v3, whatever its memory."""
    import namedmesh as nm
    from examples.m4.bilingual.programs import trace_train as trace_apart
    from examples.m4.programs import trace_train

    program = (trace_apart if settings.by_language else trace_train)(settings)
    return nm.cost(nm.plan(program, nm.Mesh(all=1), ""), "tpu-v3").seconds


def count_places(settings: Settings) -> int:
    """Count the places for tokens in a batch, of both sides, padding included."""
    models = len(settings.languages.split(",")) if settings.by_language else 1
    return models * settings.rows * (settings.source_length + settings.target_length)


def average_over_sets(evaluation: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the averages of all test sets together, by resources."""
    found: dict[str, list[dict[str, float]]] = {}
    for row in evaluation["averages"]:
        found.setdefault(row["resources"], []).append(row)
    return {
        label: {score: float(np.mean([row[score] for row in rows])) for score in ("bleu", "chrf")}
        for label, rows in found.items()
    }


def dev_curve(rows: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the dev losses of a run, with the steps, tokens and minutes of training before each.

    Minutes are those of train steps alone: of each, the seconds that were logged last.
    """
    curve, minutes, step, seconds = [], 0.0, 0, 0.0
    for row in rows:
        seconds = row.get("seconds_per_step", seconds)
        minutes += (row["step"] - step) * seconds / 60
        step = row["step"]
        if "dev_loss" in row:
            curve.append(
                {
                    "step": step,
                    "tokens": row["tokens"],
                    "minutes": minutes,
                    "dev_loss": row["dev_loss"],
                }
            )
    return curve


def tokens_to(curve: Sequence[dict[str, float]], loss: float) -> float | None:
    """Return the tokens after which a curve reaches a loss, between two measurements.

    >>> points = [(100, 4.0), (200, 3.0), (300, 2.5)]
    >>> tokens_to([{"tokens": tokens, "dev_loss": loss} for tokens, loss in points], 3.5)
    150.0
    """
    for before, after in itertools.pairwise(curve):
        if after["dev_loss"] <= loss:
            share = (before["dev_loss"] - loss) / (before["dev_loss"] - after["dev_loss"])
            return before["tokens"] + max(share, 0.0) * (after["tokens"] - before["tokens"])
    return None


def list_tokens_to_losses(curves: Mapping[str, Sequence[dict[str, float]]]) -> list[dict[str, Any]]:
    """List the million tokens that each model takes to three losses, the last one the worst end's.

    As in the paper's table, where models with more experts, and deeper ones, need fewer.
    """
    worst = max(curve[-1]["dev_loss"] for curve in curves.values())
    losses = [math.ceil(worst * 10 + more) / 10 for more in (10, 5, 0)]
    return [
        {
            "model": name,
            **{
                f"{loss:.1f}": None if found is None else round(found / 1e6, 2)
                for loss, found in ((loss, tokens_to(curve, loss)) for loss in losses)
            },
        }
        for name, curve in curves.items()
    ]


def choose_baselines(
    cells: Sequence[Cell], rows: Sequence[dict[str, Any]]
) -> dict[str, tuple[Cell, dict[str, Any]]]:
    """Choose the best try of each bilingual baseline, by its dev loss."""
    best: dict[str, tuple[Cell, dict[str, Any]]] = {}
    lowest: dict[str, float] = {}
    for cell, row in zip(cells, rows, strict=True):
        if cell.language:
            for code, loss in row.get("dev_losses", {cell.language: row["dev_loss"]}).items():
                if loss < lowest.get(code, np.inf):
                    best[code], lowest[code] = (cell, row), loss
    return best


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Format rows for a person."""

    def show(name: str, value: Any) -> str:
        if name == "flops" and value:
            return f"{value:.2e}"
        return f"{value:,}" if isinstance(value, int) else str(value)

    shown = [[show(name, row.get(name, "")) for name in COLUMNS] for row in rows]
    return render_table([*COLUMNS], shown, right=[*COLUMNS[1:]])
