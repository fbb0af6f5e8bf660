"""The rules of ops that state where their results lie, and of loops and branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from namedmesh.dims.dimension import Dimension
from namedmesh.dims.sharding import Sharding, conversion
from namedmesh.errors.errors import NamedMeshError, did_you_mean, join_names
from namedmesh.ir.op import Body, LoopSpec, Op
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.carries import place_of_carry
from namedmesh.planning.partial_sums import is_accumulated
from namedmesh.planning.planner import Planner
from namedmesh.planning.rules import settle_free
from namedmesh.planning.transfers import place_after_move

SMALL_ROW = 2**20  # bytes that take a device longer to start sending than to send


def settle_cotangent(planner: Planner, op: Op, times: int) -> None:
    """A cotangent lies where its primal lies; parts that lie together are added before they move.

    What XLA would add up, gather or move once for every part is so done once for all of them.
    """
    plan, tensor = planner.plan, op.output
    if all(t in plan.free for t in op.inputs):
        settle_free(planner, op, tensor)
        return
    target = planner.target(op)
    if len(op.inputs) == 1 and target is not None and not planner.is_part(tensor):
        (part,) = op.inputs
        if part not in planner.open and not plan.shardings[part].partial:
            planner.bring_operand(op, 0, target, times)
            planner.settle(op, tensor, target, target, times)
            return
    groups: dict[Sharding, list[int]] = {}
    for i, part in enumerate(op.inputs):
        if part not in planner.open and part not in plan.free:
            groups.setdefault(slice_part(planner, op, i, target, times), []).append(i)
    places = list(groups)
    base = places[0] if len(places) == 1 else target or places[0].with_partial(())
    plan.sums[op] = []
    for place, members in groups.items():
        steps = conversion(tensor.shape, planner.mesh, place, base)
        planner.record_transfers(op, op.inputs[members[0]], steps, times)
        plan.sums[op].append((tuple(members), steps))
    for i, part in enumerate(op.inputs):
        if part in plan.free and part not in planner.zero:
            plan.made[op, i] = base.with_partial(())
            steps = conversion(tensor.shape, planner.mesh, base.with_partial(()), base)
            plan.sums[op].append(((i,), steps))
        if part in planner.open:
            plan.sums[op].append(((i,), []))
    is_open = any(part in planner.open for part in op.inputs)
    final = base if target is None or is_open or planner.is_part(tensor) else target
    planner.settle(op, tensor, base, final.with_partial(()), times)
    for part in op.inputs:
        if part in planner.open:
            planner.open.remove(part)
            plan.shardings[part] = plan.shardings[tensor]


def slice_part(planner: Planner, op: Op, i: int, target: Sharding | None, times: int) -> Sharding:
    """Cut a part of a cotangent down to where the whole will lie, where that is free."""
    part = op.inputs[i]
    place = planner.plan.shardings[part]
    if target is None:
        return place
    kept = target.with_partial(axis for axis in place.partial if axis not in target.used)
    steps = conversion(part.shape, planner.mesh, place, kept)
    if any(step.kind != "Slice" for step in steps):
        return place
    planner.bring_operand(op, i, kept, times)
    return kept.kept_whole(place.whole)


def check_taken(planner: Planner, op: Op, take: Sequence[str]) -> None:
    """Raise where two dimensions are to take one axis."""
    (tensor,) = op.inputs
    takers: dict[str, list[str]] = {}
    for name in take:
        if tensor.shape.size_of(name) > 1:
            for axis in planner.layout_axes(planner.plan.layout, name):
                takers.setdefault(axis, []).append(name)
    for axis, names in takers.items():
        if len(names) > 1:
            raise NamedMeshError(
                f"tensor {tensor.label}: dimensions {join_names(names)} both map to "
                f"mesh axis {axis!r}, and nothing says which holds it",
                str(tensor),
                f"layout: {planner.plan.layout.text}",
                f"mesh: {planner.mesh}",
                source=op.source,
                fix="reshard one of them only",
            )


def settle_move(
    planner: Planner,
    op: Op,
    times: int,
    take: Sequence[str],
    give: Sequence[str],
    exact: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """The one op that states where its result lies."""
    (tensor,) = op.inputs
    current = planner.place_in_use(op, 0, False)
    if tensor in planner.plan.free:  # what it does not give up stays where the layout has it
        current = planner.plan.shardings[tensor].with_partial(())
    for axes in (exact or {}).values():
        for axis in axes:
            if axis not in planner.mesh.axes:
                raise op.error(
                    f"the mesh has no axis {axis!r}",
                    str(tensor),
                    f"mesh: {planner.mesh}",
                    fix=did_you_mean(axis, planner.mesh.axes),
                )
    check_taken(planner, op, take)
    if exact is None:
        place = place_after_move(planner, tensor, current, take, give)
    else:
        held = {
            name: tuple(axis for axis in axes if planner.mesh.axes[axis] > 1)
            for name, axes in exact.items()
        }
        place = Sharding.of(held, frozenset(tensor.shape.names) - {*exact})
    if tensor in planner.plan.free:
        settle_free(planner, op, op.output, place)
        return
    planner.bring_operand(op, 0, place, times)
    planner.settle(op, op.output, place, place, times)


def settle_pass_through(planner: Planner, op: Op, times: int) -> None:
    """Every result lies where the operand it passes on lies.

    Parts of a sum pass a kernel too, for the next reader to add up.
    """
    for i, (x, y) in enumerate(zip(op.inputs, op.outputs, strict=False)):
        place = planner.plan.shardings[x]
        whole = place.with_partial(())
        natural = place if op.offers_kernel else whole
        planner.bring_operand(op, i, natural, times)
        planner.settle(op, y, natural, whole, times)
        if x in planner.resting:
            planner.resting.add(y)


def settle_loop(planner: Planner, op: Op, times: int) -> None:
    """Plan a loop: along a dimension, or for as long as a test holds."""
    loop = op.loop
    assert loop is not None
    if loop.over is not None:
        settle_scan(planner, op, loop, loop.over, times)
    elif loop.test is not None:
        settle_while(planner, op, loop.body, loop.test, times)


def settle_scan(planner: Planner, op: Op, loop: LoopSpec, over: Dimension, times: int) -> None:
    """The carry keeps the place it starts in; xs are read, and ys made, whole along the loop.

    A sum that starts at zero lies where what is added to it lies: parts of a sum stay parts until
    the loop is over.
    """
    body, shardings = loop.body, planner.plan.shardings
    sums = find_accumulators(planner, op, loop)
    for i, tensor in enumerate(op.inputs):
        inner = body.arguments[i]
        if i in sums:
            planner.open.add(inner)
            continue
        if i < loop.carries:
            target = place_of_carry(planner, op, i)
        elif loop.reads_rows(i):
            target = planner.place_in_use(op, i, True)
            if tensor in planner.plan.free:
                target = shardings[tensor]
            target = target.only(set(tensor.shape.names) - {over.name})
            if tensor in planner.resting:
                planner.resting.add(inner)
        elif share_free(planner, tensor, inner):
            continue
        else:
            target = place_of_capture(planner, op, i, inner)
            planner.captures[inner] = op, i, times
        planner.bring_operand(op, i, target, times)
        shardings[inner] = target.only(inner.shape.names).kept_whole(
            target.whole & {*inner.shape.names}
        )
    repeats = times * over.size
    planner.invariant.update(dict.fromkeys(find_invariants(body), times))
    planner.plan_ops(body.ops, repeats)
    for i in sums:
        planner.bring_operand(op, i, shardings[body.inputs[i]], times)
    for i, tensor in enumerate(body.outputs):
        if i < loop.carries:
            place = shardings[body.inputs[i]]
            planner.bring_result(body, i, tensor, place, repeats)
        else:
            place = place_of_row(planner, op.outputs[i], tensor, over)
            planner.bring_result(body, i, tensor, place, repeats)
            place = place.kept_whole(place.whole | {over.name})
        primal = find_accumulated(planner, op, tensor) if i in sums else None
        settle_outcome(planner, op, i, tensor, place, times, primal)


def place_of_row(planner: Planner, history: Tensor, row: Tensor, over: Dimension) -> Sharding:
    """Return where an iteration leaves a row of a history; sums are added up to save memory.

    They stay parts where that saves communication: if they are small and better sent all at once,
    if an outer loop adds up what this one makes, or if the sum ends up split along this loop.
    """
    place = planner.plan.shardings[row]
    size = place.local_elements(row.shape, planner.mesh) * row.itemsize
    if not place.partial or size < SMALL_ROW or is_accumulated(planner, history):
        return place
    target = planner.place_of(history.primal)
    if target is None or {*target.axes(over.name)} & {*place.partial}:
        return place
    return target.only(row.shape.names).kept_whole(place.whole)


def find_accumulated(planner: Planner, op: Op, total: Tensor) -> Tensor | None:
    """Find the tensor outside a loop whose gradients the loop adds up, such as a parameter."""
    tensors, seen = [total], {total}
    while tensors:
        tensor = tensors.pop()
        captured = None if tensor.primal is None else planner.captures.get(tensor.primal)
        if captured is not None and captured[0] is op:
            outer = op.inputs[captured[1]]
            return outer if outer.shape == total.shape else None
        producer = planner.plan.producers[tensor]
        if producer.adds_operands or (producer.elementwise and producer.linear):
            like = [x for x in producer.inputs if x.shape == total.shape and x not in seen]
            tensors += like
            seen.update(like)
    return None


def find_invariants(body: Body) -> set[Tensor]:
    """Find what every iteration of a loop makes alike, of constants and what it captures."""
    known = {*body.captures}
    for op in body.ops:
        if not op.given and all(tensor in known for tensor in op.inputs):
            known.update(op.outputs)
    return known - {*body.captures}


def find_accumulators(planner: Planner, op: Op, loop: LoopSpec) -> list[int]:
    """Find the carries that start at zero and are only added to, iteration by iteration."""
    return [
        i
        for i in range(loop.carries)
        if op.inputs[i] in planner.zero and _is_only_added_to(planner, loop.body, i)
    ]


def _is_only_added_to(planner: Planner, body: Body, i: int) -> bool:
    """Whether a body's result is its input and something else, added up, and nothing reads more."""
    total = body.inputs[i]
    while planner.count_uses(total) == 1:
        reader = planner.sole_reader(total)
        if reader is None:
            return total is body.outputs[i] and total is not body.inputs[i]
        adds = reader.adds_operands or (reader.elementwise and reader.linear == "together")
        several = len({*reader.inputs} - planner.plan.free.keys()) > 1
        if not adds or not several or reader.output.shape != total.shape:
            return False
        total = reader.output
    return False


