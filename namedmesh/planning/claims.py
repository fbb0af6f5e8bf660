"""Claims: which of two operands that want one axis for two dimensions yields, and why.

Only what the layout alone gives can yield, never what the program says (`nm.reshard` and its like):

- an axis that became free on the way yields to any other claim;
- of inputs and parameters that meet, the dimension that the layout has first keeps the axis;
- so it is where an input meets what was computed. A parameter does not yield there: tokens on their
  way to split weights are what `nm.reshard` is for.

All else is a conflict, which the user decides.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from namedmesh.ir.op import Op
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.conflicts import Claim, Conflict
from namedmesh.planning.plan import Plan
from namedmesh.planning.planner import Default, Planner


class Strength(enum.IntEnum):
    """Why a dimension has an axis, the weakest reason first."""

    FREED = 0  # the axis was idle, and the layout has the dimension on it
    DECLARED = 1  # an input or a parameter lies so, by the layout
    COMPUTED = 2  # it was computed of such
    STATED = 3  # the program says so


def yield_claim(planner: Planner, op: Op, conflict: Conflict) -> Claim | None:
    """Find the claim that yields, and notes what the next pass does not give by default."""
    order = list(planner.plan.layout.rules)

    def rank(one: tuple[Claim, Strength, Tensor]) -> tuple[bool, int]:
        """The strongest first: what is not merely freed, then what the layout has first."""
        claim, strength, _ = one
        late = order.index(claim.name) if claim.name in order else len(order)
        return strength == Strength.FREED, late

    traced = (
        (claim, *trace_claim(planner, op.inputs[claim.operand], claim, conflict.axis))
        for claim in conflict.claims
    )
    (kept, reason, _), (claim, strength, tensor) = sorted(traced, key=rank)
    yields_to = {Strength.DECLARED}
    if tensor in {*planner.plan.program.inputs.values()}:
        yields_to.add(Strength.COMPUTED)
    yields = strength == Strength.FREED or (strength == Strength.DECLARED and reason in yields_to)
    key = tensor, claim.name, conflict.axis
    if not yields or key in planner.yielded:
        return None
    planner.yielding[key] = kept.name
    return claim


def trace_claim(
    planner: Planner, tensor: Tensor, claim: Claim, axis: str
) -> tuple[Strength, Tensor]:
    """Follow a claim back to where the dimension came to hold the axis."""
    plan = planner.plan
    declared = Strength.DECLARED
    while True:
        giver, producer = planner.givers.get(tensor), plan.producers[tensor]
        if tensor in planner.resting or (giver is None and producer.given):
            return declared, tensor
        if giver is not None:
            before = _outside(giver, tensor)
        elif producer.inherits_sharding:
            holders = (x for x in producer.inputs if x in plan.shardings and x not in plan.free)
            before = next((x for x in holders if axis in plan.shardings[x].axes(claim.name)), None)
            if before is None:
                return Strength.FREED, tensor
            if not producer.same_value:
                declared = Strength.COMPUTED
        else:
            before = None
        if before is None:
            return Strength.STATED, tensor
        if axis not in plan.shardings[before].axes(claim.name):
            return Strength.FREED, before
        tensor = before


def _outside(loop: Op, argument: Tensor) -> Tensor | None:
    """Return what a loop gives its body for an argument."""
    if loop.loop is None or loop.loop.over is None:
        return None
    arguments = zip(loop.loop.body.arguments, loop.inputs, strict=True)
    return next(outer for inner, outer in arguments if inner is argument)


def note_yielded(plan: Plan, yielded: Mapping[Default, str]) -> None:
    """Note in a plan what was decided between operands that meet."""
    for (tensor, name, axis), other in yielded.items():
        if tensor in plan.shardings:
            plan.decisions[f"{other} holds {axis} in an op with {name}, which stays whole"].append(
                tensor.label
            )
