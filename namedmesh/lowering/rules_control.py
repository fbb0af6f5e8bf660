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
    planner.finish(op, op.output, current, current if target is None else target, times)


def settle_move(planner: Planner, op: Move, times: int) -> None:
    """The one op that states where its result lies."""
    (tensor,) = op.inputs
    current = planner.in_use(op, 0, False)
    planner.operand(op, 0, current, times)
    for axes in (op.exact or {}).values():
        for axis in axes:
            if axis not in planner.mesh.axes:
                raise op.error(
                    f"the mesh has no axis {axis!r}",
                    str(tensor),
                    f"mesh: {planner.mesh}",
                    fix=did_you_mean(axis, planner.mesh.axes),
                )
    taken = {name: planner.axes(planner.plan.layout, name) for name in op.take}
    wanted = [axis for axes in taken.values() for axis in axes]
    for axis in wanted:
        if wanted.count(axis) > 1:
            raise planner.ambiguous(
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
    planner.finish(op, op.output, current, Sharding.of(held, whole), times)


def settle_pass_through(planner: Planner, op: CustomVjp, times: int) -> None:
    """Every result lies where the operand it passes on lies."""
    for x, y in zip(op.inputs, op.outputs, strict=False):
        planner.finish(op, y, planner.plan.shardings[x], planner.plan.shardings[x], times)
        if x in planner.resting:
            planner.resting.add(y)


def settle_scan(planner: Planner, op: Scan, times: int) -> None:
    """The carry keeps the place it starts in; xs are read, and ys made, whole along the loop, the rest as they lie."""
    body, shardings, total = op.body, planner.plan.shardings, len(op.body.inputs)
    for i, tensor in enumerate(op.inputs):
        inner = body.arguments[i]
        if i < op.carries:
            target = start(planner, op, i)
        elif i < total:
            target = shardings[tensor].only(set(tensor.shape.names) - {op.over.name})
            if tensor in planner.resting:
                planner.resting.add(inner)
        else:
            target = planner.in_use(op, i, False)
        planner.operand(op, i, target, times)
        shardings[inner] = target.only(inner.shape.names).kept_whole(
            target.whole & {*inner.shape.names}
        )
    repeats = times * op.over.size
    planner.ops(body.ops, repeats)
    for i, tensor in enumerate(body.outputs):
        if i < op.carries:
            place = shardings[body.inputs[i]]
            planner.result(body, i, tensor, place, repeats)
        else:
            place = shardings[tensor].kept_whole(shardings[tensor].whole | {op.over.name})
        outcome(planner, op, op.outputs[i], place, times)


def start(planner: Planner, op: Op, i: int) -> Sharding:
    """Where a loop's carry lies: where it starts, or, for a constant, where the layout says."""
    tensor = op.inputs[i]
    sharding = planner.in_use(op, i, False)
    if planner.plan.producers[tensor].constant and tensor.primal is None:
        full, _ = planner.due(tensor.shape, sharding.mapping, sharding.whole, planner.plan.layout)
        return Sharding.of(full, sharding.whole)
    return sharding


def outcome(planner: Planner, op: Op, tensor: Tensor, natural: Sharding, times: int) -> None:
    """Settles a result of a loop or branch."""
    target = planner.place_of(tensor.primal)
    if target is None and not op.derived:
        full, contested = planner.due(
            tensor.shape, natural.mapping, natural.whole, planner.plan.layout
        )
        target = natural if contested else Sharding.of(full, natural.whole)
    planner.finish(op, tensor, natural, natural if target is None else target, times)


def settle_while(planner: Planner, op: While, times: int) -> None:
    """As scan, but how often the body runs is not known: its collectives count once."""
    shardings, carries, tests = planner.plan.shardings, len(op.body.inputs), len(op.test.captures)
    for i in range(carries):
        target = start(planner, op, i)
        planner.operand(op, i, target, times)
        shardings[op.body.inputs[i]] = shardings[op.test.inputs[i]] = target
    captured(planner, op, op.test, carries, times)
    captured(planner, op, op.body, carries + tests, times)
    planner.ops(op.test.ops, times)
    planner.result(op.test, 0, op.test.outputs[0], Sharding(), times)
    planner.ops(op.body.ops, times)
    for i, tensor in enumerate(op.body.outputs):
        planner.result(op.body, i, tensor, shardings[op.body.inputs[i]], times)
        outcome(planner, op, op.outputs[i], shardings[op.body.inputs[i]], times)


def captured(planner: Planner, op: Op, body: Body, first: int, times: int) -> None:
    """Brings what a body captures to where it is used."""
    for i, inner in enumerate(body.captures, first):
        target = planner.in_use(op, i, False)
        planner.operand(op, i, target, times)
        planner.plan.shardings[inner] = target


def settle_cond(planner: Planner, op: Cond, times: int) -> None:
    """Both branches leave their results where the first does."""
    planner.operand(op, 0, Sharding(), times)
    captured(planner, op, op.yes, 1, times)
    captured(planner, op, op.no, 1 + len(op.yes.captures), times)
    for body in op.bodies:
        planner.ops(body.ops, times)
    for i, (yes, no) in enumerate(zip(op.yes.outputs, op.no.outputs, strict=True)):
        place = planner.plan.shardings[yes]
        planner.result(op.no, i, no, place, times)
        outcome(planner, op, op.outputs[i], place, times)
