"""The figures of an experiment: the paper's, with the models of the grid."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from examples.m4.experiment.cells import Experiment
from examples.m4.experiment.grid import Cell
from examples.m4.experiment.table import choose_baselines, count_places, dev_curve
from examples.m4.plots import save_figure
from namedmesh.training import read_metrics

Row = dict[str, Any]
MOST_BARS = 20  # languages that a figure has bars for


def draw_figures(
    experiment: Experiment, cells: Sequence[Cell], rows: Sequence[Row]
) -> list[pathlib.Path]:
    """Draw every figure that there is data for; return their files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder = experiment.folder / "figures"
    folder.mkdir(exist_ok=True)
    table = [(cell, row) for cell, row in zip(cells, rows, strict=True) if not cell.language]
    paths = [
        _draw_quality(table, folder, pyplot),
        _draw_curves(experiment, table, folder, pyplot),
        _draw_cost(experiment, table, folder, pyplot),
        _draw_dropped(experiment, table, folder, pyplot),
        _draw_baselines(experiment, cells, rows, folder, pyplot),
        _copy_routing(experiment, table, folder),
    ]
    return [path for path in paths if path is not None]


def _draw_quality(
    table: Sequence[tuple[Cell, Row]], folder: pathlib.Path, pyplot: Any
) -> pathlib.Path:
    """Draw dev loss and chrF against the number of experts, a line for each depth."""
    figure, sides = pyplot.subplots(1, 2, figsize=(10, 3.8))
    counts = sorted({row["experts"] for _, row in table})
    for place, depth in enumerate(sorted({cell.depth for cell, _ in table})):
        for side, score in zip(sides, ("dev_loss", "chrf"), strict=True):
            means, least, most = [], [], []
            here = [
                n for n in counts if any((c.depth, r["experts"]) == (depth, n) for c, r in table)
            ]
            for count in here:
                found = [
                    row[score]
                    for cell, row in table
                    if (cell.depth, row["experts"]) == (depth, count)
                ]
                means.append(np.mean(found))
                least.append(np.min(found))
                most.append(np.max(found))
            places = [counts.index(count) for count in here]
            layers = next(row["layers"] for cell, row in table if cell.depth == depth)
            side.plot(places, means, "o-", color=f"C{place}", label=f"{layers} layers")
            side.fill_between(places, least, most, color=f"C{place}", alpha=0.2)
    for side, label in zip(sides, ("dev loss (lower is better)", "chrF"), strict=True):
        side.set_xticks(range(len(counts)), [str(count) if count else "dense" for count in counts])
        side.set(xlabel="experts", ylabel=label)
    sides[0].legend()
    return save_figure(figure, folder / "quality.png", pyplot)


