"""Leaving: which links a step's collectives take, and the order of axes in which less leaves."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from namedmesh.dims.mesh import Mesh
from namedmesh.display.text import human
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.links import Network
from namedmesh.records.collective import Collective

MOST_AXES = 6  # whose orders are all tried


@dataclass(frozen=True)
class Link:
    """Bytes that the collectives along some axes send in a step, as planned.

    Attributes:
        axes: The mesh axes.
        link: `NVLink`, or `NVLink and NICs` where they go across nodes; of TPUs `ICI` and `DCN`.
        wire_bytes: The bytes that one device sends.
        leaving_bytes: The bytes that leave a node or slice.
    """

    axes: tuple[str, ...]
    link: str
    wire_bytes: int
    leaving_bytes: int


def list_links(collectives: Iterable[Collective], mesh: Mesh, network: Network) -> tuple[Link, ...]:
    """Add up what collectives send along each set of axes, the heaviest first."""
    by_axes: dict[tuple[str, ...], list[Collective]] = {}
    for one in collectives:
        by_axes.setdefault(one.axes, []).append(one)
    rows = []
    for axes, ones in by_axes.items():
        leaving = sum(one.times * network.leaving_bytes(one, mesh) for one in ones)
        link = " and ".join(network.links if leaving else network.links[:1])
        rows.append(Link(axes, link, sum(one.total_wire_bytes for one in ones), leaving))
    return tuple(sorted(rows, key=lambda row: (-row.leaving_bytes, -row.wire_bytes)))


def tabulate_links(links: Sequence[Link], block: str) -> list[tuple[str, ...]]:
    """Return the cells of a table, its head first."""
    rows = [
        ("+".join(one.axes), human(one.wire_bytes), one.link, human(one.leaving_bytes))
        for one in links
    ]
    return [("axes", "sends", "links", f"leaves a {block}"), *rows]


def advise(collectives: Sequence[Collective], mesh: Mesh, network: Network) -> str | None:
    """Name the order of a mesh's axes in which much less leaves a node, if there is one."""
    axes = [axis for axis, size in mesh.axes.items() if size > 1]
    blocks = network.count_blocks(mesh)
    if blocks == 1 or not 1 < len(axes) <= MOST_AXES or mesh.device_assignment:
        return None

    def count(mesh: Mesh) -> int:
        return sum(one.times * network.count_leaving(one, mesh, blocks) for one in collectives)

    leaving = {other: count(other) for other in _reorder(mesh, axes) if other.divides(blocks)}
    best = min(leaving, key=lambda mesh: leaving[mesh], default=None)
    now = count(mesh)
    if best is None or 2 * leaving[best] > now or not now:
        return None
    block = network.block
    return (
        f"{human(now)} leave a {block} in a step, and {human(leaving[best])} would with the axes "
        f"in the order of {best}: the last ones stay inside a {block}"
    )


def _reorder(mesh: Mesh, axes: Sequence[str]) -> Iterable[Mesh]:
    """Yield a mesh with its axes in each order that its hosts and slices allow."""
    for order in itertools.permutations(axes):
        try:
            sizes = {axis: mesh.axes[axis] for axis in order}
            yield Mesh(None, hosts=mesh.hosts, slices=mesh.slices, **sizes)
        except NamedMeshError:
            continue
