"""A comparison as people read it: totals first, then the changes, the largest first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from namedmesh.diff.changes import Changes
from namedmesh.diff.totals import METRICS, format_change, format_figure
from namedmesh.display.text import columns, human
from namedmesh.planning.plan_record import (
    CollectiveRecord,
    PlanRecord,
    TensorRecord,
    shape_of,
)


def format_diff(
    sides: tuple[PlanRecord, PlanRecord],
    totals: Mapping[str, tuple[float | None, float | None]],
    tensors: Changes[TensorRecord],
    collectives: Changes[CollectiveRecord],
    most: int | None,
) -> str:
    """Format a comparison."""
    parts = [_format_head(*sides)]
    if not totals:
        both = f"{tensors.equal} tensors and " if all(side.tensors for side in sides) else ""
        return "\n".join([*parts, f"  the same: {both}{collectives.equal} collectives"])
    parts += [_format_totals(totals), _format_collectives(collectives, most)]
    if all(side.tensors for side in sides):
        parts.append(_format_tensors(tensors, most))
    return "\n\n".join(parts)


def _format_head(before: PlanRecord, after: PlanRecord) -> str:
    """What both sides are plans of, and in which of it they differ, where both say so."""
    program = _arrow(before.program or after.program, after.program or before.program)
    facts = {
        "mesh": (_format_mesh(before), _format_mesh(after)),
        "layout": (_format_layout(before), _format_layout(after)),
        "params": (_format_params(before), _format_params(after)),
        "compared": (before.origin, after.origin),
        "target": (before.target, after.target),
    }
    different = {name: pair for name, pair in facts.items() if pair[0] != pair[1] and all(pair)}
    head = program or "what the compiler made"
    for name, words in (("mesh", " on "), ("layout", ", layout "), ("target", ", target ")):
        known = facts[name][0] or facts[name][1]
        head += words + known if known and name not in different else ""
    return "\n".join([head, *(f"  {name}: {_arrow(*pair)}" for name, pair in different.items())])


def _format_layout(record: PlanRecord) -> str:
    return repr(record.layout) if record.origin in ("plan", "artifact") or record.layout else ""


def _format_params(record: PlanRecord) -> str:
    if not _format_layout(record):
        return ""
    return "as the layout" if record.params == record.layout else repr(record.params)


def _format_mesh(record: PlanRecord) -> str:
    sizes = ", ".join(f"{name}={size}" for name, size in record.mesh.items())
    return f"Mesh({sizes})" if sizes else ""


def _format_totals(totals: Mapping[str, tuple[float | None, float | None]]) -> str:
    """The totals that differ, and the main ones that do not."""
    rows = [("total", "before", "after", "change")]
    main = ("bytes", "wire_bytes", "memory", "seconds", "least_seconds")
    for name in METRICS:
        before, after = totals[name]
        if before == after and (before is None or name not in main):
            continue
        change = "" if before is None or after is None else format_change(before, after)
        rows.append((name, _format_known(name, before), _format_known(name, after), change))
    return "\n".join(columns(rows))


def _format_known(name: str, value: float | None) -> str:
    return "unknown" if value is None else format_figure(name, value)


def _format_collectives(changes: Changes[CollectiveRecord], most: int | None) -> str:
    weighted = [
        (new.total_wire_bytes - old.total_wire_bytes, _change(old, new))
        for old, new in changes.changed
    ]
    weighted += [(one.total_wire_bytes, f"+ {_describe(one)}") for one in changes.came]
    weighted += [(one.total_wire_bytes, f"- {_describe(one)}") for one in changes.went]
    head = f"  collectives: {_count(changes, 'changed')}"
    return "\n".join([head, *_largest(weighted, most)])


def _format_tensors(changes: Changes[TensorRecord], most: int | None) -> str:
    weighted = [
        (new.bytes_per_device - old.bytes_per_device, _move(old, new))
        for old, new in changes.changed
    ]
    weighted += [(one.bytes_per_device, f"+ {_locate(one)}") for one in changes.came]
    weighted += [(one.bytes_per_device, f"- {_locate(one)}") for one in changes.went]
    return "\n".join([f"  tensors: {_count(changes, 'moved')}", *_largest(weighted, most)])


def _count(changes: Changes[Any], word: str) -> str:
    numbers = (len(changes.changed), len(changes.came), len(changes.went), changes.equal)
    words = (word, "came", "went", "the same")
    return ", ".join(f"{number} {what}" for number, what in zip(numbers, words, strict=True))


def _largest(weighted: Iterable[tuple[int, str]], most: int | None) -> list[str]:
    """The lines of the largest changes, equal ones once, and how many are left out."""
    texts = [text for _, text in sorted(weighted, key=lambda one: -abs(one[0]))]
    lines = [
        f"    {text} ({count} of them)" if count > 1 else f"    {text}"
        for text, count in Counter(texts).items()
    ]
    hidden = len(lines) - (len(lines) if most is None else most)
    return lines if hidden <= 0 else [*lines[:most], f"    and {hidden} more"]


def _name(one: CollectiveRecord | TensorRecord) -> str:
    """What a tensor is called, with its scope unless the name has it already."""
    return one.tensor if one.scope in one.tensor else f"{one.tensor} in {one.scope}"


def _arrow(old: str, new: str) -> str:
    return new if old == new else f"{old} -> {new}"


def _way(one: CollectiveRecord) -> str:
    """The axes, and from which neighbour an op gets what it lacks."""
    neighbour = re.search(r"from -?\d+", one.hop)
    return "+".join(one.axes) + (f" {neighbour.group()}" if neighbour else "")


def _describe(one: CollectiveRecord) -> str:
    of = f" of {_name(one)}" if one.tensor else f" in {one.dtype}"
    times = f", {one.times} times" if one.times != 1 else ""
    size = human(one.total_wire_bytes)
    leaves = _leaves(one, one)
    return f"{one.phase} {one.kind}{of} over {_way(one)}: {size} on the wire{leaves}{times}"


def _leaves(old: CollectiveRecord, new: CollectiveRecord) -> str:
    """What leaves a host, or a slice where hosts are not told apart from slices."""
    if not old.host_bytes and not new.host_bytes:
        return ""
    return f", {_arrow(human(old.total_host_bytes), human(new.total_host_bytes))} leaves a host"


def _change(old: CollectiveRecord, new: CollectiveRecord) -> str:
    of = f" of {_name(new)}" if new.tensor else ""
    kind, way = _arrow(old.kind, new.kind), _arrow(_way(old), _way(new))
    size = _arrow(human(old.total_wire_bytes), human(new.total_wire_bytes))
    dtype = "" if old.dtype == new.dtype else f", {old.dtype} -> {new.dtype}"
    times = "" if old.times == new.times else f", {old.times} -> {new.times} times"
    leaves = _leaves(old, new)
    return f"~ {new.phase} {kind}{of} over {way}: {size} on the wire{leaves}{dtype}{times}"


def _locate(one: TensorRecord) -> str:
    return f"{_name(one)}: {one.place}, {human(one.bytes_per_device)}"


def _move(old: TensorRecord, new: TensorRecord) -> str:
    size = _arrow(human(old.bytes_per_device), human(new.bytes_per_device))
    return f"~ {_name(new)}: {_format_move(old.place, new.place)}, {size}"


def _format_move(old: str, new: str) -> str:
    """A shape, and of each dimension that moved the axes before and after."""
    shape = shape_of(new)
    if shape_of(old) != shape or old == new or " parts/" in old + new:
        return _arrow(old, new)
    moves = []
    for one, other in zip(_split_place(old), _split_place(new), strict=True):
        name, axes = one[0].partition("=")[0], (one[1] or "whole", other[1] or "whole")
        moves += [f"{name} {' -> '.join(axes)}"] if one != other else []
    return f"{shape}: {', '.join(moves)}"


def _split_place(place: str) -> list[tuple[str, str]]:
    """The dimensions of a place, each with the axes it holds."""
    cells = place.partition("[")[2].rstrip("]").split(", ")
    return [(cell.partition("/")[0], cell.partition("/")[2]) for cell in cells]