def _draw_curves(
    experiment: Experiment, table: Sequence[tuple[Cell, Row]], folder: pathlib.Path, pyplot: Any
) -> pathlib.Path:
    """Draw the dev loss of every model while it is trained."""
    figure, axis = pyplot.subplots(figsize=(8, 4.2))
    lowest = []
    for cell, _ in table:
        curve = dev_curve(read_metrics(experiment.run_of(cell).metrics))
        axis.plot(
            [one["tokens"] / 1e6 for one in curve],
            [one["dev_loss"] for one in curve],
            label=cell.name,
            **_style(cell, table),
        )
        lowest.append(curve[-1]["dev_loss"])
    axis.set(xlabel="million tokens", ylabel="dev loss")
    axis.set_ylim(min(lowest) - 0.05, max(lowest) + 1.2)
    axis.legend(fontsize=8, ncols=1 + len(table) // 8)
    return save_figure(figure, folder / "curves.png", pyplot)


def _style(cell: Cell, table: Sequence[tuple[Cell, Row]]) -> dict[str, str]:
    """Return the color of a model's number of experts and recipe, and the line of its depth."""
    names = list(dict.fromkeys(one.name.split("_")[0] for one, _ in table))
    depths = sorted({one.depth for one, _ in table})
    lines = ("-", "--", ":", "-.")
    return {
        "color": f"C{names.index(cell.name.split('_')[0]) % 10}",
        "linestyle": lines[depths.index(cell.depth) % 4],
    }


def _draw_cost(
    experiment: Experiment, table: Sequence[tuple[Cell, Row]], folder: pathlib.Path, pyplot: Any
) -> pathlib.Path:
    """Draw what it takes to come to a dev loss: minutes and FLOPs, as in the paper's figure."""
    figure, sides = pyplot.subplots(1, 2, figsize=(10, 3.8), sharex=True)
    for cell, row in table:
        curve = dev_curve(read_metrics(experiment.run_of(cell).metrics))
        losses = np.minimum.accumulate([one["dev_loss"] for one in curve])
        steps = np.array([one["step"] for one in curve])
        places = count_places(experiment.run_of(cell).settings)
        for side, costs in (
            (sides[0], np.array([one["minutes"] for one in curve])),
            (sides[1], steps * row["flops_per_token"] * places),
        ):
            side.plot(losses, costs, marker=".", label=cell.name, **_style(cell, table))
    reached = [row["dev_loss"] for _, row in table]
    for side, label in zip(sides, ("minutes of training", "FLOPs"), strict=True):
        side.set_xlim(max(reached) + 0.6, min(reached) - 0.05)
        side.set(xlabel="dev loss that is reached (better to the right)", ylabel=label)
    sides[0].legend(fontsize=8 if len(table) < 8 else 6, ncols=1 + len(table) // 8)
    return save_figure(figure, folder / "cost.png", pyplot)


def _draw_dropped(
    experiment: Experiment, table: Sequence[tuple[Cell, Row]], folder: pathlib.Path, pyplot: Any
) -> pathlib.Path | None:
    """Draw the share of choices that experts did not serve, while mixtures are trained."""
    mixtures = [cell for cell, _ in table if cell.kind == "mixture"]
    if not mixtures:
        return None
    figure, axis = pyplot.subplots(figsize=(8, 3.6))
    for cell in mixtures:
        rows = [row for row in read_metrics(experiment.run_of(cell).metrics) if "no_room" in row]
        shares = [100 * (row["no_room"] + row.get("left_out", 0.0)) for row in rows]
        axis.plot([row["tokens"] / 1e6 for row in rows], shares, label=cell.name)
    axis.set(xlabel="million tokens", ylabel="% of choices not served")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8)
    return save_figure(figure, folder / "dropped.png", pyplot)


def _draw_baselines(
    experiment: Experiment,
    cells: Sequence[Cell],
    rows: Sequence[Row],
    folder: pathlib.Path,
    pyplot: Any,
) -> pathlib.Path | None:
    """Draw the differences in BLEU to bilingual baselines, from rich to poor languages."""
    compared = compare_with_baselines(experiment, cells, rows)
    if not compared:
        return None
    if len(compared) > MOST_BARS:
        return _draw_deltas(list_deltas(compared, rows), folder, pyplot)
    models = [name for name in compared[0] if name not in ("language", "train_pairs", "bilingual")]
    figure, axis = pyplot.subplots(figsize=(max(6, 0.9 * len(compared) + 2), 4))
    for place, model in enumerate(models):
        offsets = np.arange(len(compared)) + 0.8 * (place + 0.5) / len(models) - 0.4
        deltas = [row[model] - row["bilingual"] for row in compared]
        axis.bar(offsets, deltas, 0.8 / len(models), label=model)
    axis.axhline(0, color="black", linewidth=0.8)
    labels = [f"{row['language']}\n{row['train_pairs']:,}" for row in compared]
    axis.set_xticks(range(len(compared)), labels, fontsize=8)
    axis.set(xlabel="language and its train pairs", ylabel="BLEU above bilingual")
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return save_figure(figure, folder / "delta_bleu.png", pyplot)


def list_deltas(compared: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """List BLEU by language, rich to poor: of the bilingual, dense and best mixture's model."""
    losses = {row["model"]: row["dev_loss"] for row in rows if row["experts"]}
    mixture = min(losses, key=lambda name: losses[name], default="")
    return [
        {
            "language": row["language"],
            "pairs": row["train_pairs"],
            "bilingual": row["bilingual"],
            "dense": row.get("dense"),
            "mixture": row.get(mixture),
        }
        for row in compared
    ]


def _draw_deltas(deltas: Sequence[Row], folder: pathlib.Path, pyplot: Any) -> pathlib.Path:
    """Draw BLEU above bilingual, rich to poor, as the paper does: means of ten languages."""
    figure, axis = pyplot.subplots(figsize=(9, 4))
    for model in ("dense", "mixture"):
        values = [row[model] - row["bilingual"] for row in deltas if row[model] is not None]
        if len(values) == len(deltas):
            axis.plot(smooth(values), label=model)
    axis.axhline(0, color="black", linewidth=0.8)
    places = range(0, len(deltas), max(1, len(deltas) // 12))
    labels = [f"{deltas[place]['language']}\n{deltas[place]['pairs']:,}" for place in places]
    axis.set_xticks(places, labels, fontsize=7)
    axis.set(xlabel="language and its train pairs", ylabel="BLEU above bilingual, mean of ten")
    axis.legend(fontsize=8)
    return save_figure(figure, folder / "delta_bleu.png", pyplot)


def smooth(values: Sequence[float], window: int = 10) -> np.ndarray:
    """Average each value with those around it, fewer at the ends.

    >>> smooth([0.0, 2.0, 4.0, 9.0], window=2).tolist()
    [0.0, 1.0, 3.0, 6.5]
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    first = np.maximum(places - window // 2, 0)
    last = np.minimum(places + (window + 1) // 2, len(values))
    return (sums[last] - sums[first]) / (last - first)


def compare_with_baselines(
    experiment: Experiment, cells: Sequence[Cell], rows: Sequence[Row]
) -> list[Row]:
    """BLEU of every multilingual model and of the best bilingual one, rich languages first."""
    baselines = choose_baselines(cells, rows)
    compared: list[Row] = []
    scores = {
        cell.name: {row["language"]: row for row in experiment.evaluation_of(cell)["languages"]}
        for cell in cells
        if not cell.language
    }
    own: dict[str, dict[str, Row]] = {}
    for code, (cell, _) in baselines.items():
        if cell.name not in own:
            found = experiment.evaluation_of(cell)["languages"]
            own[cell.name] = {one["language"]: one for one in found}
        mine = own[cell.name][code]
        row: Row = {"language": code, "train_pairs": mine["train_pairs"], "bilingual": mine["bleu"]}
        for name, of_model in scores.items():
            if code in of_model:
                row["train_pairs"] = of_model[code]["train_pairs"]
                row[name] = of_model[code]["bleu"]
        compared.append(row)
    return sorted(compared, key=lambda row: -row["train_pairs"])


def _copy_routing(
    experiment: Experiment, table: Sequence[tuple[Cell, Row]], folder: pathlib.Path
) -> pathlib.Path | None:
    """Copy the experts of each language of the best mixture."""
    mixtures = [(row["dev_loss"], cell.name, cell) for cell, row in table if cell.kind == "mixture"]
    if not mixtures:
        return None
    source = experiment.run_of(min(mixtures)[2]).plots / "language_routing.png"
    return pathlib.Path(shutil.copy(source, folder / "routing.png")) if source.exists() else None
