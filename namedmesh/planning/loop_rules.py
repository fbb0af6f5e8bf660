"""The rules of loops and branches: carries keep their sharding from iteration to iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from namedmesh.dims.dimension import Dimension
from namedmesh.dims.sharding import Sharding
from namedmesh.ir.op import Body, LoopSpec, Op
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.planner import Axes, Planner
from namedmesh.planning.rules import is_accumulated

SMALL_ROW = 2**20  # bytes that take a device longer to start sending than to send


def plan_loop(planner: Planner, op: Op, times: int) -> None:
    """Plan a loop: along a dimension, or for as long as a test holds."""
    loop = op.loop
    if loop is not None and loop.over is not None:
        _plan_scan(planner, op, loop, loop.over, times)
    elif loop is not None and loop.test is not None:
        _plan_while(planner, op, loop.body, loop.test, times)


def _plan_scan(planner: Planner, op: Op, loop: LoopSpec, over: Dimension, times: int) -> None:
    """Plan a loop along a dimension: rows are read, and histories made, whole along it."""
    body, state = loop.body, planner.state
    sums = find_accumulators(planner, op, loop)
    for i, tensor in enumerate(op.inputs):
        inner = body.arguments[i]
        if i in sums:
            # Its sharding is that of what is added to it: partial sums stay partial until the
            # loop is over, and are added up once.
            state.open_accumulator(inner)
            continue
        if i < loop.carries:
            target = sharding_of_carry(planner, op, i)
        elif loop.reads_rows(i):
            target = planner.sharding_in_use(op, i, True)
            if tensor in state.constants:
                target = state.shardings[tensor]
            target = target.only(set(tensor.shape.names) - {over.name})
            if tensor in state.resting:
                state.mark_resting(inner)
        elif state.bind_constant(inner, tensor):
            continue
        else:
            target = sharding_of_capture(planner, op, i, inner)
            state.capture(inner, op, i, times)
        planner.move_operand(op, i, target, times)
        names = inner.shape.names
        state.bind(inner, target.only(names).kept_whole(target.whole & {*names}))
    repeats = times * over.size
    state.mark_invariant(find_invariants(body), times)
    planner.plan_ops(body.ops, repeats)
    for i in sums:
        planner.move_operand(op, i, state.shardings[body.inputs[i]], times)
    for i, tensor in enumerate(body.outputs):
        if i < loop.carries:
            place = state.shardings[body.inputs[i]]
            planner.move_result(body, i, tensor, place, repeats)
        else:
            place = sharding_of_row(planner, op.outputs[i], tensor, over)
            planner.move_result(body, i, tensor, place, repeats)
            place = place.kept_whole(place.whole | {over.name})
        primal = find_accumulated(planner, op, tensor) if i in sums else None
        plan_outcome(planner, op, i, tensor, place, times, primal)


def _plan_while(planner: Planner, op: Op, body: Body, test: Body, times: int) -> None:
    """Plan a loop of unknown length: collectives of an iteration count once."""
    state, carries = planner.state, len(body.inputs)
    for i in range(carries):
        target = sharding_of_carry(planner, op, i)
        planner.move_operand(op, i, target, times)
        state.bind(body.inputs[i], target)
        state.bind(test.inputs[i], target)
    bind_captures(planner, op, test, carries, times)
    bind_captures(planner, op, body, carries + len(test.captures), times)
    with state.in_open_loop():
        planner.plan_ops(test.ops, times)
        # Every device decides by itself whether to go on, and all must decide the same.
        planner.move_result(test, 0, test.outputs[0], Sharding(), times)
        planner.plan_ops(body.ops, times)
        for i, tensor in enumerate(body.outputs):
            planner.move_result(body, i, tensor, state.shardings[body.inputs[i]], times)
    for i, tensor in enumerate(body.outputs):
        plan_outcome(planner, op, i, tensor, state.shardings[body.inputs[i]], times)


def plan_branches(planner: Planner, op: Op, times: int) -> None:
    """Plan both branches, which leave their results as the first does."""
    planner.move_operand(op, 0, Sharding(), times)
    rests = planner.rests(op)
    first, second = op.bodies
    bind_captures(planner, op, first, 1, times, rests)
    bind_captures(planner, op, second, 1 + len(first.captures), times, rests)
    for body in op.bodies:
        planner.plan_ops(body.ops, times)
    for i, (one, other) in enumerate(zip(first.outputs, second.outputs, strict=True)):
        # Partial sums are added up in the branch: the other one may not have any.
        place = planner.state.shardings[one].with_partial(())
        planner.move_result(first, i, one, place, times)
        planner.move_result(second, i, other, place, times)
        plan_outcome(planner, op, i, one, place, times)


def bind_captures(
    planner: Planner, op: Op, body: Body, first: int, times: int, rests: bool = False
) -> None:
    """Move what a body captures to where it is used: where it rests, if nothing else is read."""
    state = planner.state
    for i, inner in enumerate(body.captures, first):
        if state.bind_constant(inner, op.inputs[i]):
            continue
        target = planner.sharding_in_use(op, i, rests)
        planner.move_operand(op, i, target, times)
        state.bind(inner, target)
        if rests and op.inputs[i] in state.resting:
            state.mark_resting(inner)


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
        state.mark_resting(tensor)
    target = planner.sharding_of(primal if tensor.primal is None else tensor.primal)
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


def sharding_of_capture(planner: Planner, op: Op, i: int, inner: Tensor) -> Sharding:
    """Return the sharding in which a loop has what its body captures: in use, as a rule."""
    tensor, state = op.inputs[i], planner.state
    # A stack of parameters stays at rest if inner loops gather one row of it at a time.
    if tensor in state.resting and _is_read_by_rows(planner, inner):
        state.mark_resting(inner)
        return state.shardings[tensor].with_partial(())
    return planner.sharding_in_use(op, i, False)


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


def find_accumulators(planner: Planner, op: Op, loop: LoopSpec) -> list[int]:
    """Find the carries that start at zero and are only added to, iteration by iteration."""
    zeros = [i for i in range(loop.carries) if op.inputs[i] in planner.state.zeros]
    return [i for i in zeros if _is_only_added_to(planner, loop.body, i)]


def _is_only_added_to(planner: Planner, body: Body, i: int) -> bool:
    """Return whether a body's result is its input and something else, added up, and no more."""
    total = body.inputs[i]
    while planner.uses.count_uses(total) == 1:
        reader = planner.uses.sole_reader(total)
        if reader is None:
            return total is body.outputs[i] and total is not body.inputs[i]
        adds = reader.elementwise and reader.additive and reader.late_sums
        several = len({*reader.inputs} - planner.state.constants.keys()) > 1
        if not adds or not several or reader.output.shape != total.shape:
            return False
        total = reader.output
    return False


def find_accumulated(planner: Planner, op: Op, total: Tensor) -> Tensor | None:
    """Find the tensor outside a loop whose gradients the loop adds up, such as a parameter."""
    pending, seen = [total], {total}
    while pending:
        tensor = pending.pop()
        capture = None if tensor.primal is None else planner.state.captures.get(tensor.primal)
        if capture is not None and capture.loop is op:
            outer = op.inputs[capture.operand]
            return outer if outer.shape == total.shape else None
        producer = planner.uses.producers[tensor]
        if producer.elementwise and producer.linear_in and producer.late_sums:
            terms = [x for x in producer.inputs if x.shape == total.shape and x not in seen]
            pending += terms
            seen.update(terms)
    return None


def find_invariants(body: Body) -> set[Tensor]:
    """Find what every iteration makes alike, of constants and what the loop captures."""
    known = {*body.captures}
    for op in body.ops:
        if not op.given and all(tensor in known for tensor in op.inputs):
            known.update(op.outputs)
    return known - {*body.captures}
