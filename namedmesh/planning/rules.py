"""The rule of ordinary ops: operands agree on a sharding, results inherit it by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from namedmesh.dims.layout import Layout
from namedmesh.dims.sharding import Sharding, Transfer
from namedmesh.errors.errors import name_all, suggest_names
from namedmesh.ir.format import describe_type
from namedmesh.ir.op import Op
from namedmesh.ir.placement import Placement, Shards
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.accumulation import (
    count_terms,
    is_accumulated,
    is_lighter_as_sum,
)
from namedmesh.planning.agreement import Agreement
from namedmesh.planning.planner import Axes, Planner
from namedmesh.planning.prices import choose_by_price


def plan_by_name(planner: Planner, op: Op, times: int) -> None:
    """Let operands agree on the dimension that each axis shards; results inherit by name."""
    state = planner.state
    if op.folds and all(tensor in state.constants for tensor in op.inputs):
        # Any reader can make it for itself.
        for tensor in op.outputs:
            plan_constant(planner, op, tensor)
        return
    asked, rests = op.placement(), planner.rests(op)
    if op.barrier and rests and planner.uses.producers[op.inputs[0]].phase == "backward":
        # Weights that the backward pass computes with again (remat in remat) stay gathered.
        state.gathered_before.add(op)
    target = planner.target_of(op.output)  # a cotangent goes to where its primal is
    check_placement(op, asked)
    places = [planner.sharding_in_use(op, i, rests) for i in range(len(op.inputs))]
    agreement = Agreement(planner, op, asked, target)
    if asked.priced:
        sums = 1 if is_accumulated(planner, op.output) else times
        places = choose_by_price(agreement, places, times, sums)
    claims = agreement.find_axes(places)
    agreement.shard_constants(claims)
    give_way_to_sums(planner, op, claims)
    gather_first(agreement, places, claims)
    renamed = rename_axes(agreement, claims)
    axes = claims | renamed
    # Partial sums of operands pass through linear ops; the op may leave sums of its own.
    passing = find_passing_axes(planner, op, axes)
    carriers = find_carriers(planner, op) if passing else set()
    left, reduced = find_sums(planner, op, asked, axes)
    partial = (*passing, *left)
    exchanged = [name for name in claims if agreement.exchanges(name, claims[name])]
    if partial or exchanged or (op.on_shards and claims):
        state.local_ops.add(op)
    for i, tensor in enumerate(op.inputs):
        if tensor not in state.accumulators:
            own = {name: used for name, used in claims.items() if name in tensor.shape.names}
            place = Sharding.of(own, places[i].whole, passing if i in carriers else ())
            place = planner.slice_operand(op, i, place, times)
            planner.move_operand(op, i, place, times)
    for tensor in op.outputs:
        # A result that keeps a dimension the op reduces over, as one of several may, is no sum.
        names = asked.reduced & {*tensor.shape.names}
        kept = {axis for name in names for axis in claims.get(name, ())}
        sums = tuple(axis for axis in partial if axis not in kept)
        # On a device's own shard, a dimension made of others is made whole.
        whole = asked.whole | ({*asked.renames.values()} - {*renamed} if partial else set())
        others = [used for used in reduced if not kept & {*used}]
        plan_result(agreement, tensor, axes, whole, places, sums, others, times)
    if exchanged:
        record_exchanges(planner, op, axes, times)
    state.close_accumulators(op)


def record_exchanges(planner: Planner, op: Op, axes: Axes, times: int) -> None:
    """Record what an op sends between devices by itself."""
    shards = Shards({name: planner.mesh.size(used) for name, used in axes.items()})
    for one in op.exchanges(shards) or ():
        used, tensor = axes[one.dim], op.inputs[one.operand]
        hop = one.hop and dataclasses.replace(one.hop, axes=used)
        sent = Transfer(one.kind, used, Sharding(), one.elements)
        planner.record_collective(op, tensor, sent, times, dtype=one.dtype, way=hop)


def check_placement(op: Op, asked: Placement) -> None:
    """Raise if an op's placement names a dimension that no operand and no result has."""
    if not isinstance(asked, Placement):
        raise op.error(
            f"placement() returned {describe_type(asked)}, expected an nm.Placement",
            *map(str, (*op.inputs, *op.outputs)),
            fix="return e.g. nm.Placement(whole=['model'])",
        )
    named = {*asked.whole, *asked.reduced, *asked.exchanged, *asked.divisible, *asked.priced}
    named |= {*asked.renames, *asked.renames.values()}
    known = {name for tensor in (*op.inputs, *op.outputs) for name in tensor.shape.names}
    unknown = sorted(map(str, named - known))
    if unknown:
        raise op.error(
            f"placement() names {name_all('dimension', [repr(one) for one in unknown])}, "
            "which no operand and no result has",
            *map(str, (*op.inputs, *op.outputs)),
            fix=suggest_names(unknown, known),
        )


