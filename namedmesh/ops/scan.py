"""Scan: one body repeated along a dimension, differentiable, with a choice of what the backward pass keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla as tf2xla

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.ir.context import Context
from namedmesh.ir.differentiate import _primal, body_vjp
from namedmesh.ir.nest import flatten, unflatten
from namedmesh.ir.op import Op
from namedmesh.ir.operands import callback, require, shown
from namedmesh.ir.program import Body, live, pruned, trace_body
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current
from namedmesh.ops.constants import as_tensor, zeros
from namedmesh.ops.control import matched
from namedmesh.ops.einsum import Einsum
from namedmesh.ops.placement import Move

REMAT = ("none", "full", "dots")


@dataclass(eq=False)
class Scan(Op):
    """A loop over one dimension; inputs are the first carry, the stacked xs, then what the body captures."""

    body: Body
    over: Dimension
    carries: int
    reverse: bool
    remat: str

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The body, for passes that look at every op."""
        return (self.body,)

    @property
    def stacked(self) -> int:
        """How many inputs are read along the dimension."""
        return len(self.body.inputs) - self.carries

    def results(self):
        outputs = self.body.outputs
        return [(t.shape, t.dtype) for t in outputs[: self.carries]] + [
            (Shape([self.over, *t.shape]), t.dtype) for t in outputs[self.carries :]
        ]

    def lower(self, context: Context, *values):
        first, xs = values[: self.carries], values[self.carries : self.carries + self.stacked]
        captured = values[self.carries + self.stacked :]
        positions = [
            x.shape.position(self.over.name)
            for x in self.inputs[self.carries : self.carries + self.stacked]
        ]
        if not context.compiled:
            return self._unrolled(context, list(first), xs, positions, captured)
        histories = self.outputs[self.carries :]
        buffers = [
            context.place(tf.zeros(context.sizes(t.shape), tf.as_dtype(t.dtype)), t)
            for t in histories
        ]

        def step(i, carry, buffers):
            index = self.over.size - 1 - i if self.reverse else i
            rows = [context.hold(x, self, i) for i, x in enumerate(xs, self.carries)]
            begins: dict[tuple[int, int], Any] = {}
            slices = [_read(x, at, index, begins) for x, at in zip(rows, positions, strict=True)]
            made = context.run(self.body, [*carry, *slices, *captured])
            written = [
                context.place(_written(context.place(buffer, tensor), value, index, begins), tensor)
                for buffer, value, tensor in zip(
                    buffers, made[self.carries :], histories, strict=True
                )
            ]
            return i + 1, made[: self.carries], written

        _, carry, buffers = tf.while_loop(
            lambda i, *_: i < self.over.size,
            step,
            [tf.constant(0), list(first), buffers],
            parallel_iterations=1,
        )
        return [*carry, *buffers]

    def _unrolled(self, context: Context, carry, xs, positions, captured):
        rows = []
        order = range(self.over.size)
        for index in reversed(order) if self.reverse else order:
            slices = [_read(x, at, index, {}) for x, at in zip(xs, positions, strict=True)]
            made = context.run(self.body, [*carry, *slices, *captured])
            carry = made[: self.carries]
            rows.append(made[self.carries :])
        if self.reverse:
            rows.reverse()
        return [*carry, *(tf.stack(column) for column in zip(*rows, strict=True))]

    def history(self, inner: Tensor) -> Tensor:
        """The stacked values of a tensor of the body, as one more result of this loop."""
        for i, tensor in enumerate(self.body.outputs[self.carries :], self.carries):
            if tensor is inner:
                return self.outputs[i]
        self.body = dataclasses.replace(self.body, outputs=(*self.body.outputs, inner))
        kept = Tensor(Shape([self.over, *inner.shape]), inner.dtype, self, f"{inner.label}_history")
        self.outputs = (*self.outputs, kept)
        current("scan").owned.add(id(kept))
        return kept

    def vjp(self, *cotangents: Tensor):
        count, total = self.carries, len(self.body.inputs)
        body = dataclasses.replace(self.body, outputs=self.body.outputs[: len(cotangents)])
        floating = [i for i, tensor in enumerate(self.inputs) if tensor.floating]
        carried, read = (
            [i for i in floating if i < count],
            [i for i in floating if count <= i < total],
        )
        captured = [i for i in floating if i >= total]
        histories = [self.history(tensor) for tensor in body.inputs[:count]]
        kept = self._kept(body, floating)
        given = {
            "history": histories,
            "x": list(self.inputs[count:total]),
            "dy": [
                dy
                for dy, y in zip(cotangents[count:], body.outputs[count:], strict=True)
                if y.floating
            ],
            "kept": [self.history(tensor) for tensor in kept],
        }

        def backward(carry, rows):
            trace = current("scan")
            values = [
                *rows["history"],
                *rows["x"],
                *(trace.bring(tensor) for tensor in self.inputs[total:]),
            ]
            dcarry, dy = iter(carry["carry"]), iter(rows["dy"])
            outer = [
                (next(dcarry) if i < count else next(dy)) if y.floating else cotangents[i]
                for i, y in enumerate(body.outputs)
            ]
            made = dict(
                zip(
                    floating,
                    body_vjp(
                        body, values, outer, floating, dict(zip(kept, rows["kept"], strict=True))
                    ),
                    strict=True,
                )
            )
            sums = [
                total_so_far + made[i]
                for i, total_so_far in zip(captured, carry["sum"], strict=True)
            ]
            return {"carry": [made[i] for i in carried], "sum": sums}, [made[i] for i in read]

        start = {
            "carry": [cotangents[i] for i in carried],
            "sum": [
                _primal(zeros(self.inputs[i].shape, self.inputs[i].dtype), self.inputs[i])
                for i in captured
            ],
        }
        final, rows = scan(backward, start, given, over=self.over, reverse=not self.reverse)
        found = dict(
            zip(carried + captured + read, [*final["carry"], *final["sum"], *rows], strict=True)
        )
        return [self._restored(found.get(i), tensor) for i, tensor in enumerate(self.inputs)]

    @staticmethod
    def _restored(dx: Tensor | None, x: Tensor) -> Tensor | None:
        from namedmesh.ops.shape import transpose

        return None if dx is None else transpose(dx, x.shape)

    def _kept(self, body: Body, floating: list[int]) -> list[Tensor]:
        """Which tensors of the body are stored for the backward pass instead of being computed again."""
        if self.remat == "full":
            return []
        needed: dict[Tensor, Tensor] = {}

        def note(known: dict[Tensor, Tensor], middle: int) -> None:
            ours = {id(new): old for old, new in known.items()}
            backward = current("scan").ops[middle:]
            needed.update({ours[id(t)]: t for op in backward for t in op.inputs if id(t) in ours})

        def probe(*values: Tensor) -> list[Tensor]:
            count = len(self.inputs)
            return body_vjp(body, values[:count], values[count:], floating, seen=note)

        inputs = [
            (tensor.shape, tensor.dtype, tensor.label) for tensor in (*body.inputs, *body.captures)
        ]
        outputs = [(tensor.shape, tensor.dtype, tensor.label) for tensor in body.outputs]
        trace_body(probe, inputs + outputs)
        given = {*body.inputs, *body.captures}
        if self.remat == "dots":
            return [op.output for op in body.ops if isinstance(op, (Einsum, Move))]
        return [
            tensor
            for op in body.ops
            for tensor in op.outputs
            if tensor in needed and tensor not in given
        ]

    def prune(self, needed: set[Tensor]) -> None:
        """Drops the results that are not needed, and the carries that only those depend on."""
        body, given = self.body, (*self.body.inputs, *self.body.captures)
        keep = {
            i
            for i, tensor in enumerate(self.outputs)
            if tensor in needed and tensor.producer is self
        }
        while True:
            outputs = [body.outputs[i] for i in sorted(keep)]
            used = {*outputs, *(tensor for op in live(body.ops, outputs) for tensor in op.inputs)}
            more = {i for i in range(self.carries) if given[i] in used} - keep
            if not more:
                break
            keep |= more
        stays = [
            i
            for i, tensor in enumerate(given)
            if (i in keep if i < self.carries else tensor in used)
        ]
        count = sum(i < len(body.inputs) for i in stays)
        inner = [given[i] for i in stays]
        ops = pruned(body.ops, outputs, [tensor.producer for tensor in inner])
        self.inputs, self.outputs = (
            tuple(self.inputs[i] for i in stays),
            tuple(tensor for i, tensor in enumerate(self.outputs) if i in keep),
        )
        self.carries = sum(i < self.carries for i in stays)
        self.body = Body(
            ops, tuple(inner[:count]), tuple(inner[count:]), self.inputs[count:], tuple(outputs)
        )

    def flops(self) -> int:
        return self.over.size * sum(op.flops() for op in self.body.ops)


