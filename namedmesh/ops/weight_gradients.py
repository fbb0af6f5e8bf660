"""Weight gradients apart: a derivative in two parts, of which the second can wait."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.ir.differentiate import repeat_op, repeat_ops
from namedmesh.ir.op import Body, Op
from namedmesh.ir.prune import prune_body
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current, record_body, trace_body
from namedmesh.ops.loop_storage import find_smallest
from namedmesh.ops.scan import Scan, scan
from namedmesh.ops.shape import transpose


@dataclasses.dataclass(frozen=True)
class TwoParts:
    """A body in two parts: `early` makes the first results and `saved`, `late` the others.

    The late part takes what the body takes, then what is saved; `read` are the positions of those
    that it reads.
    """

    early: Body
    late: Body
    saved: int
    read: frozenset[int]


def part_body(body: Body, first: int, along: str, having: Dimension) -> TwoParts:
    """Part a body after its first results; what is saved has a dimension, and not that along."""
    body = part_loops(body, range(first))
    cut = [one for one in find_cut(body, body.outputs[:first], along) if having in one.shape]
    specs = [(one.shape, one.dtype, one.label) for one in (*body.arguments, *cut)]
    count = len(body.arguments)

    def make_early(*values: Tensor) -> list[Tensor]:
        _, known = repeat_ops(body, values)
        return [known[one] for one in (*body.outputs[:first], *cut)]

    def make_late(*values: Tensor) -> list[Tensor]:
        saved = name_saved(cut, values[count:])
        _, known = repeat_ops(body, values[:count], saved)
        return [known[one] for one in body.outputs[first:]]

    early = prune_body(trace_body(make_early, specs[:count])[0])
    late = prune_body(trace_body(make_late, specs)[0])
    read = frozenset[int]().union(*late.read_arguments())
    return TwoParts(early, late, len(cut), read)


def name_saved(cut: Sequence[Tensor], values: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    """Return what stands for saved tensors; cotangents are sharded like their primals."""
    saved = dict(zip(cut, values, strict=True))
    for old, new in saved.items():
        new.describe(origin=old)
    return saved


def find_read(ops: Sequence[Op], outputs: Iterable[Tensor]) -> set[Tensor]:
    """Find all tensors that some outputs are made of, and these."""
    found = {*outputs}
    for op in reversed(ops):
        for tensor, operands in op.read_by_result():
            if tensor in found:
                found.update(operands)
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


def part_loops(body: Body, first: Iterable[int]) -> Body:
    """Copy a body in which no loop makes both what some results read and what others read."""
    specs = [(one.shape, one.dtype, one.label) for one in body.arguments]
    return prune_body(trace_body(lambda *values: record_parted(body, values, first), specs)[0])


def record_parted(body: Body, values: Sequence[Tensor], first: Iterable[int]) -> list[Tensor]:
    """Record the ops of a body on other values, with its loops in two where results part."""
    early = find_read(body.ops, [body.outputs[i] for i in first])
    known = dict(zip(body.arguments, values, strict=True))
    for op in body.ops:
        if op.given:
            continue
        inputs = tuple(known[tensor] for tensor in op.inputs)
        ahead = [i for i, tensor in enumerate(op.outputs) if tensor in early]
        if isinstance(op, Scan) and 0 < len(ahead) < len(op.outputs):
            with current("scan").at(op.source, derived=op.derived, scope=op.scope):
                results = record_two_loops(op, inputs, ahead)
        else:
            results = repeat_op(op, inputs).outputs
        for old, new in zip(op.outputs, results, strict=True):
            primal = None if old.primal is None else known.get(old.primal, old.primal)
            new.describe(name=old.name if new.name is None else None, origin=old, primal=primal)
        known.update(zip(op.outputs, results, strict=True))
    return [known[one] for one in body.outputs]


def record_two_loops(
    loop: Scan, inputs: tuple[Tensor, ...], ahead: Iterable[int]
) -> Sequence[Tensor]:
    """Record a loop for some results, and one for the others, which reads what the first kept."""
    count, total, ahead = loop.carries, len(loop.body.inputs), {*ahead}
    while True:  # a carry that some of them are made of is one of them
        read = find_read(loop.body.ops, [loop.body.outputs[i] for i in ahead])
        more = {i for i in range(count) if loop.body.inputs[i] in read} - ahead
        if not more:
            break
        ahead |= more
    outside = dict(zip(loop.inputs, inputs, strict=True))
    body = record_body(loop.body, outside, lambda values: record_parted(loop.body, values, ahead))
    first = dataclasses.replace(loop, inputs=inputs, body=body)
    cut = find_cut(body, [body.outputs[i] for i in sorted(ahead)], loop.over.name)
    taken = [i for i in range(count) if i in ahead]
    late = [i for i in range(len(first.outputs)) if i not in ahead]
    if not late:
        return first.outputs
    carried = [i for i in late if i < count]
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

    start, options = [inputs[i] for i in carried], dict[str, Any](over=loop.over)
    options |= {"reverse": loop.reverse, "unroll": loop.unroll, "gather_once": loop.gather_once}
    last, histories = scan(work, start, rows, **options)
    found = dict(zip(late, [*last, *histories], strict=True))
    return [
        transpose(found[i], one.shape) if i in found else one for i, one in enumerate(first.outputs)
    ]
