"""python -m benchmarks.coverage --json OUT: fills the table, in several processes."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import os
import pathlib
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from benchmarks.result import publish

_LAYOUTS = flags.DEFINE_integer("layouts", 20, "Random layouts of every op.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Which layouts.")
_WORKERS = flags.DEFINE_integer("workers", 2, "Processes.", lower_bound=1)
_OPS = flags.DEFINE_multi_string("op", [], "These ops alone: --op sort --op 'scan*'.")
_PAGE = flags.DEFINE_string("page", None, "The Markdown file that the table is written to.")

# Collectives and numbers are the same, and compiling takes two thirds of the time.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def measure(names: Sequence[str], layouts: int, seed: int, workers: int) -> dict[str, Any]:
    """Fill the table; return it with `ops`, `cells` and `filled`."""
    from benchmarks.coverage.table import kind_of
    from benchmarks.coverage.workers import fill_rows

    start = time.perf_counter()
    rows = {}
    for name, row in fill_rows(names, layouts, seed, workers):
        rows[name] = row
        print(f"{len(rows)}/{len(names)} {name}", file=sys.stderr, flush=True)
    cells = {name: rows[name] for name in names}
    counts = Counter(kind_of(cell) for row in cells.values() for cell in row.values())
    return {
        "ops": list(names),
        "cells": cells,
        "filled": (counts["ok"] + counts["reason"]) / counts.total(),
        "counts": {kind: counts[kind] for kind in ("ok", "reason", "failed")},
        "layouts": layouts,
        "seed": seed,
        "seconds": time.perf_counter() - start,
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "tensorflow")},
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
    result = measure(names, _LAYOUTS.value, _SEED.value, _WORKERS.value)
    print_table(result)
    publish(result, show=False)
    if _PAGE.value:
        pathlib.Path(_PAGE.value).write_text(markdown(result))
    sys.exit(result["counts"]["failed"] > 0)


if __name__ == "__main__":
    app.run(main)
