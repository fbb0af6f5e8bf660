"""The table of an experiment: a row for each model, with what it cost and how well it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from examples.m4.experiment.cells import Experiment
from examples.m4.experiment.grid import Cell
from examples.m4.settings import Settings
from namedmesh.runtime import Artifact
from namedmesh.training import read_metrics, render_table

COLUMNS = (
    "model", "experts", "layers", "weights", "flops_per_token", "tokens", "minutes", "dev_loss",
    "bleu", "chrf", "low", "mid", "high",
)  # fmt: skip


def make_row(experiment: Experiment, cell: Cell) -> dict[str, Any]:
    """Make the row of a cell that was trained and evaluated.

    Thirds are of chrF; a bilingual model has none. Bilingual models that were trained at once have
    the `dev_losses` of their languages.
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
        "minutes": round(curve[-1]["minutes"], 4),
        "dev_loss": round(lowest, 4),
        "bleu": round(averages["all"]["bleu"], 2),
        "chrf": round(averages["all"]["chrf"], 2),
        **{third: round(averages[third]["chrf"], 2) for third in ("low", "mid", "high")
           if third in averages and not cell.language},
        **({"dev_losses": own} if own else {}),
    }  # fmt: skip


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
    shown = [
        [
            f"{row.get(name, ''):,}" if isinstance(row.get(name), int) else str(row.get(name, ""))
            for name in COLUMNS
        ]
        for row in rows
    ]
    return render_table([*COLUMNS], shown, right=[*COLUMNS[1:]])
