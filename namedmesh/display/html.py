"""Tables as a notebook shows them: HTML that is escaped, small, and readable on light and dark."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence

_MOST = 200  # rows of a table: what a notebook keeps in its file
# Colours come from the notebook; lines are grey at a third of its strength, which shows on both
# light and dark. Wide tables scroll.
_STYLE = (
    "<style>.namedmesh{font-size:90%}.namedmesh div{overflow-x:auto}"
    ".namedmesh table{border-collapse:collapse;font-size:inherit;color:inherit;"
    "background:transparent}.namedmesh th,.namedmesh td{padding:2px 8px;text-align:left;"
    "white-space:nowrap;border-bottom:1px solid rgba(128,128,128,.35)}"
    ".namedmesh .number{text-align:right}</style>"
)


def html_block(title: str, *parts: str) -> str:
    """Join parts under a title."""
    inner = f"<strong>{html.escape(title)}</strong>{''.join(parts)}"
    return f'<div class="namedmesh">{_STYLE}{inner}</div>'


def html_text(*lines: str) -> str:
    """Format lines of plain text."""
    return "".join(f"<div>{html.escape(line)}</div>" for line in lines)


def html_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()
) -> str:
    """Format a table of plain text."""
    kinds = [' class="number"' if name in numbers else "" for name in head]
    lines = [_html_row("th", head, kinds), *(_html_row("td", row, kinds) for row in rows[:_MOST])]
    more = html_text(f"and {len(rows) - _MOST} more") if len(rows) > _MOST else ""
    return f"<div><table>{''.join(lines)}</table></div>{more}"


def html_dimensions(title: str, sizes: Mapping[str, int], note: str) -> str:
    """Format a tensor: its dimensions with their sizes, and a line of text."""
    rows = [(name, f"{size:,}") for name, size in sizes.items()]
    table = html_table(("dimension", "size"), rows, ["size"]) if rows else ""
    return html_block(title, table, html_text(note))


def html_details(summary: str, *parts: str) -> str:
    """Hide parts behind a line that unfolds them."""
    return f"<details><summary>{html.escape(summary)}</summary>{''.join(parts)}</details>"


def _html_row(tag: str, cells: Sequence[str], kinds: Sequence[str]) -> str:
    pairs = zip(cells, kinds, strict=True)
    inner = "".join(f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for cell, kind in pairs)
    return f"<tr>{inner}</tr>"
