"""Where what a loop carries from turn to iteration lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from namedmesh.dims.sharding import Sharding
from namedmesh.ir.op import Op
from namedmesh.planning.planner import Planner


def place_of_carry(planner: Planner, op: Op, i: int) -> Sharding:
    """Where a loop's carry lies: where it starts, or, for a constant, where the layout says."""
    tensor = op.inputs[i]
    sharding = planner.place_in_use(op, i, False)
    if tensor in planner.plan.free and tensor.primal is not None:
        return planner.plan.shardings[tensor]
    if planner.plan.producers[tensor].constant or tensor in planner.plan.free:
        layout, held = planner.plan.layout, sharding.mapping
        full, contested = planner.give_due_axes(tensor, held, sharding.whole, layout)
        if contested:
            held |= _settle_contest(planner, op, contested)
            full, _ = planner.give_due_axes(tensor, held, sharding.whole, layout)
        return Sharding.of(full, sharding.whole)
    return sharding


def _settle_contest(
    planner: Planner, op: Op, contested: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Give an axis that two dimensions want to the one that holds it in what the loop reads."""
    won: dict[str, tuple[str, ...]] = {}
    for axis, names in contested.items():
        for i, other in enumerate(op.inputs):
            if {*names} <= {*other.shape.names} and other not in planner.plan.free:
                place = planner.place_in_use(op, i, False)
                holders = [name for name in names if axis in place.axes(name)]
                if holders:
                    won[holders[0]] = (*won.get(holders[0], ()), axis)
                    break
    return won
