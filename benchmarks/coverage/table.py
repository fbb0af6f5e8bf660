"""The table as people read it: in a terminal, and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from benchmarks.coverage.entry import COLUMNS
from benchmarks.coverage.run import Cell

INTRODUCTION = """# What every op can do

Made by running every op; `benchmarks/coverage` says how, and how to add one:

    python -m benchmarks.coverage --json coverage.json --page README.md

Each op runs under random layouts on meshes of one to three axes (8 virtual CPU devices), audited
strictly, and is compared with jax in float64: with batch dimensions split, with dimensions of its
own split, at sizes that no axis divides, with the first and the second derivative, and in bfloat16
with its derivative. Random numbers are compared with one device, and their range is checked.
✓ as expected in every run, – there is nothing to run (the number is the reason's), ✗ failed.
"""
MARKS = {"ok": "✓", "reason": "–", "failed": "✗"}
COLOURS = {"ok": "green", "reason": "dim", "failed": "bold red"}


def kind_of(cell: Cell) -> str:
    """Return whether a cell is ok, has a reason, or failed."""
    return cell if isinstance(cell, str) else next(iter(cell))


def notes_of(cells: Mapping[str, Mapping[str, Cell]], kind: str) -> dict[str, list[str]]:
    """Return the texts of cells of a kind, each with the ops and columns that say it."""
    notes: dict[str, list[str]] = {}
    for op, row in cells.items():
        for column, cell in row.items():
            if isinstance(cell, dict) and kind in cell:
                notes.setdefault(cell[kind], []).append(f"{op}: {column}")
    return notes


def print_table(result: Mapping[str, Any]) -> None:
    """Print a table with its failures, and how much of it is filled."""
    console = Console()
    table = Table(Column("op", no_wrap=True), *COLUMNS, title="what every op can do")
    for op, row in result["cells"].items():
        kinds = [kind_of(row[column]) for column in COLUMNS]
        table.add_row(escape(op), *(f"[{COLOURS[kind]}]{MARKS[kind]}[/]" for kind in kinds))
    console.print(table)
    for text, places in notes_of(result["cells"], "failed").items():
        console.print(f"{', '.join(places)}\n  {text}", markup=False, highlight=False)
    console.print(summary(result), markup=False, highlight=False)


def summary(result: Mapping[str, Any]) -> str:
    """Return one line about a table."""
    counts = result["counts"]
    return (
        f"{len(result['ops'])} ops, {result['layouts']} layouts each, seed {result['seed']}: "
        f"{counts['ok']} cells ok, {counts['reason']} with a reason, {counts['failed']} failed; "
        f"{result['filled']:.1%} filled in {result['seconds']:.0f} s"
    )


def markdown(result: Mapping[str, Any]) -> str:
    """Return the table as a page, with the reasons below."""
    reasons = list(notes_of(result["cells"], "reason"))
    lines = [
        INTRODUCTION,
        summary(result) + ".",
        "",
        f"| op | {' | '.join(COLUMNS)} |",
        "|---" * 7 + "|",
    ]
    for op, row in result["cells"].items():
        marks = []
        for column in COLUMNS:
            cell = row[column]
            number = reasons.index(cell["reason"]) + 1 if kind_of(cell) == "reason" else 0
            marks.append(f"– ({number})" if number else MARKS[kind_of(cell)])
        lines.append(f"| `{op}` | {' | '.join(marks)} |")
    lines += ["", *(f"{i}. {reason}" for i, reason in enumerate(reasons, 1))]
    failures = notes_of(result["cells"], "failed")
    lines += [f"- {', '.join(places)}: {text}" for text, places in failures.items()]
    return "\n".join(lines) + "\n"