def rename_axes(agreement: Agreement, claims: Axes) -> Axes:
    """Pass axes on to the dimensions that take others' places; drop claims that cannot pass."""
    # They pass where the layout, or the place that the result is wanted in, shards the new
    # dimension over them: a dimension that the layout does not map stays whole.
    planner, renamed = agreement.planner, {}
    for old, new in agreement.asked.renames.items():
        axes = claims.get(old, ())
        legal = [planner.layout_axes(planner.layout_of(agreement.op), new)]
        if agreement.target is not None:
            legal.append(agreement.target.axes(new))
        taken = {axis for name, used in claims.items() if name != old for axis in used}
        legal = [tuple(axis for axis in one if axis not in taken) for one in legal]
        # XLA gathers uneven shards to cut them further.
        most = len(axes) + (0 if agreement.exchanges(old, axes) else len(planner.mesh.axes))
        if axes and any(one[: len(axes)] == axes and len(one) <= most for one in legal):
            renamed[new] = axes
        else:
            claims.pop(old, None)
    return renamed


def plan_result(
    agreement: Agreement,
    tensor: Tensor,
    axes: Axes,
    needs_whole: frozenset[str] | set[str],
    places: Sequence[Sharding],
    partial: Sequence[str],
    reduced: Sequence[Sequence[str]],
    times: int,
) -> None:
    """Decide one result: what it inherits, and the axes that new dimensions and others take."""
    planner, op = agreement.planner, agreement.op
    names, layout = tensor.shape.names, planner.layout_of(op)
    natural = {name: used for name, used in axes.items() if name in names}
    whole = frozenset(name for place in places for name in place.whole if name in names)
    known = {name for x in op.inputs for name in x.shape.names} | {*axes} | needs_whole
    fresh = [name for name in names if name not in known]

    def natural_sharding() -> Sharding:
        """Return what the op makes directly; shards of new dims are even on a device's own."""
        held = natural
        if (op.manual or op in planner.state.local_ops) and not op.on_shards:
            size, ways = tensor.shape.size_of, planner.mesh.size
            uneven = [n for n in fresh if n in held and size(n) % ways(held[n])]
            held = {name: used for name, used in held.items() if name not in uneven}
        return Sharding.of(held, whole)

    inherited = Sharding.of(natural, whole)
    target = planner.target_of(tensor)
    if target is None and (partial or reduced):
        target = planner.rest_of_update(tensor)
    if tensor in planner.state.running_sums:
        final = inherited  # a sum that a loop carries moves when the loop is over
    elif target is not None:
        busy = {axis for used in (*natural.values(), *reduced, partial) for axis in used}
        for name in fresh:
            natural[name] = tuple(axis for axis in target.axes(name) if axis not in busy)
        # Terms of a cotangent are added up before they are moved.
        term = planner.uses.is_summand(tensor) or is_lighter_as_sum(planner, tensor)
        final = natural_sharding() if term else target
    elif op.derived or planner.rests(op):
        final = inherited
    else:
        whole -= find_scattered(planner, tensor, whole, partial, layout)
        full, contested = planner.take_idle_axes(tensor, natural, whole, layout)
        for axis, rivals in contested.items():
            full = decide_contested(planner, op, tensor, full, axis, rivals)
        if not reduced and not partial:
            natural |= {name: full[name] for name in fresh if name in full}
        final = Sharding.of(full, whole)
    made = natural_sharding().with_partial(partial)
    planner.place_result(op, tensor, made, final, times, reduced)


