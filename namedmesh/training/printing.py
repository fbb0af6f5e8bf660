"""Numbers as text for people: tables by rich, and durations."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from namedmesh.errors.errors import NamedMeshError
from namedmesh.training.arguments import check_real


def render_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    title: str | None = None,
) -> str:
    """Render rows of text as a table with aligned columns.

    Args:
        header: The names of the columns.
        rows: The cells; a row may be shorter than the header.
        right: The names of the columns to align to the right, as numbers are.
        title: A line above the table.

    Returns:
        The lines of the table, plain text without borders or colours.

    Example:
        >>> from namedmesh.training import render_table
        >>> rows = [["de", "31.5"], ["gd", "8.0"]]
        >>> print(render_table(["language", "BLEU"], rows, right=["BLEU"]))
        language  BLEU
        de        31.5
        gd         8.0
    """
    header, right = _check_cells("header", header), _check_cells("right", right)
    rows = [_check_cells("a row", row) for row in _check_list("rows", rows)]
    if title is not None and not isinstance(title, str):
        raise NamedMeshError(f"title is a {type(title).__name__}", fix="give a line of text")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="", show_edge=False)
    for name in header:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # Wide enough for any table: a file has no width, and a terminal wraps lines by itself.
    console = Console(file=io.StringIO(), width=10_000, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(lines if title is None else [title, *lines])


def _check_list(what: str, values: object) -> list[Any]:
    """Return values as a list, or raises."""
    scalar = getattr(values, "ndim", 1) == 0  # a 0-d array is Iterable, and raises
    if not isinstance(values, Iterable) or isinstance(values, str | bytes) or scalar:
        raise NamedMeshError(
            f"{what} is a {type(values).__name__}, expected a list", fix=f"give {what} as a list"
        )
    return list(values)


def _check_cells(what: str, values: object) -> list[str]:
    """Return the cells of a row as a list of text, or raises."""
    cells = _check_list(what, values)
    wrong = [type(cell).__name__ for cell in cells if not isinstance(cell, str)]
    if wrong:
        raise NamedMeshError(
            f"{what} has cells that are not text: {', '.join(wrong[:8])}",
            fix="give strings, e.g. str(value)",
        )
    return cells


def format_duration(seconds: float) -> str:
    """Format seconds as minutes and seconds, or hours, minutes and seconds.

    Args:
        seconds: A duration; a negative one counts as zero.

    Returns:
        The duration as text.

    >>> from namedmesh.training import format_duration
    >>> format_duration(187), format_duration(3720)
    ('3:07', '1:02:00')
    """
    number = check_real(seconds, "seconds")
    if not math.isfinite(number):
        raise NamedMeshError(f"a duration of {number} seconds", fix="give a finite number")
    minutes, whole = divmod(round(max(number, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}" if hours else f"{minutes}:{whole:02d}"
