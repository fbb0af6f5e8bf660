"""A step on an H200 by the lines of the program: kernels of a profile beside estimates.

A kernel has the name of one of the ops that are fused in it, often not the one by which the
estimate calls them, so that neighbouring lines of a layer trade milliseconds.
"""

from __future__ import annotations

import pathlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import namedmesh as nm
from namedmesh.ir.op import Op

FACTOR = 1.5  # between an estimate and what was measured, where they are close
LEAST = 0.1  # milliseconds: lines that take less, measured and estimated, are added up


def compare_lines(cost: nm.Cost, profile: Mapping[str, Any]) -> dict[str, Any]:
    """Put the kernels of a profile beside the ops of an estimate, by line and by kind of op.

    Args:
        cost: The estimate of a step.
        profile: What `python -m benchmarks.gpu.measure namedmesh MODEL FOLDER --profile` printed.

    Returns:
        Milliseconds of a step: `lines`, the longest first, `rest` of those that are short or that
        nothing is known of, and `kinds` over all lines. `close` counts the lines whose estimate is
        within `FACTOR`, with their share of what was measured.
    """
    ops = {name: op for op, name in cost.plan.placements.names.items()}
    measured: dict[str, Counter[str]] = defaultdict(Counter)
    estimated: dict[str, Counter[str]] = defaultdict(Counter)
    for name, ms in profile["ops"].items():
        line, kind = (_line_of(ops[name]), _kind_of(ops[name])) if name in ops else ("", "")
        measured[line][kind] += ms
    for one in cost.ops:
        ms = 1e3 * one.total_seconds
        estimated[_line_of(one.op)][_kind_of(one.op)] += ms  # type: ignore[assignment]
    rows = [_row(line, measured[line], estimated[line]) for line in {*measured, *estimated}]
    rows.sort(key=lambda row: (-max(row["measured_ms"], row["estimate_ms"]), row["line"]))
    long = [row for row in rows if row["line"] and _is_long(row)]
    short = [row for row in rows if not row["line"] or not _is_long(row)]
    close = [row for row in long if _is_close(row)]
    all_ms = sum(row["measured_ms"] for row in rows)
    totals = [sum(counters.values(), Counter()) for counters in (measured, estimated)]
    kinds = sorted({*totals[0], *totals[1]}, key=lambda kind: -max(t[kind] for t in totals))
    return {
        "model": profile["model"],
        "device": profile["device"],
        "busy_ms": round(profile["busy_ms"], 2),
        "estimate_ms": round(1e3 * cost.compute_seconds, 2),
        "close": {
            "lines": len(close),
            "of": len(long),
            "share": round(sum(row["measured_ms"] for row in close) / all_ms, 3),
        },
        "lines": long,
        "rest": {
            name: round(sum(row[name] for row in short), 3)
            for name in ("measured_ms", "estimate_ms")
        },
        "kinds": {kind or "unknown": [round(t[kind], 2) for t in totals] for kind in kinds},
    }


def _line_of(op: Op) -> str:
    """Return a source line, without the folder of its file."""
    return f"{pathlib.Path(op.source.file).name}:{op.source.line}"


def _kind_of(op: Op) -> str:
    return f"{op.kind} {op.phase}"


def _row(line: str, measured: Counter[str], estimated: Counter[str]) -> dict[str, Any]:
    """Return one line: measured and estimated milliseconds, and both by kind of op."""
    kinds = sorted({*measured, *estimated}, key=lambda one: -max(measured[one], estimated[one]))
    return {
        "line": line,
        "measured_ms": round(sum(measured.values()), 3),
        "estimate_ms": round(sum(estimated.values()), 3),
        "kinds": {
            kind: [round(measured[kind], 3), round(estimated[kind], 3)]
            for kind in kinds
            if max(measured[kind], estimated[kind]) >= LEAST
        },
    }


def _is_long(row: Mapping[str, Any]) -> bool:
    return max(row["measured_ms"], row["estimate_ms"]) >= LEAST


def _is_close(row: Mapping[str, Any]) -> bool:
    measured, estimate = row["measured_ms"], row["estimate_ms"]
    return measured <= FACTOR * estimate and estimate <= FACTOR * measured


def lines_table(result: Mapping[str, Any], count: int = 10) -> str:
    """Return the longest lines of a model as a table for people."""
    close = result["close"]
    title = (
        f"{result['model']}: estimated {result['estimate_ms']} ms, busy {result['busy_ms']} ms; "
    )
    title += f"{close['lines']} of {close['of']} lines within {FACTOR}, {close['share']:.0%} of it"
    names = ["line", "measured, ms", "estimate, ms", "ratio", "ops (measured / estimate)"]
    rows = [f"{title}\n", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in result["lines"][:count]:
        ratio = f"{row['estimate_ms'] / row['measured_ms']:.2f}" if row["measured_ms"] else "-"
        ops = [f"{kind} {a:.2f} / {b:.2f}" for kind, (a, b) in list(row["kinds"].items())[:3]]
        cells = [row["line"], f"{row['measured_ms']:.2f}", f"{row['estimate_ms']:.2f}", ratio]
        rows.append(f"| {' | '.join([*cells, ', '.join(ops)])} |")
    return "\n".join(rows)
