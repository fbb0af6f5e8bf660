"""The paper's claims beside ours, section by section.

python -m benchmarks.paper --json OUT            all rows, in about a minute
python -m benchmarks.paper --section 3.3         those of some sections, printed
python -m benchmarks.paper --page docs/paper.md  the page of the documentation, and the rows of it
                                                 in benchmarks/results/paper.json

A row has what the paper says, what this project has (read from benchmarks/results or computed by
planning and tracing), the command that makes it again, and a status.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import warnings

from benchmarks.paper import details, partitioning, performance, quality
from benchmarks.paper.page import format_page
from benchmarks.paper.rows import RESULTS, Row, Section

SECTIONS: tuple[tuple[str, str, Section], ...] = (
    ("1", "Introduction: quality against cost", quality.introduction),
    ("1.2", "Design principles: one program for all devices", partitioning.introduction),
    ("2", "Model: mixtures and gating", partitioning.model),
    ("3.1", "The mixture in linear algebra", partitioning.linear_algebra),
    ("3.2", "Annotations", partitioning.sharding_api),
    ("3.3.1", "Communication primitives", partitioning.primitives),
    ("3.3.2", "Einsum, case by case", partitioning.operators),
    ("3.3.3", "A complete set of operators", partitioning.complete_set),
    ("4.2", "Dataset and baselines", quality.dataset),
    ("4.3", "The models", quality.family),
    ("4.4", "Quality", quality.results),
    ("4.5", "Training efficiency", quality.efficiency),
    ("5.1", "Memory", performance.memory),
    ("5.2", "Time", performance.runtime),
    ("5.3", "Collectives and operators", performance.collectives),
    ("A.1", "Decoding with flat beam search", details.decoding),
    ("A.2", "Details of the translation models", details.translation),
    ("A.3", "General sharding", partitioning.device_assignments),
    ("A.4", "Convolutions and windows", partitioning.convolutions),
)


def make_rows(prefix: str = "") -> list[Row]:
    """Return the rows of all sections whose number starts so."""
    rows = []
    for number, title, section in SECTIONS:
        if number != prefix and prefix and not number.startswith(prefix + "."):
            continue
        command = f"python -m benchmarks.paper --section {number}"
        for row in section():
            complete = row.command or command
            rows.append(dataclasses.replace(row, section=f"{number} {title}", command=complete))
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Make the rows, and print or write them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--section", default="", help="the number of a section, such as 3.3 or A")
    parser.add_argument("--json", type=pathlib.Path, help="the file of the rows")
    parser.add_argument("--page", type=pathlib.Path, help="the page to write, all sections")
    given = parser.parse_args(arguments)
    if given.page and given.section:
        parser.error("--page has all sections: leave --section out")
    warnings.simplefilter("ignore")  # uneven sizes are meant
    rows = make_rows(given.section)
    if not rows:
        parser.error(f"no section {given.section}; there are {', '.join(s[0] for s in SECTIONS)}")
    for row in rows:
        print(f"{row.section.split()[0]:5} {row.claim}\n      paper {row.paper}\n"
              f"      ours  {row.ours}\n      {row.status}")  # fmt: skip
    text = json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n"
    if given.json:
        given.json.write_text(text)
    if given.page:
        (RESULTS / "paper.json").write_text(text)
        given.page.write_text(format_page(rows))


if __name__ == "__main__":
    main()
