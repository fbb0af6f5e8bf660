"""The links that a step's collectives take on nodes of GPUs, and the order of axes that helps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from namedmesh.artifacts.artifact import Artifact
from namedmesh.dims.mesh import Mesh
from namedmesh.display.text import human
from namedmesh.errors.errors import NamedMeshError
from namedmesh.records.collective import Collective
from namedmesh.records.crossing import count_crossing_bytes

MOST_AXES = 6  # whose orders are all tried


@dataclass(frozen=True)
class Link:
    """Bytes that the collectives along some axes send in a step, as planned.

    Attributes:
        axes: The mesh axes.
        link: `NVLink`, or `NVLink and NICs` where they go across nodes.
        wire_bytes: The bytes that one GPU sends.
        node_bytes: The bytes that leave a node.
    """

    axes: tuple[str, ...]
    link: str
    wire_bytes: int
    node_bytes: int


def list_links(artifact: Artifact, nodes: int) -> tuple[Link, ...]:
    """Add up what collectives send along each set of axes, the heaviest first."""
    mesh = _on_nodes(artifact.mesh, [*artifact.mesh.axes], nodes)
    by_axes: dict[tuple[str, ...], list[Collective]] = {}
    for one in artifact.collectives:
        by_axes.setdefault(one.axes, []).append(one)
    rows = []
    for axes, ones in by_axes.items():
        leaving = _count_leaving(ones, mesh, nodes) if mesh else 0
        link = "NVLink and NICs" if leaving or not mesh else "NVLink"
        rows.append(Link(axes, link, sum(one.total_wire_bytes for one in ones), leaving))
    return tuple(sorted(rows, key=lambda row: (-row.node_bytes, -row.wire_bytes)))


def advise(artifact: Artifact, nodes: int) -> str | None:
    """Name the order of a mesh's axes in which much less leaves a node, if there is one."""
    axes = [axis for axis, size in artifact.mesh.axes.items() if size > 1]
    if nodes == 1 or not 1 < len(axes) <= MOST_AXES or artifact.mesh.device_assignment:
        return None
    orders = [_on_nodes(artifact.mesh, order, nodes) for order in itertools.permutations(axes)]
    leaving = {
        mesh: _count_leaving(artifact.collectives, mesh, nodes) for mesh in filter(None, orders)
    }
    best = min(leaving, key=lambda mesh: leaving[mesh], default=None)
    listed = _on_nodes(artifact.mesh, axes, nodes)
    if best is None or (listed and 2 * leaving[best] > leaving[listed]):
        return None
    now = human(leaving[listed]) if listed else "more"
    return (
        f"{now} leave a node in a step, and {human(leaving[best])} would with the axes in the "
        f"order of {best}: the last ones stay inside a node"
    )


def _on_nodes(mesh: Mesh, order: Sequence[str], nodes: int) -> Mesh | None:
    """Return a mesh with its axes in an order, on nodes; None if its axes do not divide so."""
    try:
        return Mesh(None, hosts=nodes, **{axis: mesh.axes[axis] for axis in order})
    except NamedMeshError:
        return None


def _count_leaving(collectives: Sequence[Collective], mesh: Mesh, nodes: int) -> int:
    """Count the bytes that leave a node."""
    return sum(
        one.times * count_crossing_bytes(one.kind, one.bytes, one.axes, mesh, nodes, one.hop)
        for one in collectives
    )
