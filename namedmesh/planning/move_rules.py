"""The rules of ops that leave values as they are: sums of cotangents, moves, kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from namedmesh.dims.sharding import Sharding
from namedmesh.errors.errors import NamedMeshError, did_you_mean, join_names
from namedmesh.ir.op import Op
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.accumulation import is_accumulated, is_lighter_as_sum
from namedmesh.planning.agreement import sharding_after_move
from namedmesh.planning.planner import Planner
from namedmesh.planning.rules import plan_constant


def plan_sum(planner: Planner, op: Op, times: int) -> None:
    """Plan a cotangent: terms that are sharded alike are added up, and then move once for all."""
    state, tensor = planner.state, op.output
    if all(x in state.constants for x in op.inputs):
        plan_constant(planner, op, tensor)
        return
    target = planner.target_of(tensor)
    single = len(op.inputs) == 1 and not state.is_pending(op.inputs[0])
    if single and target is not None and not planner.uses.is_summand(tensor):
        planner.move_operand(op, 0, target, times, reads=False)  # there is nothing to add up
        planner.place_result(op, tensor, target, target, times)
        return
    groups: dict[Sharding, list[int]] = {}
    for i, term in enumerate(op.inputs):
        if term not in state.accumulators and term not in state.constants:
            groups.setdefault(slice_term(planner, op, i, target, times), []).append(i)
    places = list(groups)
    base = places[0]
    if len(places) > 1:
        base = find_common_place(planner, tensor, places, target or base.with_partial(()))
    for place, members in groups.items():
        steps = planner.conversion(tensor, place, base)
        if len(members) == 1 and not place.partial and not base.partial:
            # The term itself moves, and may have done so for another reader.
            planner.move_operand(op, members[0], base, times)
            steps = []
        else:
            for i in members:
                state.read(op.inputs[i], place)
        planner.record_moves(op, op.inputs[members[0]], steps, times)
        state.add_group(op, members, steps)
    whole = base.with_partial(())
    for i, term in enumerate(op.inputs):
        if term in state.constants and term not in state.zeros:
            # Of partial sums, one device adds the constant and the others zero.
            state.constant_uses[op, i] = whole
            state.add_group(op, [i], planner.conversion(tensor, whole, base))
        if term in state.accumulators:
            state.add_group(op, [i], [])
    # It moves when all of it is there.
    stays = tensor in state.running_sums or planner.uses.is_summand(tensor)
    stays = stays or is_lighter_as_sum(planner, tensor)
    final = base if stays or target is None else target
    planner.place_result(op, tensor, base, final.with_partial(()), times)
    state.close_accumulators(op)


def find_common_place(
    planner: Planner, tensor: Tensor, places: Sequence[Sharding], final: Sharding
) -> Sharding:
    """Return the sharding in which terms are added up: as they are wanted, or partial sums."""
    # Of partial sums over some axes one device makes a term of partial sums over more, for free:
    # all of them are then added up at once.
    axes = {axis for place in places for axis in place.partial}
    late = final.with_partial(axes.difference(final.used))
    if is_accumulated(planner, tensor):  # it is added up later, and other terms are put off
        return late
    apart, before, after = (
        sum(planner.price_moves(tensor, place, end)[0] for place in starts)
        for starts, end in ((places, final), (places, late), ([late], final))
    )
    # Of equal prices, a reader that passes them on may scatter them instead.
    passes = planner.uses.pass_sums(tensor) is not None
    return late if before + after < apart + passes else final


def slice_term(planner: Planner, op: Op, i: int, target: Sharding | None, times: int) -> Sharding:
    """Slice a term of a cotangent as the sum will be sharded, if that takes no communication."""
    term = op.inputs[i]
    place = planner.state.shardings[term]
    if target is None:
        return place
    sliced = target.with_partial(axis for axis in place.partial if axis not in target.used)
    if any(step.kind != "Slice" for step in planner.conversion(term, place, sliced)):
        return place
    planner.move_operand(op, i, sliced, times)
    return sliced.kept_whole(place.whole)


def plan_move(
    planner: Planner,
    op: Op,
    times: int,
    take: Sequence[str],
    give: Sequence[str],
    exact: Any = None,
) -> None:
    """Place the result as the op states: the only op that a user places tensors with."""
    (tensor,), state = op.inputs, planner.state
    if exact is not None and not isinstance(exact, Mapping):  # an assignment: parts, or devices
        axes = planner.layout_axes(planner.layout, next(iter(exact.ways)))
        found = exact.find_axes(planner.mesh, axes)
        if found is None:
            raise op.error(
                f"no axes of the mesh split {tensor.label} into {exact}",
                str(tensor),
                f"mesh: {planner.mesh}",
                fix="split into as many parts as axes have devices, in the order in which they "
                "number them, or give the mesh more and smaller axes",
            )
        exact = found
    if exact is None:
        current = planner.sharding_in_use(op, 0, False)
        if tensor in state.constants:  # what it does not give up stays as the layout has it
            current = state.shardings[tensor].with_partial(())
        take = resolve_taken(planner, op, current, take, give)
        place = sharding_after_move(planner, tensor, current, take, give)
    else:
        sizes, held = planner.mesh.axes, {}
        for name, axes in exact.items():
            for axis in axes:
                if axis not in sizes:
                    problem, mesh = f"the mesh has no axis {axis!r}", f"mesh: {planner.mesh}"
                    raise op.error(problem, str(tensor), mesh, fix=did_you_mean(axis, sizes))
            held[name] = tuple(axis for axis in axes if sizes[axis] > 1)
        place = Sharding.of(held, frozenset(tensor.shape.names) - {*exact})
    if tensor in state.constants:
        plan_constant(planner, op, op.output, place)
        return
    late = () if {*place.used} & {*state.pending_axes(tensor)} else state.pending_axes(tensor)
    natural = place.with_partial(late if planner.uses.shrinks_later(op.output) else ())
    planner.move_operand(op, 0, natural, times, reads=False)  # whoever reads the result does
    if not state.is_gathered_by(op):
        state.read(tensor, natural)
    planner.place_result(op, op.output, natural, place, times)


def resolve_taken(
    planner: Planner, op: Op, current: Sharding, take: Sequence[str], give: Sequence[str]
) -> Sequence[str]:
    """Return the dimensions that take axes; raise if two want one, or leave it to the cheapest."""
    (tensor,) = op.inputs
    takers: dict[str, list[str]] = {}
    for name in take:
        if tensor.shape.size_of(name) > 1:
            for axis in planner.layout_axes(planner.layout, name):
                takers.setdefault(axis, []).append(name)
    for axis, names in takers.items():
        rivals = [name for name in names if name in take]
        if len(rivals) < 2:
            continue
        if not planner.take_cheapest:
            raise NamedMeshError(
                f"tensor {tensor.label}: dimensions {join_names(names)} both map to "
                f"mesh axis {axis!r}, and nothing says which is sharded over it",
                str(tensor),
                f"layout: {planner.layout.text}",
                f"mesh: {planner.mesh}",
                source=op.source,
                fix="reshard one of them only",
            )

        def price(name: str, take: Sequence[str] = take, rivals: list[str] = rivals) -> int:
            some = [other for other in take if other == name or other not in rivals]
            place = sharding_after_move(planner, tensor, current, some, give)
            return planner.price_moves(tensor, current, place)[0]

        taker = min(rivals, key=price)
        planner.state.solved.append(frozenset(rivals))
        text = f"{op.source.user}: of {join_names(rivals)} in {tensor.label}, {taker} takes {axis}"
        planner.state.decide(text, op.output)
        take = [other for other in take if other == taker or other not in rivals]
    return take


def plan_pass_through(planner: Planner, op: Op, times: int) -> None:
    """Leave every result where the operand is that it passes on."""
    state = planner.state
    for i, (x, y) in enumerate(zip(op.inputs, op.outputs, strict=False)):
        place = state.shardings[x]
        if x in state.constants:
            plan_constant(planner, op, y, place)
            state.bind_constant(y, x)
            continue
        # A kernel may leave partial sums for its reader, and so may what is added up later.
        late = op.offers_kernel or planner.uses.count_uses(y) == 1
        late = late or is_accumulated(planner, y) or planner.uses.shrinks_later(y)
        natural = place if not place.partial or late else place.with_partial(())
        planner.move_operand(op, i, natural, times)
        planner.place_result(op, y, natural, place.with_partial(()), times)
        if x in state.resting:
            state.resting.add(y)


def plan_kernel(planner: Planner, op: Op, times: int, parallel: Collection[str]) -> None:
    """Pass through, and offer the kernel if it can run on each device's own shards."""
    plan_pass_through(planner, op, times)
    state = planner.state
    axes: dict[str, tuple[str, ...]] = {}
    for tensor in op.outputs:
        place = state.shardings[tensor]
        alike = all(axes.setdefault(name, used) == used for name, used in place.held)
        if not alike or not place.divides(tensor.shape, planner.mesh):
            return
    if any(used and name not in parallel for name, used in axes.items()):
        return
    # It reads the remaining operands sharded as the results are, but is not worth a collective.
    wanted: dict[int, Sharding] = {}
    for i, tensor in [*enumerate(op.inputs)][len(op.outputs) :]:
        place = wanted[i] = Sharding.of(axes).only(tensor.shape.names)
        even = place.divides(tensor.shape, planner.mesh)
        if not even or not is_at_hand(planner, tensor, place):
            return
    for i, place in wanted.items():
        planner.move_operand(op, i, place, times)
    state.local_ops.add(op)


def is_at_hand(planner: Planner, tensor: Tensor, place: Sharding) -> bool:
    """Return whether a tensor is sharded so, or can be without a collective of its own."""
    state = planner.state
    if tensor in state.constants:
        return True
    if tensor in state.accumulators:
        return False
    steps = planner.conversion(tensor, state.shardings[tensor], place)
    if tensor in state.resting:
        return not steps
    if all(step.kind == "Slice" for step in steps):
        return True
    if tensor in state.captures:
        moves = state.captured_moves.get(state.captures[tensor].loop, {})
        return (tensor, place) in moves
    return state.count_shared_moves(tensor, steps, state.moved) == len(steps)
