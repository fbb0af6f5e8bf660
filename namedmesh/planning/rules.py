"""The rule of every ordinary op: operands agree on a holder for each axis, results inherit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from namedmesh.dims.layout import Layout
from namedmesh.dims.sharding import Sharding
from namedmesh.errors.errors import name_all, suggest_names
from namedmesh.ir.exchange import Shards
from namedmesh.ir.op import Op
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.agreement import Agreement
from namedmesh.planning.partial_sums import find_carriers, find_passing_axes, find_sums
from namedmesh.planning.planner import Planner


def settle_generic(planner: Planner, op: Op, times: int) -> None:
    """Operands agree on a holder for every axis; the results inherit by name."""
    if is_free(planner, op):
        for tensor in op.outputs:
            settle_free(planner, op, tensor)
        return
    asked, rests, target = op.placement(), planner.rests(op), planner.target(op)
    check_placement(op, asked)
    places = [planner.place_in_use(op, i, rests) for i in range(len(op.inputs))]
    agreement = Agreement(planner, op, asked, target)
    claims = agreement.find_claims(places)
    agreement.claim_for_free(claims)
    renamed = pass_renamed(planner, op, claims, asked.renames, target)
    if any(t in planner.open or t in planner.running for t in op.inputs):
        planner.running.update(op.outputs)
    passing = find_passing_axes(planner, op, claims | renamed)
    carriers = find_carriers(planner, op) if passing else set()
    parts, reduced = find_sums(planner, op, asked, claims | renamed)
    parts = (*passing, *parts)
    exchanged = asked.exchanged & {*claims}
    if parts or exchanged or (op.on_shards and claims):
        planner.plan.local.add(op)
    for i, tensor in enumerate(op.inputs):
        if tensor in planner.open:
            continue
        held = {name: axes for name, axes in claims.items() if name in tensor.shape.names}
        place = Sharding.of(held, places[i].whole)
        if i in carriers:
            place = place.with_partial(passing)
        planner.bring_operand(op, i, place, times)
    for tensor in op.outputs:
        # A result that keeps a dimension the op reduces over, as one of several may, is no sum.
        names = asked.reduced & {*tensor.shape.names}
        kept = {axis for name in names for axis in claims.get(name, ())}
        own = tuple(axis for axis in parts if axis not in kept)
        # On a device's own shard of a sum, a dimension made of others is made whole.
        made = {*asked.renames.values()} - {*renamed} if parts else set()
        others = [axes for axes in reduced if not kept & {*axes}]
        held = claims | renamed
        settle_result(planner, op, tensor, held, asked.whole | made, places, own, others, times)
    if exchanged:
        record_exchanges(planner, op, claims | renamed, times)
    for tensor in op.inputs:
        if tensor in planner.open:
            planner.open.remove(tensor)
            planner.plan.shardings[tensor] = planner.plan.shardings[op.output]


def record_exchanges(
    planner: Planner, op: Op, held: Mapping[str, tuple[str, ...]], times: int
) -> None:
    """Record what an op sends between devices by itself."""
    shards = Shards({name: planner.mesh.size(axes) for name, axes in held.items()})
    for one in op.exchanges(shards) or ():
        axes = held[one.dim]
        hop = one.hop and dataclasses.replace(one.hop, axes=axes)
        planner.record_collective(
            op, op.inputs[one.operand], one.kind, axes, one.elements, times, None, one.dtype, hop
        )


def check_placement(op: Op, asked: Placement) -> None:
    """Raise where an op's placement names a dimension that no operand and no result has."""
    named = (
        asked.whole | asked.reduced | asked.exchanged | {*asked.renames, *asked.renames.values()}
    )
    known = {name for tensor in (*op.inputs, *op.outputs) for name in tensor.shape.names}
    unknown = sorted(map(str, (named | {*asked.divisible}) - known))
    if unknown:
        raise op.error(
            f"placement() names {name_all('dimension', [repr(one) for one in unknown])}, "
            "which no operand and no result has",
            *map(str, (*op.inputs, *op.outputs)),
            fix=suggest_names(unknown, known),
        )


def pass_renamed(
    planner: Planner,
    op: Op,
    claims: dict[str, tuple[str, ...]],
    renames: Mapping[str, str],
    target: Sharding | None,
) -> dict[str, tuple[str, ...]]:
    """Pass claims on to the dimensions that take others' places; drops those that cannot pass."""
    found = {}
    for old, new in renames.items():
        axes = claims.get(old, ())
        legal = [planner.layout_axes(planner.layout_of(op), new)] + (
            [target.axes(new)] if target is not None else []
        )
        if axes and any(candidate[: len(axes)] == axes for candidate in legal):
            found[new] = axes
        else:
            claims.pop(old, None)
    return found


