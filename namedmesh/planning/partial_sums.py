"""Parts of sums: which ops may work on them, so that devices add them up once, and late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from namedmesh.dims.sharding import Sharding
from namedmesh.ir.op import Op
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.planner import Planner


def find_passing_axes(
    planner: Planner, op: Op, claims: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Return the axes along which parts of a sum pass through an op, as parts of its result.

    An op that is not linear, or that would make the parts larger, needs them added up first.
    """
    carriers = find_carriers(planner, op)
    pending = [pending_axes(planner, op, i) if i in carriers else () for i in range(len(op.inputs))]
    axes = tuple(sorted({axis for one in pending for axis in one}))
    busy = {axis for on in claims.values() for axis in on}
    if not axes or busy & {*axes} or not divides(planner, op, claims):
        return ()
    if op.same_value and not is_accumulated(planner, op.output):
        return ()  # a sum is sent in the narrower dtype, unless it is sent once for many iterations
    if op.linear == "together":
        fits = all(
            one == axes or op.inputs[i] in planner.zero or op.inputs[i] in planner.open
            for i, one in enumerate(pending)
        )
        # A number, or a sum that a loop carries, is put off even if only the first device adds
        # to it: the sum is then added up once, at its end.
        running = op.output in planner.running or not len(op.output.shape)
        allowed = fits or (op.elementwise and running and planner.count_uses(op.output) == 1)
    else:
        allowed = bool(carriers)
    place, mesh = Sharding.of(dict(claims)), planner.mesh
    before = sum(
        place.local_elements(op.inputs[i].shape, mesh) for i, one in enumerate(pending) if one
    )  # what would be added up of the operands
    return axes if allowed and place.local_elements(op.output.shape, mesh) <= before else ()


def find_carriers(planner: Planner, op: Op) -> set[int]:
    """Return the operands that may be parts of a sum when the op runs.

    A product is linear in each of its operands, but not in several at once: the largest stays in
    parts, and the others are added up before.
    """
    if op.linear == "together":
        return {*range(len(op.inputs))}
    pending = [i for i in range(len(op.inputs)) if pending_axes(planner, op, i)]
    if op.linear == "each" and pending:
        return {max(pending, key=lambda i: op.inputs[i].shape.elements)}
    return {0} if op.linear == "first" and pending else set()


def is_accumulated(planner: Planner, tensor: Tensor) -> bool:
    """Whether a tensor is only added to the sum that a loop carries."""
    while (reader := planner.sole_reader(tensor)) is not None:
        others = [x for x in reader.inputs if x is not tensor]
        if reader.elementwise and any(x in planner.open or x in planner.running for x in others):
            return True
        if not reader.adds_operands:
            return False
        tensor = reader.output
    return False


def pending_axes(planner: Planner, op: Op, i: int) -> tuple[str, ...]:
    """Return the axes along which an operand is a part of a sum."""
    place = planner.plan.shardings.get(op.inputs[i])
    return () if place is None or op.inputs[i] in planner.plan.free else place.partial


def divides(planner: Planner, op: Op, claims: Mapping[str, Sequence[str]]) -> bool:
    """Whether every operand and result has shards of equal size, as a device's own work needs."""
    place = Sharding.of(dict(claims))
    return all(place.divides(t.shape, planner.mesh) for t in (*op.inputs, *op.outputs))


def find_sums(
    planner: Planner, op: Op, asked: Placement, claims: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Split the axes an op reduces over: those it leaves parts on, and those XLA reduces over."""
    groups = [claims[name] for name in sorted(asked.reduced) if name in claims]
    if groups and (op.manual or op.on_shards or (op.sums and divides(planner, op, claims))):
        return tuple(axis for axes in groups for axis in axes), []
    return (), groups