def share_free(planner: Planner, tensor: Tensor, inner: Tensor) -> bool:
    """Lets a body make for itself what it captures, if that is made of constants alone."""
    plan = planner.plan
    if tensor not in plan.free:
        return False
    plan.free[inner] = plan.free[tensor]
    plan.shardings[inner] = plan.shardings[tensor]
    if tensor in planner.zero:
        planner.zero.add(inner)
    return True


def place_of_capture(planner: Planner, op: Op, i: int, inner: Tensor) -> Sharding:
    """Where a loop has what its body captures: in use, or at rest if only inner loops read it."""
    tensor = op.inputs[i]
    if tensor in planner.resting and _is_read_by_rows(planner, inner):
        planner.resting.add(inner)
        return planner.plan.shardings[tensor].with_partial(())
    return planner.place_in_use(op, i, False)


def _is_read_by_rows(planner: Planner, tensor: Tensor) -> bool:
    """Whether inner loops alone read a tensor, and one row of it in every iteration."""
    readers = planner.consumers.get(tensor, ())
    return (
        bool(readers)
        and not planner.returned[tensor]
        and all(
            _reads_rows(planner, reader, i)
            for reader in readers
            for i, x in enumerate(reader.inputs)
            if x is tensor
        )
    )


def _reads_rows(planner: Planner, reader: Op, i: int) -> bool:
    """Whether an op reads an operand row by row: it is a loop along a dimension, or holds one."""
    loop = reader.loop
    if loop is None or loop.over is None or i < loop.carries:
        return False
    return loop.reads_rows(i) or _is_read_by_rows(planner, loop.body.arguments[i])