def settle_result(
    planner: Planner,
    op: Op,
    tensor: Tensor,
    claims: dict[str, tuple[str, ...]],
    needs_whole: frozenset[str],
    places: Sequence[Sharding],
    parts: Sequence[str],
    reduced: Sequence[Sequence[str]],
    times: int,
) -> None:
    """Decide one result: what it inherits, what new dimensions take, what the freed axes go to."""
    target = planner.place_of(tensor.primal)
    inherited = {name: axes for name, axes in claims.items() if name in tensor.shape.names}
    whole = frozenset(
        name for sharding in places for name in sharding.whole if name in tensor.shape.names
    )
    known = {name for x in op.inputs for name in x.shape.names}
    fresh = [
        name
        for name in tensor.shape.names
        if name not in known and name not in claims and name not in needs_whole
    ]
    natural = dict(inherited)
    layout = planner.layout_of(op)
    if any(x in planner.open for x in op.inputs):
        place = Sharding.of(natural, whole)
        planner.settle(op, tensor, place.with_partial(parts), place, times, reduced)
        return
    if target is not None:
        busy = {axis for axes in (*natural.values(), *reduced, parts) for axis in axes}
        for name in fresh:
            natural[name] = tuple(axis for axis in target.axes(name) if axis not in busy)
        place = natural_sharding(planner, op, tensor, natural, fresh, whole)
        final = place if planner.is_part(tensor) else target
        planner.settle(op, tensor, place.with_partial(parts), final, times, reduced)
        return
    if op.derived or planner.rests(op):
        plain = Sharding.of(natural, whole)
        planner.settle(op, tensor, plain.with_partial(parts), plain, times, reduced)
        return
    whole -= find_scattered(planner, tensor, whole, parts, layout)
    full, contested = planner.give_due_axes(tensor, natural, whole, layout)
    if contested:
        full = decide_contested(planner, op, tensor, full, contested, layout)
    if not reduced and not parts:
        natural |= {name: full[name] for name in fresh if name in full}
    place = natural_sharding(planner, op, tensor, natural, fresh, whole)
    final = Sharding.of(full, whole)
    planner.settle(op, tensor, place.with_partial(parts), final, times, reduced)


def find_scattered(
    planner: Planner, tensor: Tensor, whole: frozenset[str], parts: Sequence[str], layout: Layout
) -> frozenset[str]:
    """Find dimensions kept whole until now that readers of a sum want on the sum's axes."""
    return frozenset(
        name
        for name in whole
        for axis in planner.layout_axes(layout, name)
        if axis in parts and find_expected_holder(planner, tensor, axis, [name]) == name
    )


def is_free(planner: Planner, op: Op) -> bool:
    """Whether an op makes, of nothing or of free tensors, what any reader can make for itself."""
    cheap = op.constant or op.elementwise or op.rearranges
    return cheap and all(tensor in planner.plan.free for tensor in op.inputs)


def settle_free(planner: Planner, op: Op, tensor: Tensor, place: Sharding | None = None) -> None:
    """Settle a tensor made of constants alone: every reader makes it where it needs it."""
    plan = planner.plan
    place = place or planner.place_of(tensor.primal)
    if place is None:
        held, _ = planner.give_due_axes(tensor, {}, frozenset(), planner.layout_of(op))
        place = Sharding.of(held)
    plan.free[tensor] = tensor
    linear = op.linear == "together" or op.states_place or op.adds_operands
    if op.zero or (linear and op.inputs and all(t in planner.zero for t in op.inputs)):
        planner.zero.add(tensor)
    planner.settle(op, tensor, place.with_partial(()), place.with_partial(()), 1)


def natural_sharding(
    planner: Planner,
    op: Op,
    tensor: Tensor,
    held: dict[str, tuple[str, ...]],
    fresh: Iterable[str],
    whole: frozenset[str],
) -> Sharding:
    """Return what an op can make directly: manual ops split new dims only where they divide."""
    if op.manual or op in planner.plan.local:
        for name in fresh:
            if name in held and tensor.shape.size_of(name) % planner.mesh.size(held[name]):
                held = {key: axes for key, axes in held.items() if key != name}
    return Sharding.of(held, whole)


def decide_contested(
    planner: Planner,
    op: Op,
    tensor: Tensor,
    held: dict[str, tuple[str, ...]],
    contested: dict[str, list[str]],
    layout: Layout,
) -> dict[str, tuple[str, ...]]:
    """Give an axis that two dimensions want to the one a reader expects, or the layout has first.

    After the forward pass, what nobody expects stays idle.
    """
    for axis, names in contested.items():
        holder = find_expected_holder(planner, tensor, axis, names)
        if holder is None and not op.constant and op.phase == "forward":
            holder = planner.prefer(tensor, axis, names, layout)
        if holder is not None:
            held = planner.give_axis(held, holder, axis, layout)
    return held


def find_expected_holder(
    planner: Planner, tensor: Tensor, axis: str, names: Sequence[str]
) -> str | None:
    """Find the dimension that a reader, directly or through elementwise ops, wants on an axis."""
    seen = {tensor}
    readers = list(reversed(planner.consumers.get(tensor, ())))  # depth first, the next one last
    while readers:
        reader = readers.pop()
        if reader.states_place:
            taken = [name for name in reader.taken_dims if name in names]
            if taken:
                return taken[0]
        elif reader.elementwise:
            places = (planner.plan.shardings.get(other) for other in reader.inputs)
            for holder in (place.holder(axis) for place in places if place is not None):
                if holder in names:
                    return holder
            result = reader.outputs[0]
            if result not in seen:
                seen.add(result)
                readers.extend(reversed(planner.consumers.get(result, ())))
    return None
