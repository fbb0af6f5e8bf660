"""The plan as tables that a person reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from namedmesh.dims.mesh import Mesh
from namedmesh.display.html import html_details, html_table
from namedmesh.display.text import columns, human
from namedmesh.records.collective import Collective, format_times
from namedmesh.records.tensor import TensorRecord


def format_tensors(tensors: Iterable[TensorRecord]) -> str:
    """Format every tensor with the axes its dimensions hold; equal rows once."""
    rows = [("tensor", "dims with the axes they hold", "bytes/device", "padding", "line")]
    for one in dict.fromkeys(tensors):
        padding = f"{one.padding:.0%}" if one.padding else ""
        rows.append((one.tensor, one.place, human(one.bytes_per_device), padding, str(one.source)))
    return "\n".join(columns(rows))


def format_communication(phases: Mapping[str, Sequence[Collective]], mesh: Mesh) -> str:
    """Format every collective with the line it comes from, and the totals of each phase.

    Beside the bytes of the buffer stands what a device sends, by the usual algorithm, and what
    leaves a host or slice where there are several. Scopes have a column if there are any.
    """
    scoped = any(one.scope for collectives in phases.values() for one in collectives)
    crossing = [f"leaves a {block}" for block in mesh.blocks]
    sizes = ("bytes/device", "on the wire", *crossing, "times")
    head = ("phase", "collective", "axes", "tensor", *sizes, *["scope"] * scoped, "line")
    rows: list[tuple[str, ...]] = [head]
    totals = []
    for phase, collectives in phases.items():
        kinds: dict[str, int] = {}
        for one in collectives:
            line = f"{one.source}: {one.source.code}"
            axes, times = "+".join(one.axes), format_times(one.times, one.open_ended)
            axes += f" {one.hop.direction}" if one.hop else ""
            sizes = (human(one.bytes), human(one.wire_bytes), *_crossing_cells(one, mesh), times)
            scope = [one.scope] * scoped
            rows.append((phase, one.kind, axes, one.tensor, *sizes, *scope, line))
            kinds[one.kind] = kinds.get(one.kind, 0) + one.times
        text = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "nothing"
        moved = sum(one.total_bytes for one in collectives)
        sent = sum(one.total_wire_bytes for one in collectives)
        wire = f", {human(sent)} on the wire" if collectives else ""
        wire += "".join(
            f"; of a {block}'s {human(sent * (mesh.devices // count))}, "
            f"{human(_sum_crossing(collectives, block))} go to other {block}s"
            for block, count in mesh.blocks.items()
            if collectives
        )
        totals.append(f"  total {phase}: {text}, {human(moved)} per device{wire}")
    return "\n".join(([*columns(rows), ""] if len(rows) > 1 else []) + totals)


def _crossing_cells(one: Collective, mesh: Mesh) -> list[str]:
    """What leaves a host and a slice each time, where there are several."""
    return [human(getattr(one, f"{block}_bytes")) for block in mesh.blocks]


def _sum_crossing(collectives: Iterable[Collective], block: str) -> int:
    """What leaves a host, or a slice, in all runs of some collectives."""
    return sum(getattr(one, f"total_{block}_bytes") for one in collectives)


def format_plan_html(
    tensors: Iterable[TensorRecord], phases: Mapping[str, Sequence[Collective]], mesh: Mesh
) -> list[str]:
    """Format a plan for notebooks: totals, and collectives and tensors that unfold."""
    crossing = tuple(f"leaves a {block}" for block in mesh.blocks)
    sizes = ("collectives", "bytes/device", "on the wire", *crossing, "times")
    totals = [
        (
            phase,
            f"{sum(one.times for one in ones):,}",
            human(sum(one.total_bytes for one in ones)),
            human(sum(one.total_wire_bytes for one in ones)),
            *(human(_sum_crossing(ones, block)) for block in mesh.blocks),
        )
        for phase, ones in phases.items()
        if ones
    ]
    named = [
        (row.tensor, human(row.bytes_per_device), row.place, str(row.source))
        for row in dict.fromkeys(tensors)
    ]
    rows = [_collective_cells(phase, one, mesh) for phase, ones in phases.items() for one in ones]
    sent = ("on the wire", *crossing, "times")
    head = ("phase", "collective", "axes", "tensor", *sent, "scope", "line")
    heads = (("phase", *sizes[:-1]), head, ("tensor", "bytes/device", "dims", "line"))
    made, moved, placed = (
        html_table(head, cells, sizes)
        for head, cells in zip(heads, (totals, rows, named), strict=True)
    )
    return [
        made,
        html_details(f"{len(rows):,} collectives", moved),
        html_details(f"{len(named):,} tensors, with the axes that their dimensions hold", placed),
    ]


def _collective_cells(phase: str, one: Collective, mesh: Mesh) -> tuple[str, ...]:
    """A collective as a row of a table in a notebook."""
    axes = "+".join(one.axes) + (f" {one.hop.direction}" if one.hop else "")
    line, times = f"{one.source}: {one.source.code}", format_times(one.times, one.open_ended)
    sent = (human(one.wire_bytes), *_crossing_cells(one, mesh), times)
    return phase, one.kind, axes, one.tensor, *sent, one.scope, line
