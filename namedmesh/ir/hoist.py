"""Hoisting: what every turn of a loop would add up or move alike is done once, before the loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from namedmesh.ir.op import Op
from namedmesh.ir.tensor import Tensor


def hoist_invariants(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Returns the ops with reductions and moves that do not depend on the turn before their loops.

    Other invariant ops stay where they are: to compute them again costs less memory than to keep
    them, and no communication.

    Args:
        ops: The ops of a program or a body.

    Returns:
        Ops that compute the same.
    """
    result: list[Op] = []
    for op in ops:
        bodies = {
            name: dataclasses.replace(body, ops=hoist_invariants(body.ops))
            for name, body in op.body_fields().items()
        }
        op = op.rebuild(**bodies) if bodies else op
        if op.rule == "scan":
            before, op = _split_loop(op)
            result += before
        result.append(op)
    return tuple(result)


def _split_loop(loop: Op) -> tuple[list[Op], Op]:
    """Returns what to do before a loop, and the loop that reads the results of that."""
    (body,) = loop.bodies
    invariant, roots = _find_invariants(body.ops, {*body.captures})
    if not roots:
        return [], loop
    moved_out = {*roots}
    needed = {tensor for op in roots for tensor in op.inputs}
    for op in reversed(invariant):
        if any(tensor in needed for tensor in op.outputs):
            needed.update(op.inputs)
    outside = dict(zip(body.captures, body.captured, strict=True))
    before: list[Op] = []
    for op in invariant:
        if op in moved_out or any(tensor in needed for tensor in op.outputs):
            outputs = tuple(Tensor(t.shape, t.dtype, t.kind, t.source, t.name) for t in op.outputs)
            inputs = tuple(outside[tensor] for tensor in op.inputs)
            before.append(op.rebuild(inputs=inputs, outputs=outputs, identity=object()))
            outside.update(zip(op.outputs, outputs, strict=True))
    given = next(op for op in body.ops if op.given)
    ops = tuple(
        given.rebuild(
            outputs=op.outputs,
            shape=op.output.shape,
            dtype=op.output.dtype,
            source=op.source,
            identity=object(),
        )
        if op in moved_out
        else op
        for op in body.ops
    )
    results = [op.output for op in roots]
    brought = tuple(outside[tensor] for tensor in results)
    longer = dataclasses.replace(
        body,
        ops=ops,
        captures=(*body.captures, *results),
        captured=(*body.captured, *brought),
    )
    return before, loop.rebuild(inputs=(*loop.inputs, *brought), body=longer)


def _find_invariants(ops: Sequence[Op], known: set[Tensor]) -> tuple[list[Op], list[Op]]:
    """Finds ops that depend on captures alone, and those of them that add up or move something."""
    invariant: list[Op] = []
    roots: list[Op] = []
    read = {*known}
    for op in ops:
        if op.given or op.bodies or not all(tensor in known for tensor in op.inputs):
            continue
        known.update(op.outputs)
        invariant.append(op)
        if not any(tensor in read for tensor in op.inputs):
            continue  # made of constants alone
        read.update(op.outputs)
        cotangent = any(tensor.primal is not None for tensor in op.outputs)
        if len(op.outputs) == 1 and not cotangent and (op.placement().reduced or op.states_place):
            roots.append(op)
    return invariant, roots
