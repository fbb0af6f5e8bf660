"""A cost as tables that a person reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import shorten

from namedmesh.cost.live_ranges import PeakMemory
from namedmesh.cost.op_cost import CollectiveCost, OpCost
from namedmesh.display.text import columns, human
from namedmesh.errors.source import Source
from namedmesh.records.collective import format_times

MOST = 10  # rows of a table
LONGEST_LINE = 48  # letters of a line of code


def format_seconds(seconds: float) -> str:
    """Format a time in the largest unit that keeps it above one."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def format_cost(
    title: str,
    totals: Mapping[str, str],
    ops: Sequence[OpCost],
    collectives: Sequence[CollectiveCost],
    memory: PeakMemory,
) -> str:
    """Format totals, the ops and collectives that take longest, and what memory holds."""
    parts = [title, "\n".join(columns([*totals.items()]))]
    if ops:
        parts.append(_format_ops(ops))
    if collectives:
        parts.append(_format_collectives(collectives))
    return "\n\n".join([*parts, _format_memory(memory)])


def _format_ops(ops: Sequence[OpCost]) -> str:
    """The ops that take longest."""
    rows = [("op", "in one step", "times", "bound by", "FLOPs", "bytes", "line")]
    for one in sorted(ops, key=lambda one: -one.total_seconds)[:MOST]:
        line = _format_line(one.source)
        sizes = (f"{one.flops:.3g}", human(one.bytes))
        time = format_seconds(one.total_seconds)
        rows.append((one.name, time, str(one.times), one.bound, *sizes, line))
    return "\n".join([*columns(rows), *_count_rest(len(ops), "ops")])


def _format_collectives(collectives: Sequence[CollectiveCost]) -> str:
    """The collectives that take longest."""
    rows = [("collective", "in one step", "times", "axes", "tensor", "bytes", "line")]
    for cost in sorted(collectives, key=lambda one: -one.total_seconds)[:MOST]:
        one = cost.collective
        line = _format_line(one.source)
        times = format_times(one.times, one.open_ended)
        sizes = ("+".join(one.axes), one.tensor, human(one.bytes))
        rows.append((one.kind, format_seconds(cost.total_seconds), times, *sizes, line))
    return "\n".join([*columns(rows), *_count_rest(len(collectives), "collectives")])


def _format_memory(memory: PeakMemory) -> str:
    """What memory holds at the peak."""
    at = f" (during {memory.at})" if memory.at else ""
    rows = [(f"at the peak{at}", "bytes", "dims with the axes they hold", "line")]
    for one in memory.alive[:MOST]:
        rows.append((one.label, human(one.bytes), one.place, str(one.source)))
    return "\n".join([*columns(rows), *_count_rest(len(memory.alive), "tensors")])


def _format_line(source: Source) -> str:
    """A line of the user's, shortened to fit beside the other cells."""
    return f"{source}: {shorten(source.code, LONGEST_LINE, placeholder=' ...')}"


def _count_rest(count: int, what: str) -> list[str]:
    """A line that says how many rows a table leaves out."""
    return [f"  and {count - MOST} more {what}"] if count > MOST else []
