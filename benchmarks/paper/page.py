"""The page *The paper, section by section*, made from the rows."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Sequence

from benchmarks.paper.rows import TOLERANCE, Row

FOLDER = "docs"  # of the page
WIDTH = 100  # letters of a command in a line

INTRODUCTION = """\
# The paper, section by section

Claims of [GShard](https://arxiv.org/abs/2006.16668), from its abstract to its appendix, beside what
this project has. *Ours* is read from a result file or computed by the command, never typed.

*Equal* means within {tolerance:.0%} of the paper's number, or {tolerance} of an exponent, or that
what the paper says holds. *Better* and *worse* are for numbers of which one end is good. *Differs*
has its reason. There was no TPU: times on TPU v3 are estimates of [`nm.cost`](guides/cost.md), and
memory is what the [TPU's compiler](guides/tpus.md) reports. The
[translation models](guides/examples.md) are small. Of {count} claims {summary}.

```bash
python -m benchmarks.paper --json paper.json             # all rows
python -m benchmarks.paper --section 3.3                 # those of some sections
python -m benchmarks.paper --page docs/paper.md          # this page
```
"""


def link(path: str) -> str:
    """Return a link to a page of the documentation, or the path of another file."""
    file, _, anchor = path.partition("#")
    if not file.startswith(f"{FOLDER}/"):
        return f"`{path}`"
    name = os.path.basename(file).removesuffix(".md").replace("-", " ")
    target = os.path.relpath(file, FOLDER)
    return f"[{name}]({target}{'#' + anchor if anchor else ''})"


def format_status(status: str) -> str:
    """Return a status with its word in bold."""
    word, colon, why = status.partition(": ")
    return f"**{word}**{colon}{why}"


def escape(text: str) -> str:
    """Return a text that a cell of a table can have."""
    return text.replace("|", "\\|").replace("[", "\\[").replace("]", "\\]").replace("*", "\\*")


def format_numbers(numbers: Sequence[int]) -> str:
    """Return numbers as ranges: 1 to 3, 7."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in ranges)


def break_command(command: str) -> str:
    """Return a command in lines that need no scrolling."""
    lines = textwrap.wrap(command, WIDTH, break_long_words=False, break_on_hyphens=False)
    return " \\\n    ".join(lines)


def format_section(title: str, numbered: Sequence[tuple[int, Row]]) -> str:
    """Return the table of a section, and the commands that make its rows."""
    lines = [f"## {title}", "", "| | claim | paper | ours | status | where |", "|---" * 6 + "|"]
    commands: dict[str, list[int]] = {}
    for number, row in numbered:
        where = "<br>".join(link(path) for path in row.where)
        cells = [str(number), *(escape(one) for one in (row.claim, row.paper, row.ours))]
        lines.append(f"| {' | '.join([*cells, escape(format_status(row.status)), where])} |"
                     .replace("\\*\\*", "**"))  # fmt: skip
        commands.setdefault(row.command, []).append(number)
    lines += ["", "```bash"]
    for command, numbers in commands.items():
        lines += [f"# {format_numbers(numbers)}", break_command(command)]
    return "\n".join([*lines, "```", ""])


def format_page(rows: Sequence[Row]) -> str:
    """Return the page."""
    counts = Counter(row.status.partition(":")[0] for row in rows)
    words = [f"{counts[word]} are {word}" for word in ("equal", "better", "worse") if counts[word]]
    words += [f"{counts['differs']} differ"] if counts["differs"] else []
    summary = " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
    parts = [INTRODUCTION.format(tolerance=TOLERANCE, count=len(rows), summary=summary)]
    sections: dict[str, list[tuple[int, Row]]] = {}
    for number, row in enumerate(rows, 1):
        sections.setdefault(row.section, []).append((number, row))
    return "\n".join([*parts, *(format_section(*one) for one in sections.items())])
