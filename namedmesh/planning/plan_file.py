"""A plan as the text of a file: facts, then a line for each tensor and each collective."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

FORMAT = "namedmesh-plan"
VERSION = 1
TENSOR_COLUMNS = (
    "tensor", "place", "bytes_per_device", "padding", "phase", "scope", "source", "function",
    "count",
)  # fmt: skip
COLLECTIVE_COLUMNS = (
    "phase", "kind", "axes", "hop", "tensor", "dtype", "elements", "bytes", "wire_bytes", "times",
    "open_ended", "devices", "scope", "op", "source", "function",
)  # fmt: skip
CROSSING_COLUMNS = ("host_bytes", "slice_bytes")  # of meshes with several hosts
_NUMBERED = {"source": r":\d+$", "op": r"\.\d+$"}
_TABLES = ("tensors", "collectives")


def write_plan(document: Mapping[str, Any], lines: bool) -> str:
    """Write a plan as JSON of which a person can read the changes."""
    facts = {"format": FORMAT, "version": VERSION}
    facts |= {name: value for name, value in document.items() if name not in _TABLES}
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in facts.items()]
    crossing = CROSSING_COLUMNS if {"hosts", "slices"} & {*document["mesh"]} else ()
    for name, columns in (
        ("tensors", TENSOR_COLUMNS),
        ("collectives", COLLECTIVE_COLUMNS + crossing),
    ):
        rows = document[name] if lines else [_strip_numbers(row) for row in document[name]]
        rows = _merge_equal(rows) if name == "tensors" else rows
        parts.append(f"{json.dumps(name)}: {_write_table(columns, rows)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _strip_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what changes with every edit above it: its line, and the number of its op."""
    found = ((name, end) for name, end in _NUMBERED.items() if name in row)
    return {**row, **{name: re.sub(end, "", row[name]) for name, end in found}}


def _merge_equal(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of tensors, equal ones as one with the sum of their counts."""
    counts: Counter[tuple[Any, ...]] = Counter()
    names = TENSOR_COLUMNS[:-1]
    for row in rows:
        counts[tuple(row[name] for name in names)] += row["count"]
    return [{**dict(zip(names, row, strict=True)), "count": n} for row, n in counts.items()]


def _write_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """A table with its columns' names, a row on each line."""
    cells = ([row[column] for column in columns] for row in rows)
    text = ",\n".join(json.dumps(row, separators=(",", ":")) for row in cells)
    return f'{{"columns": {json.dumps(columns)}, "rows": [\n{text}\n]}}'
