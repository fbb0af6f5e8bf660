"""The rule of kernels: results lie where named ops left them; a kernel is offered if it fits."""

from __future__ import annotations

from collections.abc import Collection

from namedmesh.dims.sharding import Sharding, conversion
from namedmesh.ir.op import Op
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.control_rules import settle_pass_through
from namedmesh.planning.planner import Planner


def settle_kernel(planner: Planner, op: Op, times: int, parallel: Collection[str]) -> None:
    """Results lie where the named ops left them; the kernel is offered where its operands fit."""
    settle_pass_through(planner, op, times)
    plan = planner.plan
    held: dict[str, tuple[str, ...]] = {}
    for tensor in op.outputs:
        place = plan.shardings[tensor]
        alike = all(held.setdefault(name, axes) == axes for name, axes in place.held)
        if not alike or not place.divides(tensor.shape, planner.mesh):
            return
    if any(axes and name not in parallel for name, axes in held.items()):
        return
    wanted: dict[int, Sharding] = {}
    count = len(op.outputs)
    for i, tensor in enumerate(op.inputs[count:], count):
        place = wanted[i] = Sharding.of({n: a for n, a in held.items() if n in tensor.shape.names})
        if not place.divides(tensor.shape, planner.mesh) or not is_at_hand(planner, tensor, place):
            return
    for i, place in wanted.items():
        planner.bring_operand(op, i, place, times)
    plan.local.add(op)


def is_at_hand(planner: Planner, tensor: Tensor, place: Sharding) -> bool:
    """Whether a tensor is in a place already, or comes there without a collective of its own."""
    if tensor in planner.plan.free:
        return True
    if tensor in planner.open or tensor in planner.resting:
        return False
    steps = conversion(tensor.shape, planner.mesh, planner.plan.shardings[tensor], place)
    if all(step.kind == "Slice" for step in steps):
        return True
    if tensor in planner.captures:
        loop, _, _ = planner.captures[tensor]
        return (tensor, place) in planner.plan.captured.get(loop, {})
    return planner.plan.count_made(tensor, steps, planner.moved) == len(steps)