def settle_outcome(
    planner: Planner,
    op: Op,
    i: int,
    inner: Tensor,
    natural: Sharding,
    times: int,
    primal: Tensor | None = None,
) -> None:
    """Settle a result of a loop or branch, which a tensor of its body becomes.

    primal is the tensor that it is the gradient of, where the program does not say so itself.
    """
    tensor = op.outputs[i]
    if inner in planner.plan.summed_by:
        planner.plan.summed_by[tensor] = planner.plan.summed_by[inner]
        if inner in planner.summed_as and tensor.name is None and tensor.primal is None:
            planner.summed_as[tensor] = planner.summed_as[inner]
    if inner in planner.resting or (primal is not None and primal in planner.resting):
        planner.resting.add(tensor)
    target = planner.place_of(primal if tensor.primal is None else tensor.primal)
    if target is None and not op.derived and tensor not in planner.resting:
        full, contested = planner.give_due_axes(
            tensor, natural.mapping, natural.whole, planner.plan.layout
        )
        target = natural if contested else Sharding.of(full, natural.whole)
    final = natural if target is None else target
    planner.settle(op, tensor, natural, final.with_partial(()), times)


def settle_while(planner: Planner, op: Op, body: Body, test: Body, times: int) -> None:
    """As scan, but how often the body runs is not known: its collectives count once."""
    shardings, carries, tests = planner.plan.shardings, len(body.inputs), len(test.captures)
    for i in range(carries):
        target = place_of_carry(planner, op, i)
        planner.bring_operand(op, i, target, times)
        shardings[body.inputs[i]] = shardings[test.inputs[i]] = target
    bring_captures(planner, op, test, carries, times)
    bring_captures(planner, op, body, carries + tests, times)
    planner.open_loops += 1
    planner.plan_ops(test.ops, times)
    planner.bring_result(test, 0, test.outputs[0], Sharding(), times)
    planner.plan_ops(body.ops, times)
    for i, tensor in enumerate(body.outputs):
        planner.bring_result(body, i, tensor, shardings[body.inputs[i]], times)
    planner.open_loops -= 1
    for i, tensor in enumerate(body.outputs):
        settle_outcome(planner, op, i, tensor, shardings[body.inputs[i]], times)


