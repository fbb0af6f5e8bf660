"""python -m benchmarks.coverage --json OUT: fills the table, in several processes.

With --minutes it stops after that time, and the same command goes on where it stopped.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import json
import os
import pathlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import app, flags

from benchmarks.result import publish

_LAYOUTS = flags.DEFINE_integer("layouts", 20, "Random layouts of every op.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Which layouts.")
_WORKERS = flags.DEFINE_integer("workers", 2, "Processes.", lower_bound=1)
_OPS = flags.DEFINE_multi_string("op", [], "These ops alone: --op sort --op 'scan*'.")
_MINUTES = flags.DEFINE_float("minutes", float("inf"), "How long to try new ops.")
_PAGE = flags.DEFINE_string("page", None, "The Markdown file that the table is written to.")

# Collectives and numbers are the same, and compiling takes two thirds of the time.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def measure(
    names: Sequence[str], layouts: int, seed: int, workers: int, minutes: float, before: Any
) -> Iterator[dict[str, Any]]:
    """Fill the table; yield it after each row, with `ops`, `cells`, `filled` and what is `left`.

    What an unfinished result `before` has of the same layouts is kept.
    """
    from benchmarks.coverage.workers import OPS_PER_PROCESS, fill_rows

    start = time.perf_counter()
    unfinished = before.get("left") and (before["layouts"], before["seed"]) == (layouts, seed)
    rows, seconds = (before["cells"], before["seconds"]) if unfinished else ({}, 0.0)
    left = [name for name in names if name not in rows]
    facts = {"layouts": layouts, "seed": seed}
    yield summarize(names, rows, facts, seconds)
    while left and time.perf_counter() - start < minutes * 60:
        for name, row in fill_rows(left[: OPS_PER_PROCESS * workers], layouts, seed, workers):
            rows[name] = row
            left.remove(name)
            print(f"{len(names) - len(left)}/{len(names)} {name}", file=sys.stderr, flush=True)
            yield summarize(names, rows, facts, seconds + time.perf_counter() - start)


def summarize(
    names: Sequence[str], rows: Mapping[str, Any], facts: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    """Return the table as its file has it."""
    from benchmarks.coverage.table import kind_of

    cells = {name: rows[name] for name in names if name in rows}
    left = [name for name in names if name not in rows]
    counts = Counter(kind_of(cell) for row in cells.values() for cell in row.values())
    return {
        "ops": list(cells),
        "cells": cells,
        "filled": (counts["ok"] + counts["reason"]) / max(1, counts.total()),
        "counts": {kind: counts[kind] for kind in ("ok", "reason", "failed")},
        **facts,
        "seconds": seconds,
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "tensorflow")},
        **({"left": left} if left else {}),
    }


def main(_: list[str]) -> None:
    """Fill the table, print it, and write it down."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}"
    from benchmarks.coverage.catalogue import make_entries
    from benchmarks.coverage.kit import Kit
    from benchmarks.coverage.table import markdown, print_table

    names = [
        name
        for name in make_entries(Kit())
        if not _OPS.value or any(one == name or fnmatch.fnmatch(name, one) for one in _OPS.value)
    ]
    path = pathlib.Path(flags.FLAGS.json or "")
    before = json.loads(path.read_text()) if path.is_file() else {}
    limits = _LAYOUTS.value, _SEED.value, _WORKERS.value, _MINUTES.value
    result: dict[str, Any] = {}
    for result in measure(names, *limits, before):
        publish(result, show=False)  # whoever stops it here loses one row
    print_table(result)
    if _PAGE.value:
        pathlib.Path(_PAGE.value).write_text(markdown(result))
    sys.exit(result["counts"]["failed"] > 0 or "left" in result)


if __name__ == "__main__":
    app.run(main)
