"""Slices: products that gather an operand, or scatter a sum, shard by shard round a ring."""

from __future__ import annotations

from collections.abc import Sequence

from namedmesh.dims.sharding import Sharding, Transfer
from namedmesh.display.text import human
from namedmesh.ir.op import Op
from namedmesh.ir.placement import Ring, find_ring
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.planner import Planner


def slice_operand(planner: Planner, op: Op, i: int, place: Sharding, times: int) -> Sharding:
    """Return where a product reads an operand: in place, or before the AllGather that ends there.

    Shards then go round by CollectivePermutes, which send what the AllGather would.
    """
    tensor, state = op.inputs[i], planner.state
    # What a loop captures is gathered once, before it, and constants are not moved at all.
    captured = state.find_capture(tensor) is not None
    if op.sliced == "none" or tensor in state.constants or captured:
        return place
    steps = planner.find_way(tensor, state.shardings[tensor], place)
    shared = state.count_shared_moves(tensor, steps, state.moved)
    ring = _find_ring(planner, op, tensor, steps[shared:][-1:], "AllGather")
    if ring is None:
        return place
    _record_hops(planner, op, tensor, ring, steps[-1].elements, times)
    return steps[-1].source


def slice_sum(
    planner: Planner, op: Op, tensor: Tensor, steps: Sequence[Transfer], times: int
) -> Sharding | None:
    """Return where a product makes its sum if a ReduceScatter is first, but shard by shard."""
    ring = _find_ring(planner, op, tensor, steps[:1], "ReduceScatter")
    if ring is None:
        return None
    _record_hops(planner, op, tensor, ring, steps[0].elements, times)
    return steps[0].result


def _find_ring(
    planner: Planner, op: Op, tensor: Tensor, steps: Sequence[Transfer], kind: str
) -> Ring | None:
    """Find the ring that takes the place of a step, if the op, or the layout, asks for slices."""
    if [one.kind for one in steps] != [kind] or op in planner.state.in_slices:
        return None
    (step,) = steps
    if not planner.is_sliced(op, step.elements * tensor.itemsize):
        return None
    places = step.source, step.result
    ring = find_ring([tensor.shape] * 2, places, planner.mesh)
    assert ring is not None, "one dimension changes its axes"
    # Shards of shards begin elsewhere than slices of larger ones where sizes do not divide.
    twice = all(place.axes(ring.dim.name) for place in places)
    ways = planner.mesh.size(places[ring.tensor].axes(ring.dim.name))
    return None if twice and ring.dim.size % ways else ring


def _record_hops(
    planner: Planner, op: Op, tensor: Tensor, ring: Ring, elements: int, times: int
) -> None:
    """Record what goes round a ring instead of a collective of so many elements."""
    sent = Transfer("CollectivePermute", ring.axes, Sharding(), elements // ring.size)
    planner.state.take_slices(op)
    size = human(elements * tensor.itemsize)
    if op.sliced == "large":
        line = f"{op.source.user}: {tensor.label} goes round the devices in {ring.size} slices"
        planner.state.decide(f"{line}: it would take {size} whole", tensor)
    for way, often in ring.hops:
        planner.record_collective(op, tensor, sent, times * often, way=ring.hop(way))
