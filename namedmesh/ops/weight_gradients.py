"""Weight gradients apart: a derivative in two parts, of which the second can wait."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, cast

from namedmesh.dims.dimension import Dimension
from namedmesh.ir.differentiate import repeat_op, repeat_ops
from namedmesh.ir.op import Body, Op
from namedmesh.ir.prune import prune_body
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current, record_body, trace_body
from namedmesh.ops.loop_storage import find_smallest
from namedmesh.ops.scan import Scan, scan
from namedmesh.ops.shape import transpose


def part_body(body: Body, count: int, along: str, having: Dimension) -> tuple[Body, Body]:
    """Return a body that makes some first results and what is to be saved, and one for the others.

    The second takes what the body takes, then what is saved: tensors that have a dimension, and
    not that along which they are stored.
    """
    specs = [(one.shape, one.dtype, one.label) for one in body.arguments]
    parted = lambda *values: record_parted(body, values, range(count))
    body = prune_body(trace_body(parted, specs)[0])
    cut = [one for one in find_cut(body, body.outputs[:count], along) if having in one.shape]

    def make_early(*values: Tensor) -> list[Tensor]:
        _, known = repeat_ops(body, values)
        return [known[one] for one in (*body.outputs[:count], *cut)]

    def make_late(*values: Tensor) -> list[Tensor]:
        saved = name_saved(cut, values[len(specs) :])
        _, known = repeat_ops(body, values[: len(specs)], saved)
        return [known[one] for one in body.outputs[count:]]

    more = [(one.shape, one.dtype, one.label) for one in cut]
    early, late = trace_body(make_early, specs)[0], trace_body(make_late, [*specs, *more])[0]
    return prune_body(early), prune_body(late)


def name_saved(cut: Sequence[Tensor], values: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    """Return what stands for saved tensors; cotangents are sharded like their primals."""
    return {old: new.describe(origin=old) for old, new in zip(cut, values, strict=True)}


def find_read(ops: Sequence[Op], outputs: Iterable[Tensor]) -> set[Tensor]:
    """Find all tensors that some outputs are made of, and these."""
    found = {*outputs}
    for op in reversed(ops):
        for tensor, operands in op.read_by_result():
            found.update(operands if tensor in found else ())
    return found


def find_cut(body: Body, first: Sequence[Tensor], along: str) -> list[Tensor]:
    """Choose what the late part reads of the early one: the fewest bytes, but for ops that fuse."""
    early = find_read(body.ops, first)
    late = [op for op in body.ops if early.isdisjoint(op.outputs)]
    read = {*body.outputs}.difference(first).union(*(op.inputs for op in late))
    # An early loop also makes histories that the late part alone reads.
    read -= {*body.arguments}.union(*(op.outputs for op in late))
    chosen = find_smallest(body, read, along)
    return [tensor for op in body.ops for tensor in op.outputs if tensor in chosen]


def record_parted(body: Body, values: Sequence[Tensor], first: Iterable[int]) -> list[Tensor]:
    """Record the ops of a body on other values, with its loops in two where results part."""
    early = find_read(body.ops, [body.outputs[i] for i in first])

    def repeat(op: Op, inputs: tuple[Tensor, ...]) -> Op:
        ahead = {i for i, tensor in enumerate(op.outputs) if tensor in early}
        if not op.keeps_rows or not 0 < len(ahead) < len(op.outputs):
            return repeat_op(op, inputs)
        with current("scan").at(op.source, derived=op.derived, scope=op.scope):
            return record_two_loops(cast(Scan, op), inputs, ahead)

    _, known = repeat_ops(body, values, repeat=repeat)
    return [known[one] for one in body.outputs]


def record_two_loops(loop: Scan, inputs: tuple[Tensor, ...], ahead: set[int]) -> Op:
    """Record a loop for some results, and one for the others, which reads what the first kept."""
    count, total, outputs = loop.carries, len(loop.body.inputs), loop.body.outputs
    for _ in range(count):  # a carry that some of them are made of is one of them
        read = find_read(loop.body.ops, [outputs[i] for i in ahead])
        ahead |= {i for i in range(count) if loop.body.inputs[i] in read}
    outside = dict(zip(loop.inputs, inputs, strict=True))
    body = record_body(loop.body, outside, lambda values: record_parted(loop.body, values, ahead))
    first = dataclasses.replace(loop, inputs=inputs, body=body)
    late = [i for i in range(len(outputs)) if i not in ahead]
    if not late:
        return first
    cut = find_cut(body, [body.outputs[i] for i in sorted(ahead)], loop.over.name)
    taken, carried = ([i for i in some if i < count] for some in (sorted(ahead), late))
    rows = {
        "carry": [first.keep(body.inputs[i]) for i in taken],
        "saved": [first.keep(tensor) for tensor in cut],
        "x": list(inputs[count:total]),
    }

    def work(carry: list[Tensor], row: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
        own = dict(zip([*carried, *taken], [*carry, *row["carry"]], strict=True))
        values = [*(own[i] for i in range(count)), *row["x"], *inputs[total:]]
        _, known = repeat_ops(body, values, name_saved(cut, row["saved"]))
        results = [known[body.outputs[i]] for i in late]
        return results[: len(carried)], results[len(carried) :]

    options: Any = {name: getattr(loop, name) for name in ("over", "reverse", "unroll")}
    start = [inputs[i] for i in carried]
    last, histories = scan(work, start, rows, **options, gather_once=loop.gather_once)
    results = list(first.outputs)
    for i, one in zip(late, [*last, *histories], strict=True):
        results[i] = transpose(one, results[i].shape)
    return first.rebuild(outputs=tuple(results))