def find_scattered(
    planner: Planner, tensor: Tensor, whole: frozenset[str], partial: Sequence[str], layout: Layout
) -> frozenset[str]:
    """Find dimensions kept whole until now that readers of a sum want on the sum's axes."""
    return frozenset(
        name
        for name in whole
        for axis in planner.layout_axes(layout, name)
        if axis in partial and find_expected_dim(planner, tensor, axis, [name]) == name
    )


def plan_constant(planner: Planner, op: Op, tensor: Tensor, place: Sharding | None = None) -> None:
    """Plan a tensor made of constants alone; its sharding is a default that readers override."""
    state = planner.state
    place = place or planner.sharding_of(tensor.primal)
    if place is None:
        axes, _ = planner.take_idle_axes(tensor, {}, frozenset(), planner.layout_of(op))
        place = Sharding.of(axes)
    zeros = op.additive and all(x in state.zeros for x in op.inputs)
    state.constants[tensor] = tensor
    if op.zero or zeros:
        state.zeros.add(tensor)
    planner.place_result(op, tensor, place.with_partial(()), place.with_partial(()), 1)


def decide_contested(
    planner: Planner, op: Op, tensor: Tensor, axes: Axes, axis: str, names: Sequence[str]
) -> Axes:
    """Give a contested axis to the dimension a reader expects, or that the layout has first."""
    layout, name = planner.layout_of(op), find_expected_dim(planner, tensor, axis, names)
    # After the forward pass, an axis stays idle if no reader expects it.
    if name is None and not op.constant and op.phase == "forward":
        name = planner.prefer(tensor, axis, names, layout)
    return axes if name is None else planner.assign_axis(axes, name, axis, layout)


def find_expected_dim(
    planner: Planner, tensor: Tensor, axis: str, names: Sequence[str]
) -> str | None:
    """Find the dimension that a reader, directly or through elementwise ops, wants on an axis."""
    seen = {tensor}
    all_readers = planner.uses.readers
    readers = list(reversed(all_readers.get(tensor, ())))  # depth first, the next one last
    while readers:
        reader = readers.pop()
        if reader.states_place:
            taken = [name for name in reader.taken_dims if name in names]
            if taken:
                return taken[0]
        elif reader.elementwise:
            for other in reader.inputs:
                place = planner.state.shardings.get(other)
                name = None if place is None else place.dimension_over(axis)
                if name in names:
                    return name
            result = reader.outputs[0]
            if result not in seen:
                seen.add(result)
                readers.extend(reversed(all_readers.get(result, ())))
    return None


