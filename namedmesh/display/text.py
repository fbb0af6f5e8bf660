"""Tables that people read: sizes in bytes, and cells that line up."""

from __future__ import annotations

from collections.abc import Sequence

from namedmesh.errors.errors import escape_controls


def human(size: float) -> str:
    """Format a number of bytes in the largest unit that keeps it above one."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """Format a time in the largest unit that keeps it above one."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def name_some(names: Sequence[str], most: int = 3) -> str:
    """Format the first of some names, and how many there are besides."""
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - most} more" if len(distinct) > most else ""
    return ", ".join(distinct[:most]) + more


def columns(rows: Sequence[Sequence[str]], indent: int = 2) -> list[str]:
    """Format rows as lines with aligned cells."""
    rows = [[escape_controls(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return [" " * indent + line.rstrip() for line in lines]