def bring_captures(
    planner: Planner, op: Op, body: Body, first: int, times: int, rests: bool = False
) -> None:
    """Bring what a body captures to where it is used: where it rests, if nothing else is read."""
    for i, inner in enumerate(body.captures, first):
        if share_free(planner, op.inputs[i], inner):
            continue
        target = planner.place_in_use(op, i, rests)
        planner.bring_operand(op, i, target, times)
        planner.plan.shardings[inner] = target
        if rests and op.inputs[i] in planner.resting:
            planner.resting.add(inner)


def settle_branches(planner: Planner, op: Op, times: int) -> None:
    """Both branches leave their results where the first does."""
    planner.bring_operand(op, 0, Sharding(), times)
    rests = planner.rests(op)
    first, second = op.bodies
    bring_captures(planner, op, first, 1, times, rests)
    bring_captures(planner, op, second, 1 + len(first.captures), times, rests)
    for body in op.bodies:
        planner.plan_ops(body.ops, times)
    for i, (yes, no) in enumerate(zip(first.outputs, second.outputs, strict=True)):
        place = planner.plan.shardings[yes].with_partial(())
        planner.bring_result(first, i, yes, place, times)
        planner.bring_result(second, i, no, place, times)
        settle_outcome(planner, op, i, yes, place, times)
