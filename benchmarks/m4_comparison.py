"""Several runs of examples/m4 side by side: loss by steps, and BLEU by test set and resources.

RUNS=benchmarks/results/m4
python -m benchmarks.m4_comparison $RUNS/base $RUNS/base_dense --plot comparison.png
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics

import numpy as np

from namedmesh.training import read_metrics


def draw(runs: list[pathlib.Path], path: pathlib.Path) -> None:
    """Draw some runs, each a folder with metrics.jsonl and evaluation.json."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6))
    for i, run in enumerate(runs):
        rows, colour = read_metrics(run / "metrics.jsonl"), f"C{i}"
        for key, name, style in (("cross_entropy", "train", "-"), ("dev_loss", "dev", "o--")):
            points = [(row["step"], row[key]) for row in rows if key in row]
            left.plot(*zip(*points, strict=True), style, color=colour, label=f"{run.name}: {name}")
        averages = json.loads((run / "evaluation.json").read_text())["averages"]
        places = np.arange(len(averages)) + 0.8 * (i + 0.5) / len(runs) - 0.4
        right.bar(places, [row["bleu"] for row in averages], 0.8 / len(runs), label=run.name)
        right.set_xticks(
            range(len(averages)),
            [f"{row['set']}\n{row['resources']}" for row in averages],
            fontsize=6,
            rotation=60,
        )
    left.set(xlabel="steps", ylabel="cross entropy")
    right.set_ylabel("BLEU")
    for side in (left, right):
        side.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print a line for each run, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path)
    arguments = parser.parse_args()
    for run in arguments.runs:
        rows = [row for row in read_metrics(run / "metrics.jsonl") if "loss" in row]
        speed = statistics.median(row["tokens_per_second"] for row in rows)
        averages = json.loads((run / "evaluation.json").read_text())["averages"]
        scores = ", ".join(
            f"{row['set']} {row['bleu']:.1f}" for row in averages if row["resources"] == "all"
        )
        last = rows[-1]
        print(
            f"{run.name}: {last['step']:,} steps, {last['tokens']:,} tokens, "
            f"{speed:,.0f} tokens/s, BLEU {scores}"
        )
    if arguments.plot:
        draw(arguments.runs, arguments.plot)


if __name__ == "__main__":
    main()
