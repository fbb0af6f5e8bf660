"""The rules of ops that state where their results lie, and of loops and branches."""

from __future__ import annotations

from namedmesh.dims.errors import did_you_mean
from namedmesh.dims.sharding import Sharding
from namedmesh.ir.differentiate import Cotangent
from namedmesh.ir.op import Body, Op
from namedmesh.ir.tensor import Tensor
from namedmesh.lowering.planner import Planner
from namedmesh.ops.control import Cond, While
from namedmesh.ops.custom import CustomVjp
from namedmesh.ops.move import Move
from namedmesh.ops.scan import Scan


def settle_cotangent(planner: Planner, op: Cotangent, times: int) -> None:
    """A cotangent lies where its primal lies."""
    target, current = planner.target(op), planner.plan.shardings[op.inputs[0]]
    planner.settle(op, op.output, current, current if target is None else target, times)


def settle_move(planner: Planner, op: Move, times: int) -> None:
    """The one op that states where its result lies."""
    (tensor,) = op.inputs
    current = planner.place_in_use(op, 0, False)
    planner.bring_operand(op, 0, current, times)
    for axes in (op.exact or {}).values():
        for axis in axes:
            if axis not in planner.mesh.axes:
                raise op.error(
                    f"the mesh has no axis {axis!r}",
                    str(tensor),
                    f"mesh: {planner.mesh}",
                    fix=did_you_mean(axis, planner.mesh.axes),
                )
    taken = {name: planner.layout_axes(planner.plan.layout, name) for name in op.take}
    wanted = [axis for axes in taken.values() for axis in axes]
    for axis in wanted:
        if wanted.count(axis) > 1:
            raise planner.ambiguity_error(
                tensor,
                axis,
                [name for name, axes in taken.items() if axis in axes],
                "reshard one of them only",
                source=op.source,
            )
    if op.exact is not None:
        held, whole = (
            {
                name: tuple(a for a in axes if planner.mesh.axes[a] > 1)
                for name, axes in op.exact.items()
            },
            frozenset(tensor.shape.names) - {*op.exact},
        )
    else:
        held = {
            name: tuple(axis for axis in axes if axis not in wanted)
            for name, axes in current.held
            if name not in op.give
        } | taken
        whole = (current.whole - {*op.take}) | {*op.give}
        if op.give:
            whole |= {name for name in tensor.shape.names if not held.get(name)}
    planner.settle(op, op.output, current, Sharding.of(held, whole), times)


def settle_pass_through(planner: Planner, op: CustomVjp, times: int) -> None:
    """Every result lies where the operand it passes on lies."""
    for x, y in zip(op.inputs, op.outputs, strict=False):
        planner.settle(op, y, planner.plan.shardings[x], planner.plan.shardings[x], times)
        if x in planner.resting:
            planner.resting.add(y)


def settle_scan(planner: Planner, op: Scan, times: int) -> None:
    """The carry keeps the place it starts in; xs are read, and ys made, whole along the loop."""
    body, shardings, total = op.body, planner.plan.shardings, len(op.body.inputs)
    for i, tensor in enumerate(op.inputs):
        inner = body.arguments[i]
        if i < op.carries:
            target = place_of_carry(planner, op, i)
        elif i < total:
            target = shardings[tensor].only(set(tensor.shape.names) - {op.over.name})
            if tensor in planner.resting:
                planner.resting.add(inner)
        else:
            target = planner.place_in_use(op, i, False)
        planner.bring_operand(op, i, target, times)
        shardings[inner] = target.only(inner.shape.names).kept_whole(
            target.whole & {*inner.shape.names}
        )
    repeats = times * op.over.size
    planner.plan_ops(body.ops, repeats)
    for i, tensor in enumerate(body.outputs):
        if i < op.carries:
            place = shardings[body.inputs[i]]
            planner.bring_result(body, i, tensor, place, repeats)
        else:
            place = shardings[tensor].kept_whole(shardings[tensor].whole | {op.over.name})
        settle_outcome(planner, op, op.outputs[i], place, times)


def place_of_carry(planner: Planner, op: Op, i: int) -> Sharding:
    """Where a loop's carry lies: where it starts, or, for a constant, where the layout says."""
    tensor = op.inputs[i]
    sharding = planner.place_in_use(op, i, False)
    if planner.plan.producers[tensor].constant and tensor.primal is None:
        full, _ = planner.give_due_axes(
            tensor.shape, sharding.mapping, sharding.whole, planner.plan.layout
        )
        return Sharding.of(full, sharding.whole)
    return sharding


def settle_outcome(planner: Planner, op: Op, tensor: Tensor, natural: Sharding, times: int) -> None:
    """Settles a result of a loop or branch."""
    target = planner.place_of(tensor.primal)
    if target is None and not op.derived:
        full, contested = planner.give_due_axes(
            tensor.shape, natural.mapping, natural.whole, planner.plan.layout
        )
        target = natural if contested else Sharding.of(full, natural.whole)
    planner.settle(op, tensor, natural, natural if target is None else target, times)


def settle_while(planner: Planner, op: While, times: int) -> None:
    """As scan, but how often the body runs is not known: its collectives count once."""
    shardings, carries, tests = planner.plan.shardings, len(op.body.inputs), len(op.test.captures)
    for i in range(carries):
        target = place_of_carry(planner, op, i)
        planner.bring_operand(op, i, target, times)
        shardings[op.body.inputs[i]] = shardings[op.test.inputs[i]] = target
    bring_captures(planner, op, op.test, carries, times)
    bring_captures(planner, op, op.body, carries + tests, times)
    planner.open_loops += 1
    planner.plan_ops(op.test.ops, times)
    planner.bring_result(op.test, 0, op.test.outputs[0], Sharding(), times)
    planner.plan_ops(op.body.ops, times)
    for i, tensor in enumerate(op.body.outputs):
        planner.bring_result(op.body, i, tensor, shardings[op.body.inputs[i]], times)
    planner.open_loops -= 1
    for i in range(carries):
        settle_outcome(planner, op, op.outputs[i], shardings[op.body.inputs[i]], times)


def bring_captures(planner: Planner, op: Op, body: Body, first: int, times: int) -> None:
    """Brings what a body captures to where it is used."""
    for i, inner in enumerate(body.captures, first):
        target = planner.place_in_use(op, i, False)
        planner.bring_operand(op, i, target, times)
        planner.plan.shardings[inner] = target


def settle_cond(planner: Planner, op: Cond, times: int) -> None:
    """Both branches leave their results where the first does."""
    planner.bring_operand(op, 0, Sharding(), times)
    bring_captures(planner, op, op.yes, 1, times)
    bring_captures(planner, op, op.no, 1 + len(op.yes.captures), times)
    for body in op.bodies:
        planner.plan_ops(body.ops, times)
    for i, (yes, no) in enumerate(zip(op.yes.outputs, op.no.outputs, strict=True)):
        place = planner.plan.shardings[yes]
        planner.bring_result(op.no, i, no, place, times)
        settle_outcome(planner, op, op.outputs[i], place, times)
