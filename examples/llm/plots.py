"""The loss curves of all runs of a folder in one plot."""

from __future__ import annotations

import math
import pathlib

from namedmesh.training import read_metrics


def draw(folder: pathlib.Path, baselines: dict[str, float]) -> pathlib.Path | None:
    """Draw the runs of a folder, with lines for simple models; return the file."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return None
    figure, axes = pyplot.subplots(figsize=(8, 4.4))
    for path in sorted(folder.glob("*/metrics.jsonl")):
        rows = read_metrics(path)
        curves = [
            [(row["step"], row[name] / math.log(2)) for row in rows if name in row]
            for name in ("cross_entropy", "dev_loss")
        ]
        if not all(curves):
            continue
        (line,) = axes.plot(*zip(*curves[0], strict=True), linewidth=1, alpha=0.5)
        axes.plot(
            *zip(*curves[1], strict=True), "o-", color=line.get_color(), label=path.parent.name
        )
    beside = axes.get_yaxis_transform()
    for name, bits in baselines.items():
        axes.axhline(bits, color="gray", linewidth=0.8, linestyle="--")
        label = f"{name}: {bits:.2f}"
        axes.text(1.01, bits, label, color="gray", fontsize=8, va="center", transform=beside)
    axes.set(xlabel="steps", ylabel="bits per byte (faint: train, dots: dev)", ylim=(1.4, 4))
    axes.legend()
    figure.tight_layout()
    figure.savefig(folder / "loss.png", dpi=110)
    pyplot.close(figure)
    return folder / "loss.png"
