"""Hoisting: what every iteration of a loop would do alike is done once, before the loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from namedmesh.ir.contents import describe_options
from namedmesh.ir.op import Op
from namedmesh.ir.tensor import Tensor


def hoist_invariants(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Move reductions and reshards that are the same in every iteration before their loops.

    So is what takes no more memory than it is made of, such as a cast weight. Other invariant ops
    stay where they are: to compute them again costs less than to keep them. A backward pass
    computes what its forward pass did again: what both hoist is done once.
    """
    result: list[Op] = []
    done: dict[object, Op] = {}
    for op in ops:
        bodies = {
            name: dataclasses.replace(body, ops=hoist_invariants(body.ops))
            for name, body in op.body_fields().items()
        }
        op = op.rebuild(**bodies) if bodies else op
        if op.loop is not None and op.loop.over is not None:
            before, op = _split_loop(op, done)
            result += before
        result.append(op)
    return tuple(result)


def _split_loop(loop: Op, done: dict[object, Op]) -> tuple[list[Op], Op]:
    """Return what to do before a loop, and the loop that reads the results of that.

    done has what earlier loops hoisted, by what it computes.
    """
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
            moved = op.rebuild(inputs=inputs, outputs=outputs, identity=object())
            computes = describe_options(moved), tuple(map(id, inputs))
            made = done.setdefault(computes, moved)
            if made is moved:
                before.append(moved)
            outside.update(zip(op.outputs, made.outputs, strict=True))
    results = [op.output for op in roots]
    bound = dict(zip(roots, body.bind(results), strict=True))
    ops = tuple(bound.get(op, op) for op in body.ops)
    brought = tuple(outside[tensor] for tensor in results)
    longer = dataclasses.replace(
        body,
        ops=ops,
        captures=(*body.captures, *results),
        captured=(*body.captured, *brought),
    )
    return before, loop.rebuild(inputs=(*loop.inputs, *brought), body=longer)


def _find_invariants(ops: Sequence[Op], known: set[Tensor]) -> tuple[list[Op], list[Op]]:
    """Find ops that depend on captures alone, and those of them that are worth doing once."""
    invariant: list[Op] = []
    made_of = {tensor: _count_bytes(tensor) for tensor in known}  # captures, in bytes
    for op in ops:
        if not (op.given or op.bodies) and all(tensor in known for tensor in op.inputs):
            known.update(op.outputs)
            invariant.append(op)
            source = sum(made_of.get(tensor, 0) for tensor in op.inputs)
            made_of.update((tensor, source) for tensor in op.outputs)
    stays = {*invariant}
    read = {tensor for op in ops if op not in stays for tensor in op.inputs}
    roots = []
    for op in invariant:
        tensor = op.outputs[0]
        if len(op.outputs) > 1 or tensor.primal is not None or not made_of[tensor]:
            continue  # nothing is captured for what is made of constants alone
        small = tensor in read and _count_bytes(tensor) <= made_of[tensor]
        if small or op.placement().reduced or op.states_place or op.adds_operands:
            roots.append(op)
    return invariant, roots


def _count_bytes(tensor: Tensor) -> int:
    """What a tensor takes, all devices together."""
    return tensor.shape.elements * tensor.itemsize