def _begin(index, rank: int, at: int, begins: dict[tuple[int, int], Any]):
    """The start of a slice; made once for all slices of an iteration that start alike."""
    if (rank, at) not in begins:
        begins[rank, at] = tf.stack([index if i == at else 0 for i in range(rank)])
    return begins[rank, at]


def _written(buffer, value, index, begins):
    """The buffer with one row replaced."""
    return tf2xla.dynamic_update_slice(
        buffer, tf.expand_dims(value, 0), _begin(index, value.shape.rank + 1, 0, begins)
    )


def _read(x, at: int, index, begins):
    """One slice along a dimension, that dimension removed."""
    sizes = x.shape.as_list()
    piece = tf.slice(
        x,
        _begin(index, len(sizes), at, begins),
        [1 if i == at else size for i, size in enumerate(sizes)],
    )
    return tf.squeeze(piece, at)


def scan(
    function: Callable[[Any, Any], Any],
    carry: Any,
    xs: Any = None,
    *,
    over: Dimension,
    reverse: bool = False,
    remat: str = "none",
    stack: bool = False,
) -> tuple[Any, Any]:
    """Repeats function(carry, x) -> (carry, y) along a dimension; returns the last carry and the ys stacked along it.

    Every tensor in xs has the dimension; function sees slices without it. remat says what the backward pass
    keeps: "none" recomputes nothing and stores all it needs, "full" stores only the carries and computes each
    body again, "dots" stores the results of einsums and of reshards besides, so that nothing is sent twice. Program
    size does not depend on the length.

    With stack, a parameter or state made inside the body is stacked along the dimension, a slice for each
    iteration: a stack of layers. Without it, all iterations share it.
    """
    if not isinstance(over, Dimension):
        raise NamedMeshError(
            f"scan: over={shown(over)} is not a Dimension", fix="name the dimension to loop over"
        )
    callback("scan", function)
    if remat not in REMAT:
        raise NamedMeshError(
            f"scan: remat={remat!r} is not a choice", fix=did_you_mean(str(remat), REMAT)
        )
    first, rows = [as_tensor("scan", leaf) for leaf in flatten(carry)], flatten(xs)
    for row in rows:
        require("scan", row, over)
    for leaf in first:
        _without(over, leaf, "carry")
    specs = [(leaf.shape, leaf.dtype, leaf.label) for leaf in first]
    specs += [(row.shape.without(over.name), row.dtype, row.label) for row in rows]
    structures: list[Any] = []

    def body(*values):
        made = function(
            unflatten(carry, iter(values[: len(first)])), unflatten(xs, iter(values[len(first) :]))
        )
        if not isinstance(made, tuple) or len(made) != 2:
            raise NamedMeshError(
                "scan: the body did not return (carry, y)", fix="return a pair; y may be None"
            )
        structures.append(made[1])
        ys = [as_tensor("scan", y) for y in flatten(made[1])]
        for y in ys:
            _without(over, y, "result")
        return [
            *matched("scan: the body's carry", made[0], unflatten(carry, iter(first)), "the carry"),
            *ys,
        ]

    traced, _ = trace_body(body, specs, over if stack else None)
    inputs = (*first, *rows, *traced.stacked, *traced.captured)
    outputs = Scan(inputs, traced, over, len(first), reverse, remat).outputs
    return unflatten(carry, iter(outputs[: len(first)])), unflatten(
        structures[0], iter(outputs[len(first) :])
    )


def _without(over: Dimension, tensor: Tensor, role: str) -> None:
    found = tensor.shape.named(over.name)
    if found is not None:
        raise NamedMeshError(
            f"scan: the {role} {tensor.label} has the loop's own dimension {over.name}",
            str(tensor),
            fix=f"rename it, e.g. nm.rename(x, {over.name}, nm.Dimension('{over.name}_2', {found.size}))",
        )
