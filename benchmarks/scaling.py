"""Shared by both benchmarks of scaling: folders of results, fitted exponents, plots."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

RESULTS = pathlib.Path(__file__).parent / "results" / "operators"
IMAGES = pathlib.Path(__file__).parent.parent / "docs" / "images"
FIRST = 16  # the paper's figure of collectives starts there


def fit_exponent(costs: Mapping[int, float | None], first: int = FIRST) -> float | None:
    """Fit a power of the number of partitions to costs, by least squares of logarithms.

    Few partitions do not count: (D - 1) / D of a buffer is no power of D there. A cost of zero has
    no exponent.

    Args:
        costs: The cost at each number of partitions; None where it is not known.
        first: The fewest partitions that count.

    Returns:
        The exponent; None if a cost is zero, or fewer than two are known.
    """
    known = {count: cost for count, cost in costs.items() if count >= first and cost is not None}
    if len(known) < 2 or min(known.values()) <= 0:
        return None
    slope, _ = np.polyfit(np.log(list(known)), np.log(list(known.values())), 1)
    return round(float(slope), 3) + 0.0  # no negative zero


def save_plot(figure: Any, name: str) -> None:
    """Write a figure beside the results and for the documentation.

    Args:
        figure: The figure.
        name: The file's name.
    """
    for folder in (RESULTS, IMAGES):
        figure.savefig(folder / name, dpi=110)
