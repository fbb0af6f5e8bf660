"""Simplifying: what nothing depends on, and what changes nothing, is left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from namedmesh.ir.op import Body, Op
from namedmesh.ir.tensor import Tensor


def live_ops(
    ops: Sequence[Op], outputs: Iterable[Tensor], bound: Iterable[Tensor] = (), prune: bool = False
) -> tuple[Op, ...]:
    """Return the ops that some output depends on, in order; pruned themselves, if asked to."""
    needed = {*outputs, *bound}
    kept = []
    for op in reversed(ops):
        if any(tensor in needed for tensor in op.outputs):
            op = prune_op(op, needed) if prune else op
            kept.append(op)
            needed.update(op.inputs)
    return tuple(reversed(kept))


def shorten_body(body: Body, keep: Sequence[int]) -> tuple[Body, list[int]]:
    """Return a body with some of its outputs, without arguments that those do not depend on."""
    outputs = tuple(body.outputs[i] for i in keep)
    read = {*outputs, *(x for op in live_ops(body.ops, outputs) for x in op.inputs)}
    stays = [i for i, tensor in enumerate(body.arguments) if tensor in read]
    count = len(body.inputs)
    inputs = tuple(body.arguments[i] for i in stays if i < count)
    captures = tuple(body.arguments[i] for i in stays if i >= count)
    captured = tuple(body.captured[i - count] for i in stays if i >= count)
    ops = live_ops(body.ops, outputs, (*inputs, *captures))
    return Body(ops, inputs, captures, captured, outputs), stays


def prune_ops(
    ops: Sequence[Op], outputs: Sequence[Tensor], bound: Sequence[Tensor] = ()
) -> tuple[Op, ...]:
    """Return the ops that some output depends on, pruned themselves inside loops and branches."""
    return live_ops(ops, outputs, bound, prune=True)


def prune_op(op: Op, needed: set[Tensor]) -> Op:
    """Return an op without the results nobody needs, and its bodies without what those took."""
    return op.drop_results(needed).map_bodies(prune_body)


def prune_body(body: Body) -> Body:
    """Return a body without the ops that its outputs do not depend on."""
    return dataclasses.replace(body, ops=prune_ops(body.ops, body.outputs, body.arguments))


def simplify_ops(
    ops: Sequence[Op], outputs: Sequence[Tensor]
) -> tuple[tuple[Op, ...], tuple[Tensor, ...]]:
    """Return ops that compute the same, and the tensors that are then the outputs."""
    stands: dict[Tensor, Tensor] = {}  # what each tensor that is left out is equal to
    zeros: set[Tensor] = set()
    kept: list[Op] = []
    for op in ops:
        op, unchanged = read_others(op, stands).map_bodies(_simplify_body).drop_unchanged()
        stands.update(unchanged)
        same = op.find_equal(zeros)
        if same is not None:
            stands[op.output] = same
            continue
        if op.zero or (op.additive and {*op.inputs} <= zeros):
            zeros.update(op.outputs)
        kept.append(op)
    return tuple(kept), tuple(stands.get(tensor, tensor) for tensor in outputs)


def read_others(op: Op, stands: dict[Tensor, Tensor]) -> Op:
    """Return an op that reads what stands for its operands."""
    if not any(tensor in stands for tensor in op.inputs):
        return op

    def replace(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(stands.get(tensor, tensor) for tensor in tensors)

    op = op.map_bodies(lambda body: dataclasses.replace(body, captured=replace(body.captured)))
    return op.rebuild(inputs=replace(op.inputs))


def _simplify_body(body: Body) -> Body:
    """Return a simpler body."""
    ops, outputs = simplify_ops(body.ops, body.outputs)
    return dataclasses.replace(body, ops=ops, outputs=outputs)
