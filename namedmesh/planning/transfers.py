"""Where `nm.reshard`, `nm.replicate` and their like leave a tensor, and what a way costs."""

from __future__ import annotations

from collections.abc import Collection

from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding, conversion
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.planner import Planner
from namedmesh.records.collective import count_wire_bytes


def place_after_move(
    planner: Planner, tensor: Tensor, place: Sharding, take: Collection[str], give: Collection[str]
) -> Sharding:
    """Find where a tensor lies after a move."""
    taken = {
        name: planner.layout_axes(planner.plan.layout, name)
        for name in take
        if tensor.shape.size_of(name) > 1
    }
    wanted = {axis for axes in taken.values() for axis in axes}
    held = {
        name: tuple(axis for axis in axes if axis not in wanted)
        for name, axes in place.held
        if name not in give
    } | taken
    whole = (place.whole - {*take}) | {*give}
    if give:
        whole |= {name for name in tensor.shape.names if not held.get(name)}
    return Sharding.of(held, whole)


def price_transfers(
    mesh: Mesh, tensor: Tensor, source: Sharding, target: Sharding
) -> tuple[int, tuple[str, ...]]:
    """Find what a way costs."""
    steps = [
        step
        for step in conversion(tensor.shape, mesh, source, target)
        if step.kind not in ("Slice", "Alone")
    ]
    sent = sum(
        count_wire_bytes(step.kind, step.elements * tensor.itemsize, mesh.size(step.axes))
        for step in steps
    )
    return sent, tuple(step.kind for step in steps)
