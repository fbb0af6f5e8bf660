"""Simplifying: sums with zeros, and what a loop carries without ever changing it, are left out.

XLA leaves them out as well; a plan that kept them would have collectives that are never made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from namedmesh.ir.op import Op
from namedmesh.ir.tensor import Tensor


def simplify_ops(
    ops: Sequence[Op], outputs: Sequence[Tensor]
) -> tuple[tuple[Op, ...], tuple[Tensor, ...]]:
    """Return ops that compute the same, and the tensors that are then the outputs."""
    stands: dict[Tensor, Tensor] = {}  # what each tensor that is left out is equal to
    zeros: set[Tensor] = set()
    kept: list[Op] = []
    for op in ops:
        op = _simplify_bodies(read_others(op, stands))
        op, unchanged = op.drop_unchanged()
        stands.update(unchanged)
        same = op.find_equal(zeros)
        if same is not None:
            stands[op.output] = same
            continue
        if op.zero or (op.linear == "together" and {*op.inputs} <= zeros):
            zeros.update(op.outputs)
        kept.append(op)
    return tuple(kept), tuple(stands.get(tensor, tensor) for tensor in outputs)


def read_others(op: Op, stands: dict[Tensor, Tensor]) -> Op:
    """Return an op that reads what stands for its operands."""
    if not any(tensor in stands for tensor in op.inputs):
        return op
    bodies = {
        name: dataclasses.replace(
            body, captured=tuple(stands.get(tensor, tensor) for tensor in body.captured)
        )
        for name, body in op.body_fields().items()
    }
    return op.rebuild(inputs=tuple(stands.get(tensor, tensor) for tensor in op.inputs), **bodies)


def _simplify_bodies(op: Op) -> Op:
    """Return an op with simpler bodies."""
    bodies = {}
    for name, body in op.body_fields().items():
        ops, outputs = simplify_ops(body.ops, body.outputs)
        bodies[name] = dataclasses.replace(body, ops=ops, outputs=outputs)
    return op.rebuild(**bodies) if bodies else op
