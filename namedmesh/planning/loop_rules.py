"""The rules of loops and branches: carries keep their sharding from iteration to iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from namedmesh.dims.dimension import Dimension
from namedmesh.dims.sharding import Sharding
from namedmesh.display.text import human
from namedmesh.errors.errors import join_names
from namedmesh.ir.op import Body, LoopSpec, Op
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.accumulation import find_accumulated, find_accumulators, is_accumulated
from namedmesh.planning.planner import Axes, Planner
from namedmesh.planning.state import Capture
from namedmesh.records.collective import Collective

SMALL_ROW = 2**20  # bytes that take a device longer to start sending than to send


def plan_loop(planner: Planner, op: Op, times: int) -> None:
    """Plan a loop: along a dimension, or for as long as a test holds."""
    loop, state = op.loop, planner.state
    assert loop is not None, "it plans itself otherwise"
    body, test, over = loop.body, loop.test, loop.over
    sums = find_accumulators(planner, op, loop)
    tested = () if test is None else test.captures
    for i, inner in enumerate((*body.inputs, *tested, *body.captures)):
        if i in sums:
            # Its sharding is that of what is added to it: partial sums stay partial until the
            # loop is over, and are added up once. No test reads it.
            state.accumulators.add(inner)
        elif i >= len(body.inputs):
            bind_capture(planner, op, i, inner, times, loop.gather_once)
        else:
            if over is None or i < loop.carries:
                target = sharding_of_carry(planner, op, i)
            else:
                target = sharding_of_rows(planner, op, i, inner, over)
            planner.move_operand(op, i, target, times)
            names = {*inner.shape.names}
            state.shardings[inner] = target.only(names).kept_whole(target.whole & names)
    if over is not None:
        captured = {x: state.invariant.get(x, times) for x in body.captured}
        state.invariant.update(find_invariants(body, captured))
    repeats = times * loop.length  # of a loop of unknown length an iteration counts once
    open_loops = state.open_loops + (over is None)
    with state.in_open_loops(open_loops):
        if test is not None:
            pairs = enumerate(zip(test.inputs, body.inputs, strict=True))
            state.shardings |= {x: state.shardings[y] for i, (x, y) in pairs if i not in sums}
            planner.plan_ops(test.ops, times)
            # Every device decides by itself whether to go on, and all must decide the same.
            planner.move_result(test, 0, test.outputs[0], Sharding(), times)
        before = len(state.collectives)
        planner.plan_ops(body.ops, repeats)
        if over is not None:
            note_gathers(planner, op, loop, state.collectives[before:], times)
        for i in sums:  # they start sharded as what the body adds to them
            place = state.shardings[body.inputs[i]]
            if test is not None:
                state.shardings[test.inputs[i]] = place
            if op.inputs[i] in state.accumulators:  # of an enclosing loop
                state.close_accumulator(op.inputs[i], place)
            else:
                planner.move_operand(op, i, place, times)
    for i, tensor in enumerate(body.outputs):
        if over is None or i < loop.carries:
            place = natural = state.shardings[body.inputs[i]]
        else:
            place = sharding_of_row(planner, op.outputs[i], tensor, over)
            natural = place.kept_whole(place.whole | {over.name})
        with state.in_open_loops(open_loops):
            planner.move_result(body, i, tensor, place, repeats)
        primal = find_accumulated(planner, op, tensor) if i in sums else None
        plan_outcome(planner, op, i, tensor, natural, times, primal)


def sharding_of_rows(planner: Planner, op: Op, i: int, inner: Tensor, over: Dimension) -> Sharding:
    """Return the sharding of what a loop reads row by row: whole along its dimension."""
    tensor, state = op.inputs[i], planner.state
    target = planner.sharding_in_use(op, i, True)
    if tensor in state.constants:
        target = state.shardings[tensor]
    target = target.only(set(tensor.shape.names) - {over.name})
    if tensor in state.resting:
        state.resting.add(inner)
    if state.pending_axes(tensor) and planner.uses.shrinks_later(inner):
        state.pass_sum(tensor, inner)
        return target.with_partial(state.pending_axes(tensor))
    return target


def plan_branches(planner: Planner, op: Op, times: int) -> None:
    """Plan both branches, which leave their results as the first does."""
    planner.move_operand(op, 0, Sharding(), times)
    rests, made = planner.rests(op), planner.state.collectives
    first, second = op.bodies
    bind_captures(planner, op, first, 1, times, rests)
    bind_captures(planner, op, second, 1 + len(first.captures), times, rests)
    before = len(made)
    for body in op.bodies:
        planner.plan_ops(body.ops, times)
    inside = made[before:]
    for i, (one, other) in enumerate(zip(first.outputs, second.outputs, strict=True)):
        place, summed = place_of_choice(planner, op.outputs[i], one, other)
        before = len(made)
        planner.move_result(first, i, one, place, times)
        planner.move_result(second, i, other, place, times)
        inside += made[before:]
        plan_outcome(planner, op, i, summed, place, times)
    check_devices_agree(planner, op, inside)


def check_devices_agree(planner: Planner, op: Op, collectives: Sequence[Collective]) -> None:
    """Raise for collectives in a branch between devices of which some take the other one."""
    decider = planner.uses.producers[op.inputs[0]]
    axes = {*planner.state.operand_sharding(decider, 0).used} if decider.differs else set[str]()
    for one in collectives:
        if not axes.isdisjoint(one.axes):
            raise op.error(
                f"some devices along {join_names(sorted(axes))} skip a {one.kind} of the others",
                str(one),
                fix="shard what a pipeline's stages read over other axes, or use schedule='1f1b'",
            )


def place_of_choice(
    planner: Planner, result: Tensor, one: Tensor, other: Tensor
) -> tuple[Sharding, Tensor]:
    """Return how both branches leave a result, and the one whose sums it is made of, if any."""
    # Partial sums are added up in the branch, which may not be taken, or not have any; unless both
    # have them, or a loop adds the results up and one sum after it is less.
    state = planner.state
    summed = one if state.pending_axes(one) or not state.pending_axes(other) else other
    place = state.shardings[other if one in state.constants else one].with_partial(())
    axes = {*state.pending_axes(one), *state.pending_axes(other)}
    alike = state.pending_axes(one) == state.pending_axes(other)
    if axes.isdisjoint(place.used) and (alike or is_accumulated(planner, result)):
        return place.with_partial(axes), summed
    return place, summed


def bind_capture(
    planner: Planner, op: Op, i: int, inner: Tensor, times: int, gather_once: bool = False
) -> None:
    """Give a loop what its body captures; where the body reads it elsewhere, it is moved before."""
    state, tensor = planner.state, op.inputs[i]
    if state.bind_constant(inner, tensor):
        return
    # A stack of parameters stays at rest if inner loops gather one row of it at a time, and so does
    # what only kernels would read.
    rows = not gather_once and _is_read_by_rows(planner, inner)
    rests = tensor in state.resting and (rows or planner.uses.is_offered(inner))
    if rests:
        state.resting.add(inner)
    target = planner.sharding_in_use(op, i, rests)
    state.captures[inner] = Capture(op, i, times, state.open_loops)
    planner.move_operand(op, i, target, times, reads=False)
    state.shardings[inner] = target
    # Unless the body reads it there, nothing does.
    state.note_move((state.value_of(inner), target), (state.value_of(tensor), target), [])


def bind_captures(
    planner: Planner, op: Op, body: Body, first: int, times: int, rests: bool = False
) -> None:
    """Move what a body captures to where it is used: where it rests, if nothing else is read."""
    state = planner.state
    for i, inner in enumerate(body.captures, first):
        if state.bind_constant(inner, op.inputs[i]):
            continue
        at_rest = rests or planner.uses.is_offered(inner)
        target = planner.sharding_in_use(op, i, at_rest)
        planner.move_operand(op, i, target, times)
        state.shardings[inner] = target
        if at_rest and op.inputs[i] in state.resting:
            state.resting.add(inner)


def plan_outcome(
    planner: Planner,
    op: Op,
    i: int,
    inner: Tensor,
    natural: Sharding,
    times: int,
    primal: Tensor | None = None,
) -> None:
    """Plan a result of a loop or branch; primal is what it is the gradient of, if not stated."""
    tensor, state = op.outputs[i], planner.state
    state.pass_sum(inner, tensor)
    if inner in state.resting or (primal is not None and primal in state.resting):
        state.resting.add(tensor)
    target = planner.sharding_of(primal if tensor.primal is None else tensor.primal)
    if tensor in state.running_sums:
        target = natural  # it moves when the enclosing loop is over
    if target is None and not op.derived and tensor not in state.resting:
        axes, whole = natural.mapping, natural.whole
        full, contested = planner.take_idle_axes(tensor, axes, whole, planner.layout)
        target = natural if contested else Sharding.of(full, whole)
    final = natural if target is None else target
    planner.place_result(op, tensor, natural, final.with_partial(()), times)


def sharding_of_carry(planner: Planner, op: Op, i: int) -> Sharding:
    """Return the sharding that a carry starts with; for a constant, that of the layout."""
    tensor, state = op.inputs[i], planner.state
    sharding = planner.sharding_in_use(op, i, False)
    if tensor in state.constants and tensor.primal is not None:
        return state.shardings[tensor]
    if planner.uses.producers[tensor].constant or tensor in state.constants:
        axes, whole = sharding.mapping, sharding.whole
        full, contested = planner.take_idle_axes(tensor, axes, whole, planner.layout)
        if contested:
            axes |= _decide_contested(planner, op, contested)
            full, _ = planner.take_idle_axes(tensor, axes, whole, planner.layout)
        return Sharding.of(full, whole)
    return sharding


def _decide_contested(planner: Planner, op: Op, contested: Mapping[str, Sequence[str]]) -> Axes:
    """Give an axis that two dimensions want to the one that it shards in what the loop reads."""
    won: Axes = {}
    for axis, names in contested.items():
        for i, other in enumerate(op.inputs):
            if {*names} <= {*other.shape.names} and other not in planner.state.constants:
                name = planner.sharding_in_use(op, i, False).dimension_over(axis)
                if name is not None and name in names:
                    won[name] = (*won.get(name, ()), axis)
                    break
    return won


def _is_read_by_rows(planner: Planner, tensor: Tensor) -> bool:
    """Return whether inner loops alone read a tensor, and one row of it in every iteration."""
    readers = planner.uses.readers.get(tensor, ())
    reads = [(reader, i) for reader in readers for i, x in enumerate(reader.inputs) if x is tensor]
    returned = tensor in planner.uses.returned
    return bool(reads) and not returned and all(_reads_rows(planner, *read) for read in reads)


def _reads_rows(planner: Planner, reader: Op, i: int) -> bool:
    """Return whether an op is a loop that reads an operand row by row, or gives it to such."""
    loop = reader.loop
    if loop is None or loop.over is None or i < loop.carries:
        return False
    return loop.reads_rows(i) or _is_read_by_rows(planner, loop.body.arguments[i])


def note_gathers(
    planner: Planner, op: Op, loop: LoopSpec, inside: Sequence[Collective], times: int
) -> None:
    """Note stacks at rest of which every iteration gathers all rows, and what sends less."""
    state, pairs = planner.state, zip(loop.body.arguments, op.inputs, strict=True)
    stacks = {
        inner.label: (i, tensor)
        for i, (inner, tensor) in enumerate(pairs)
        if inner in state.resting and i >= loop.carries and _is_read_by_rows(planner, inner)
    }
    gathers = [one for one in inside if one.kind == "AllGather" and one.tensor in stacks]
    for rows in (True, False):
        some = [one for one in gathers if loop.reads_rows(stacks[one.tensor][0]) == rows]
        tensors = dict.fromkeys(stacks[one.tensor][1] for one in some)
        sent = sum(one.total_wire_bytes for one in some)
        # What the backward pass computes again is gathered for that, and once more for itself.
        again = op.derived and len(some) > len(tensors)
        if rows and again:
            text = (
                f"each iteration over {loop.over} gathers weights at rest {len(some)} times for "
                f"{len(tensors)} of them, to compute layers again (remat in remat): one loop over "
                f"all layers with remat='full' sends {human(sent // 2)} less"
            )
        elif not rows and some:
            once, memory = _price_gathers(planner, [*tensors])
            text = (
                f"each iteration over {loop.over} gathers weights at rest layer by layer, "
                f"{human(sent)} in all: with gather_once=True that loop sends "
                f"{human(times * once)}, and each device keeps {human(memory)} more"
            )
            if again:
                text += "; half of it to compute layers again (remat): nm.grad inside the loop is"
                text += " without that"
        else:
            continue
        for tensor in tensors:
            state.decide(text, tensor)


def _price_gathers(planner: Planner, tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Return what a device sends to gather tensors at rest, and what it stores more then."""
    sent = memory = 0
    for tensor in tensors:
        place = planner.state.shardings[tensor].with_partial(())
        in_use = planner.default_sharding(tensor, planner.layout, place.whole)
        sent += planner.price_moves(tensor, place, in_use)[0]
        whole, shard = (one.local_elements(tensor.shape, planner.mesh) for one in (in_use, place))
        memory += (whole - shard) * tensor.itemsize
    return sent, memory


def sharding_of_row(planner: Planner, history: Tensor, row: Tensor, over: Dimension) -> Sharding:
    """Return the sharding in which an iteration leaves a row of a history."""
    # Partial sums are added up in every iteration, which saves memory, unless it saves
    # communication to add them up later: if they are small and better sent all at once, if an
    # outer loop adds up what this one makes, or if the sum ends up sharded along this loop.
    place = planner.state.shardings[row]
    size = place.local_elements(row.shape, planner.mesh) * row.itemsize
    if not place.partial or size < SMALL_ROW or is_accumulated(planner, history):
        return place
    target = planner.sharding_of(history.primal)
    if target is None or {*target.axes(over.name)} & {*place.partial}:
        return place
    return target.only(row.shape.names).kept_whole(place.whole)


def find_invariants(body: Body, outer: Mapping[Tensor, int]) -> dict[Tensor, int]:
    """Find what every iteration makes alike, and how often what that is made of changes."""
    known = {inner: outer[x] for inner, x in zip(body.captures, body.captured, strict=True)}
    for op in body.ops:
        for tensor, operands in () if op.given else op.read_by_result():
            if known.keys() >= {*operands}:
                known[tensor] = max((known[x] for x in operands), default=1)
    return known
