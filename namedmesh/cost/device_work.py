"""The floating point operations of one device: an op's are divided along the axes it holds."""

from __future__ import annotations

from collections.abc import Iterable

from namedmesh.ir.op import Op
from namedmesh.planning.plan import Plan


def find_axes(plan: Plan, op: Op) -> tuple[str, ...]:
    """Find the axes along which an op's work is divided: those that its tensors hold."""
    axes: set[str] = set()
    for i, tensor in enumerate(op.inputs):
        steps = plan.operands.get((op, i))
        place = steps[-1].result if steps else plan.shardings[tensor]
        axes |= {*place.used, *place.partial}
    for tensor in op.outputs:
        place = plan.natural.get(tensor, plan.shardings[tensor])
        axes |= {*place.used, *place.partial}
    return tuple(axes)


def count_flops(plan: Plan, ops: Iterable[Op]) -> float:
    """Count the floating point operations of one device."""
    total = 0.0
    for op in ops:
        if op.bodies:
            inner = [one for body in op.bodies for one in body.ops]
            once = sum(one.flops() for one in inner)
            total += op.flops() / once * count_flops(plan, inner) if once else 0
            continue
        total += op.flops() / plan.mesh.size(find_axes(plan, op))
    return total
