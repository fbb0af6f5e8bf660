"""Emission: one TensorFlow op or a few for each named op, every result annotated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.sharding import Sharding, Transfer
from namedmesh.ir.context import Context
from namedmesh.ir.evaluate import Eager, lower_op
from namedmesh.ir.op import Body, Op
from namedmesh.ir.tensor import Tensor
from namedmesh.lowering.annotate import GspmdAnnotator
from namedmesh.lowering.plan import Plan


class Emitter(Context):
    """Lowers a planned program; every value is annotated with its planned sharding."""

    compiled = True

    def __init__(self, plan: Plan, precision: str):
        self.plan, self.mesh, self.precision = plan, plan.mesh, precision
        self.annotator = GspmdAnnotator(plan.mesh)

    def at(self, value: Any, shape: Shape, sharding: Sharding) -> Any:
        """Annotates a value with a sharding of its shape; scalars need no annotation."""
        if not len(shape):
            return value
        return self.annotator.annotate(value, [sharding.axes(dim.name) for dim in shape])

    def place(self, value: Any, tensor: Tensor) -> Any:
        return self.at(value, tensor.shape, self.plan.natural[tensor])

    def hold(self, value: Any, op: Op, i: int) -> Any:
        return self.at(value, op.inputs[i].shape, self.operand_place(op, i))

    def operand_place(self, op: Op, i: int) -> Sharding:
        """Where an operand lies when the op reads it."""
        steps = self.plan.operands.get((op, i), ())
        return steps[-1].result if steps else self.plan.shardings[op.inputs[i]]

    def move(self, value: Any, shape: Shape, steps: Sequence[Transfer]) -> Any:
        """Moves a value: each annotation differs from the one before by one collective."""
        for step in steps:
            value = self.at(value, shape, step.result)
        return value

    def run(self, body: Body, values: Sequence[Any]) -> list[Any]:
        return self.body(body, body.ops, body.arguments, values, body.outputs)

    def body(
        self,
        owner: object,
        ops: Sequence[Op],
        arguments: Sequence[Tensor],
        values: Sequence[Any],
        outputs: Sequence[Tensor],
    ) -> list[Any]:
        """Emits ops on values for some tensors, and brings outputs where their owner wants them."""
        known = {
            t: self.at(v, t.shape, self.plan.shardings[t])
            for t, v in zip(arguments, values, strict=True)
        }
        moved: dict[tuple[object, Sharding], Any] = {}
        for op in ops:
            if not op.given:
                with tf.name_scope(f"nm.{self.plan.names[op]}/"):
                    self.op(op, known, moved)
        results = []
        for i, tensor in enumerate(outputs):
            with tf.name_scope(f"nm.{self.plan.names[self.plan.producers[tensor]]}/"):
                results.append(
                    self.move(known[tensor], tensor.shape, self.plan.results.get((owner, i), ()))
                )
        return results

    def op(
        self, op: Op, known: dict[Tensor, Any], moved: dict[tuple[object, Sharding], Any]
    ) -> None:
        """Emits one op: operands brought into place, the op itself, results settled."""
        values, places = [], []
        for i, tensor in enumerate(op.inputs):
            value, place = known[tensor], self.operand_place(op, i)
            steps = self.plan.operands.get((op, i), ())
            if steps:
                key = self.plan.value_of(tensor), place
                if key not in moved:
                    moved[key] = self.move(value, tensor.shape, steps)
                value = moved[key]
            values.append(value)
            places.append(place)
        results = (
            self.manual(op, values, places)
            if op.manual or self.closes(op, places)
            else lower_op(op, self, values)
        )
        for tensor, value in zip(op.outputs, results, strict=True):
            value = self.place(value, tensor)
            known[tensor] = self.move(value, tensor.shape, self.plan.moves.get(tensor, ()))

    def closes(self, op: Op, places: Sequence[Sharding]) -> bool:
        """Whether an op that would rather be closed can be: every size divides."""
        if not op.closed:
            return False
        operands = zip(op.inputs, places, strict=True)
        results = ((tensor, self.plan.natural[tensor]) for tensor in op.outputs)
        return all(
            place.divides(tensor.shape, self.mesh) for tensor, place in (*operands, *results)
        )

    def manual(self, op: Op, values: Sequence[Any], places: Sequence[Sharding]) -> list[Any]:
        """Emits an op on each device's own piece.

        Partial sums come out side by side along a leading dimension and are added up outside.
        """
        natural = [self.plan.natural[tensor] for tensor in op.outputs]
        axes = {name: on for place in (*places, *natural) for name, on in place.held}
        inside = Local(self, axes)
        pieces = [
            self.annotator.to_local(value, [place.axes(dim.name) for dim in tensor.shape])
            for value, tensor, place in zip(values, op.inputs, places, strict=True)
        ]
        results = []
        partial = self.plan.partial.get(op, ())
        for tensor, piece, place in zip(
            op.outputs, lower_op(op, inside, pieces), natural, strict=True
        ):
            on = [place.axes(dim.name) for dim in tensor.shape]
            if partial:
                sizes = [self.mesh.size(partial), *tensor.shape.sizes]
                stacked = self.annotator.from_local(piece[None], [partial, *on], sizes)
                results.append(tf.reduce_sum(stacked, 0))
            else:
                results.append(self.annotator.from_local(piece, on, tensor.shape.sizes))
        return results


class Local(Eager):
    """Lowering inside a manual region: sizes are those of one device's piece."""

    compiled = True

    def __init__(self, emitter: Emitter, axes: dict[str, tuple[str, ...]]):
        self.emitter, self.axes, self.precision = emitter, axes, emitter.precision
        self.positions: dict[tuple[str, ...], Any] = {}
        for on in {on for on in axes.values() if on}:
            ways = emitter.mesh.size(on)
            self.positions[on] = emitter.annotator.to_local(tf.range(ways), [on])[0]

    def size(self, dim: Dimension) -> int:
        return dim.size // self.emitter.mesh.size(self.axes.get(dim.name, ()))

    def offset(self, dim: Dimension) -> Any | None:
        on = self.axes.get(dim.name, ())
        return self.positions[on] * self.size(dim) if on else None
