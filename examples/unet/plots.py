"""Plots of a run: images, their masks, the predictions, and the losses."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from namedmesh.training import read_metrics

SHOWN = 4


def draw(
    path: pathlib.Path, metrics: pathlib.Path, batch: dict[str, np.ndarray], scores: np.ndarray
) -> bool:
    """Draw images, truth and predictions, and the curves; return whether matplotlib is there."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as pyplot
    except ImportError:
        return False
    figure: Any = pyplot.figure(figsize=(12, 6.4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.7, 1])
    found, truth = scores > 0, batch["truth"] > 0
    columns = {
        "input": (batch["image"][..., 0], "gray"),
        "truth": (truth, "gray"),
        "found": (found, "gray"),
        "wrong": (found != truth, "Reds"),
    }
    count = min(SHOWN, len(scores))
    for row, sides in enumerate(left.subplots(count, len(columns), squeeze=False)):
        for side, (name, (values, colours)) in zip(sides, columns.items(), strict=True):
            side.imshow(values[row], cmap=colours, interpolation="nearest")
            side.set_xticks([])
            side.set_yticks([])
            if row == 0:
                side.set_title(name, fontsize=10)
    rows = read_metrics(metrics)
    losses, quality = right.subplots(2, 1, sharex=True)
    for side, key, label in (
        (losses, "loss", "training"), (losses, "dev_loss", "held out"), (quality, "iou", "held out")
    ):  # fmt: skip
        points = [(row["step"], row[key]) for row in rows if key in row]
        if points:
            marker = "o" if label == "held out" else None
            side.plot(*zip(*points, strict=True), label=label, marker=marker, markersize=3)
    losses.set_ylabel("weighted cross entropy")
    losses.legend()
    quality.set_ylabel("intersection over union")
    quality.set_xlabel("steps")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
