"""Row: a claim of the paper beside ours, with the status that a stated tolerance gives it."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TOLERANCE = 0.1  # of the paper's number, or of an exponent


@dataclass(frozen=True)
class Row:
    """A claim of the paper.

    Attributes:
        claim: What the paper says, in words.
        paper: Its figure.
        ours: The figure of this project: read from a result file or computed.
        status: `equal`, `better`, `worse`, or `differs: ` and the reason.
        where: Files of this repository in which it is built, tested or explained.
        command: What makes `ours` again; "" for the command of the section.
        section: The number and title of the paper's section.
    """

    claim: str
    paper: str
    ours: str
    status: str
    where: tuple[str, ...]
    command: str = ""
    section: str = ""


Section = Callable[[], Iterator[Row]]


def read(path: str) -> Any:
    """Return the contents of a result file."""
    return json.loads((RESULTS / path).read_text())


def compare(paper: float, ours: float, *, better: str = "", why: str = "") -> str:
    """Return the status of a number: equal within a tenth of the paper's.

    Args:
        paper: The paper's number.
        ours: Ours.
        better: Which is better, `"higher"` or `"lower"`; without it a difference needs a reason.
        why: The reason of a difference that is neither better nor worse.
    """
    if abs(ours - paper) <= TOLERANCE * abs(paper):
        return "equal"
    if why:
        return f"differs: {why}"
    return "better" if (ours > paper) == (better == "higher") else "worse"


def compare_range(paper: float, low: float, high: float, why: str) -> str:
    """Return the status of an estimated range: equal if the number is within a tenth of it."""
    inside = low * (1 - TOLERANCE) <= paper <= high * (1 + TOLERANCE)
    return "equal" if inside else f"differs: {why}"


def compare_growth(paper: float, exponent: float | None, why: str = "") -> str:
    """Return the status of an exponent of the number of devices; None is a cost of zero."""
    if abs((exponent or 0.0) - paper) <= TOLERANCE:
        return "equal"
    return f"differs: {why}" if why else "better" if (exponent or 0.0) < paper else "worse"


def holds(true: bool, why: str = "") -> str:
    """Return the status of a claim that is either so or not."""
    return "equal" if true else f"differs: {why}" if why else "worse"


def billions(weights: float) -> str:
    """Return a number of weights as the paper writes it."""
    return f"{weights / 1e9:,.0f} B" if weights >= 100e9 else f"{weights / 1e9:,.1f} B"