def find_sums(
    planner: Planner, op: Op, asked: Placement, axes: Axes
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Split the axes an op reduces over: those with partial sums, and those XLA reduces over."""
    groups = [axes[name] for name in sorted(asked.reduced) if name in axes]
    # XLA would reduce over each of several dimensions by itself, one collective after the other.
    joins = len(groups) > 1 and op.reduction and op.summed_in == op.output.dtype
    on_shards = op.manual or op.on_shards
    if groups and (on_shards or ((op.sums or joins) and runs_on_shards(planner, op, axes))):
        if not joins and any(tensor.dtype == "bool" for tensor in op.outputs):
            raise op.error(
                "makes a bool on each device's own shard, and those cannot be added up",
                *map(str, (*op.inputs, *op.outputs)),
                fix=f"ask for whole={sorted(asked.reduced)} in placement(), or make numbers",
            )
        return tuple(axis for used in groups for axis in used), []
    return (), groups


def find_passing_axes(planner: Planner, op: Op, axes: Axes) -> tuple[str, ...]:
    """Return the axes along which partial sums of operands become partial sums of the result."""
    # An op that is not linear, or that would make them larger, needs them added up first.
    state = planner.state
    carriers = find_carriers(planner, op)
    pending = [state.pending_axes(x) if i in carriers else () for i, x in enumerate(op.inputs)]
    passing = tuple(sorted({axis for one in pending for axis in one}))
    busy = {axis for used in axes.values() for axis in used}
    if not passing or busy & {*passing} or not runs_on_shards(planner, op, axes):
        return ()
    accumulated = is_accumulated(planner, op.output)
    # A sum is sent in the narrower dtype, unless it is sent once for many terms or iterations.
    if op.same_value and not (accumulated and sends_less_after(planner, op)):
        return ()
    fits = all(
        pending[i] == passing or op.inputs[i] in state.zeros or op.inputs[i] in state.accumulators
        for i in carriers
    )
    # A scalar, or a term of a sum that a loop carries, is put off even if only the first device
    # adds to it: the sum is then added up once, at its end.
    scalar = not len(op.output.shape) and planner.uses.count_uses(op.output) == 1
    joins = accumulated or scalar or joins_sums(planner, op, pending)
    allowed = fits or (op.elementwise and joins)
    place, mesh = Sharding.of(axes), planner.mesh
    summed = [x for x, one in zip(op.inputs, pending, strict=True) if one]
    before = sum(place.local_elements(x.shape, mesh) for x in summed)
    before *= count_terms(planner, op.output)
    return passing if allowed and place.local_elements(op.output.shape, mesh) <= before else ()


def sends_less_after(planner: Planner, op: Op) -> bool:
    """Return whether what a cast makes, a term of a sum, is better sent as part of the sum."""
    (tensor,), uses = op.inputs, planner.uses
    total = uses.sole_reader(op.output) if uses.find_term(tensor) is op.output else None
    return (
        total is None or is_lighter_as_sum(planner, tensor) or is_accumulated(planner, total.output)
    )


def give_way_to_sums(planner: Planner, op: Op, claims: Axes) -> None:
    """Drop claims on axes of partial sums: a shard may be a term, and weights of a sum are few."""
    pending = [planner.state.pending_axes(x) for x in op.inputs]
    late = {axis for axes in pending for axis in axes}
    summed = [x for x, axes in zip(op.inputs, pending, strict=True) if axes]
    grows = any(x.shape.elements < op.output.shape.elements for x in summed)
    joins = late and op.elementwise and not grows and joins_sums(planner, op, pending)
    pools = any(planner.find_pool(x, planner.state.shardings[x]) is not None for x in summed)
    if pools or (joins and divides(planner, op, claims)):
        for name, used in [*claims.items()]:
            kept = tuple(axis for axis in used if axis not in late)
            if kept == used[: len(kept)]:
                claims[name] = kept


def gather_first(agreement: Agreement, places: Sequence[Sharding], claims: Axes) -> None:
    """Drop claims that a cotangent's place lacks, if gathering what it is made of sends less."""
    # Gradients of a bag's rows are one row, repeated, and its weights.
    op, target, uses = agreement.op, agreement.target, agreement.planner.uses
    repeats = op.elementwise or (op.sums and not agreement.asked.reduced)
    if target is None or not repeats or uses.is_summand(op.output):
        return
    fewer = {name: axes for name, axes in claims.items() if target.axes(name) == axes}
    if fewer != claims and agreement.price(places, fewer) < agreement.price(places, claims):
        for name in claims.keys() - fewer.keys():
            del claims[name]


def joins_sums(planner: Planner, op: Op, pending: Sequence[Sequence[str]]) -> bool:
    """Return whether an addition has several partial sums, or what it adds to may have another."""
    if not op.additive:
        return False
    if len({axes for axes in pending if axes}) > 1:
        return True
    return planner.joins_sums(op.output)


def find_carriers(planner: Planner, op: Op) -> set[int]:
    """Return the operands that may be partial sums when the op runs."""
    # A product is linear in each of its operands, but not in several at once: the largest stays
    # partial, and the others are added up before.
    pending = {i for i, x in enumerate(op.inputs) if planner.state.pending_axes(x)}
    if not pending:
        return set()
    late = op.late_sums or (op.elementwise and is_accumulated(planner, op.output))
    groups = [group for group in op.linear_in if late and not pending.isdisjoint(group)]
    largest = lambda group: max(op.inputs[i].shape.elements for i in pending.intersection(group))
    return {*max(groups, key=largest)} if groups else set()


def runs_on_shards(planner: Planner, op: Op, axes: Axes) -> bool:
    """Return whether an op can run on each device's own shard, which zeros may pad."""
    return op.takes_padding or divides(planner, op, axes)


def divides(planner: Planner, op: Op, axes: Axes) -> bool:
    """Return whether all shards are of equal size."""
    place = Sharding.of(axes)
    return all(place.divides(t.shape, planner.mesh) for t in (*op.inputs, *op.outputs))
