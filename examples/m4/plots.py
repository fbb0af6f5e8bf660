"""Plots of a run: loss, scores by resources, expert load, and the experts of each language."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

from examples.m4.run import Run
from namedmesh.training import read_metrics


def draw(run: Run, baselines: dict[str, float] | None = None) -> list[pathlib.Path]:
    """Draw every plot that the run has data for; return their files."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as pyplot
    except ImportError:
        return []
    run.plots.mkdir(parents=True, exist_ok=True)
    paths = [_draw_loss(run, pyplot)]
    if (run.folder / "evaluation.json").exists():
        paths.append(_draw_scores(run, pyplot, baselines or {}))
    if (run.folder / "routing.json").exists():
        paths += _draw_experts(run, pyplot)
    return [path for path in paths if path is not None]


def save_figure(figure: Any, path: pathlib.Path, pyplot: Any) -> pathlib.Path:
    """Write a figure to a file."""
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _draw_loss(run: Run, pyplot: Any) -> pathlib.Path | None:
    """Draw the losses on train and dev data, by steps and by tokens."""
    rows = read_metrics(run.metrics)
    if not rows:
        return None
    figure, sides = pyplot.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for side, along, label in zip(
        sides, ("step", "tokens"), ("steps", "million tokens"), strict=True
    ):
        scale = 1e-6 if along == "tokens" else 1
        for key, name in (("cross_entropy", "train (smoothed labels)"), ("dev_loss", "dev")):
            points = [(row[along] * scale, row[key]) for row in rows if key in row]
            if points:
                side.plot(
                    *zip(*points, strict=True),
                    label=name,
                    marker="o" if key == "dev_loss" else None,
                    markersize=3,
                )
        side.set_xlabel(label)
    sides[0].set_ylabel("cross entropy")
    sides[0].legend()
    return save_figure(figure, run.plots / "loss.png", pyplot)


def _draw_scores(run: Run, pyplot: Any, baselines: dict[str, float]) -> pathlib.Path | None:
    """Draw BLEU by language from high to low resource.

    With baselines, draw the difference to them, as in the paper's figure.
    """
    rows = json.loads((run.folder / "evaluation.json").read_text(encoding="utf-8"))["languages"]
    sets = list(dict.fromkeys(row["set"] for row in rows))
    if not rows:
        return None
    figure, sides = pyplot.subplots(len(sets), 1, figsize=(10, 2.8 * len(sets)), squeeze=False)
    for (side,), name in zip(sides, sets, strict=True):
        of_set = sorted(
            (row for row in rows if row["set"] == name), key=lambda row: -row["train_pairs"]
        )
        compared = [row for row in of_set if f"{name}/{row['language']}" in baselines]
        bars = compared or of_set
        values = [row["bleu"] - baselines.get(f"{name}/{row['language']}", 0.0) for row in bars]
        side.bar(range(len(bars)), values)
        side.set_xticks(
            range(len(bars)), [row["language"] for row in bars], rotation=90, fontsize=6
        )
        side.set_ylabel("delta BLEU" if compared else "BLEU")
        side.set_title(f"{name}: languages from high to low resource", fontsize=9)
    return save_figure(figure, run.plots / ("delta_bleu.png" if baselines else "bleu.png"), pyplot)


def _draw_experts(run: Run, pyplot: Any) -> list[pathlib.Path]:
    """Draw two heat maps: the load of each layer's experts, and of one layer by language."""
    loads = json.loads((run.folder / "routing.json").read_text())["languages"]
    if not loads:
        return []
    sides = {
        side: np.array([load[side] for load in loads.values()])
        for side in next(iter(loads.values()))
    }  # language layer expert
    shared = {
        side: each / np.maximum(each.sum(-1, keepdims=True), 1e-9) for side, each in sides.items()
    }
    layers = np.concatenate([shared[side].mean(0) for side in shared])
    names = [f"{side} {i}" for side in shared for i in range(shared[side].shape[1])]
    figure, axis = pyplot.subplots(figsize=(8, max(0.4 * len(names) + 1.6, 2.4)))
    image = axis.imshow(layers, aspect="auto", cmap="viridis", vmin=0)
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel("expert")
    figure.colorbar(image, label="share of tokens")
    first = save_figure(figure, run.plots / "expert_load.png", pyplot)
    side = next(iter(shared))
    last = shared[side][:, -1]
    figure, axis = pyplot.subplots(figsize=(8, max(0.13 * len(loads) + 1.6, 3.0)))
    image = axis.imshow(last, aspect="auto", cmap="viridis", vmin=0)
    axis.set_yticks(range(len(loads)), list(loads), fontsize=6)
    axis.set_xlabel(f"expert of the last {side} layer that has any")
    figure.colorbar(image, label="share of a language's tokens")
    return [first, save_figure(figure, run.plots / "language_routing.png", pyplot)]
