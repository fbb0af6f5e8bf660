"""The plan as tables that a person reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from namedmesh.dims.mesh import Mesh
from namedmesh.display.html import html_details, html_table
from namedmesh.display.text import columns, human
from namedmesh.records.collective import Collective, format_times
from namedmesh.records.tensor import TensorRecord


def format_tensors(tensors: Iterable[TensorRecord]) -> str:
    """Format every tensor with its sharding; equal rows once."""
    rows = [("tensor", "sharding", "bytes/device", "padding", "line")]
    for one in dict.fromkeys(tensors):
        padding = f"{one.padding:.0%}" if one.padding else ""
        rows.append((one.tensor, one.place, human(one.bytes_per_device), padding, str(one.source)))
    return "\n".join(columns(rows))


def format_communication(phases: Mapping[str, Sequence[Collective]], mesh: Mesh) -> str:
    """Format every collective with the line it comes from, and the totals of each phase."""
    scoped = any(one.scope for collectives in phases.values() for one in collectives)
    crossing = [f"leaves a {block}" for block in mesh.blocks]
    sizes = ("bytes/device", "on the wire", *crossing, "times")
    head = ("phase", "collective", "axes", "tensor", *sizes, *["scope"] * scoped, "line")
    rows: list[tuple[str, ...]] = [head]
    for phase, collectives in phases.items():
        for one in collectives:
            *cells, scope, line = _collective_cells(phase, one, mesh)
            rows.append((*cells[:4], human(one.bytes), *cells[4:], *[scope] * scoped, line))
    table = [*columns(rows), ""] if len(rows) > 1 else []
    return "\n".join([*table, *format_totals(phases, mesh)])


def format_totals(phases: Mapping[str, Sequence[Collective]], mesh: Mesh) -> list[str]:
    """Format the totals of each phase, a line each."""
    lines = []
    for phase, collectives in phases.items():
        kinds = Counter[str]()
        for one in collectives:
            kinds[one.kind] += one.times
        text = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "nothing"
        text += f", {human(_sum_up(collectives, 'bytes'))} per device"
        if collectives:
            sent = _sum_up(collectives, "wire_bytes")
            text += f", {human(sent)} on the wire"
            for block, count in mesh.blocks.items():
                leaving = human(_sum_up(collectives, f"{block}_bytes"))
                all_sent = human(sent * (mesh.devices // count))
                text += f"; of a {block}'s {all_sent}, {leaving} go to other {block}s"
        lines.append(f"  total {phase}: {text}")
    return lines


def _sum_up(collectives: Iterable[Collective], size: str) -> int:
    """Add up a size, such as wire_bytes, over all runs of some collectives."""
    return sum(getattr(one, f"total_{size}") for one in collectives)


def format_plan_html(
    tensors: Iterable[TensorRecord], phases: Mapping[str, Sequence[Collective]], mesh: Mesh
) -> list[str]:
    """Format a plan for notebooks: totals, and collectives and tensors that unfold."""
    crossing = tuple(f"leaves a {block}" for block in mesh.blocks)
    sizes = ("collectives", "bytes/device", "on the wire", *crossing, "times")
    totals, rows = [], []
    for phase, ones in phases.items():
        rows += [_collective_cells(phase, one, mesh) for one in ones]
        count, sums = sum(one.times for one in ones), ("bytes", "wire_bytes")
        sent = [_sum_up(ones, size) for size in (*sums, *(f"{b}_bytes" for b in mesh.blocks))]
        totals += [(phase, f"{count:,}", *map(human, sent))] if ones else []
    named = [
        (row.tensor, human(row.bytes_per_device), row.place, str(row.source))
        for row in dict.fromkeys(tensors)
    ]
    head = ("phase", "collective", "axes", "tensor", *sizes[2:], "scope", "line")
    placed = html_table(("tensor", "bytes/device", "dims", "line"), named, sizes)
    return [
        html_table(("phase", *sizes[:-1]), totals, sizes),
        html_details(f"{len(rows):,} collectives", html_table(head, rows, sizes)),
        html_details(f"{len(named):,} tensors and their shardings", placed),
    ]


def _collective_cells(phase: str, one: Collective, mesh: Mesh) -> tuple[str, ...]:
    """Return a collective as a row of a table."""
    axes = "+".join(one.axes) + (f" {one.hop.direction}" if one.hop else "")
    line, times = f"{one.source}: {one.source.code}", format_times(one.times, one.open_ended)
    crossing = (human(getattr(one, f"{block}_bytes")) for block in mesh.blocks)
    sent = (human(one.wire_bytes), *crossing, times)
    return phase, one.kind, axes, one.tensor, *sent, one.scope, line
