"""Emission: one TensorFlow op or a few for each named op, every result annotated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla as tf2xla

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.sharding import Sharding, Transfer, conversion
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
        self.captured: dict[Tensor, dict[Sharding, Any]] = {}  # brought before the loop around it

    def at(self, value: Any, shape: Shape, sharding: Sharding) -> Any:
        """Annotates a value with a sharding of its shape; scalars need no annotation.

        Parts of a sum lie side by side, one leading dimension for each mesh axis.
        """
        if not len(shape) and not sharding.partial:
            return value
        return self.annotator.annotate(value, position_axes(shape, sharding))

    def place(self, value: Any, tensor: Tensor) -> Any:
        return self.at(value, tensor.shape, self.plan.natural[tensor])

    def part_sizes(self, tensor: Tensor) -> list[int]:
        return [self.mesh.axes[axis] for axis in self.plan.natural[tensor].partial]

    def hold(self, value: Any, op: Op, i: int) -> Any:
        return self.at(value, op.inputs[i].shape, self.operand_place(op, i))

    def operand_place(self, op: Op, i: int) -> Sharding:
        """Where an operand lies when the op reads it."""
        if op.inputs[i] in self.plan.free:
            return self.plan.made.get((op, i), self.plan.shardings[op.inputs[i]])
        steps = self.plan.operands.get((op, i), ())
        return steps[-1].result if steps else self.plan.shardings[op.inputs[i]]

    def move(self, value: Any, tensor: Tensor, source: Sharding, steps: Sequence[Transfer]) -> Any:
        """Moves a value: each annotation differs from the one before by one collective."""
        shape = tensor.shape
        for step in steps:
            if step.sums:  # in the name of the op that left the parts
                with tf.name_scope(f"nm.{self.plan.names[self.plan.summed_by[tensor]]}/"):
                    joined = self.join_parts(value, shape, source, step.axes)
                    value = self.at(add_parts(joined), shape, step.result)
            elif step.kind == "Alone":
                value = self.leave_alone(value, shape, source, step.result)
            value = self.at(value, shape, step.result)
            source = step.result
        return value

    def join_parts(self, value: Any, shape: Shape, source: Sharding, axes: Sequence[str]) -> Any:
        """Puts the parts along some axes into one leading dimension.

        XLA adds up every dimension by itself, one collective after the other.
        """
        others = [axis for axis in source.partial if axis not in axes]
        order = [source.partial.index(axis) for axis in (*axes, *others)]
        rest = list(range(len(order), value.shape.rank))
        if order != sorted(order):
            value = tf.transpose(value, order + rest)
        if len(axes) > 1:
            value = tf.reshape(value, [self.mesh.size(axes), *value.shape[len(axes) :]])
        leading = [tuple(axes), *((axis,) for axis in others)]
        return self.annotator.annotate(value, [*leading, *(source.axes(dim.name) for dim in shape)])

    def leave_alone(self, value: Any, shape: Shape, source: Sharding, result: Sharding) -> Any:
        """Makes a value the first device's part of a sum to which the others add zero."""
        piece = self.annotator.to_local(value, position_axes(shape, source))
        for i, axis in enumerate(result.partial):
            if axis not in source.partial:
                index = self.annotator.to_local(tf.range(self.mesh.axes[axis]), [(axis,)])[0]
                piece = tf.where(tf.equal(index, 0), piece, tf.zeros([], piece.dtype))
                piece = tf.expand_dims(piece, i)
        return self.join_pieces(piece, shape, result)

    def join_pieces(self, piece: Any, shape: Shape, place: Sharding) -> Any:
        """Makes the value of which every device has its piece, parts of a sum side by side."""
        sizes = [*(self.mesh.axes[axis] for axis in place.partial), *shape.sizes]
        return self.annotator.from_local(piece, position_axes(shape, place), sizes)

    def make(self, tensor: Tensor, place: Sharding, moved: dict[Any, Any]) -> Any:
        """Makes a tensor of constants where it is read."""
        tensor = self.plan.free[tensor]
        key = tensor, place
        if key not in moved:
            op = self.plan.producers[tensor]
            with tf.name_scope(f"nm.{self.plan.names[op]}/"):
                # What rearranges makes all of it, and cuts out what is wanted.
                bare = Sharding() if op.rearranges else place.with_partial(())
                places = [bare.only(x.shape.names) for x in op.inputs]
                values = [self.make(x, on, moved) for x, on in zip(op.inputs, places, strict=True)]
                (value,) = self.lower(op, values, places, [bare])
                value = self.at(value, tensor.shape, bare)
                steps = conversion(tensor.shape, self.mesh, bare, place)
                moved[key] = self.move(value, tensor, bare, steps)
        return moved[key]

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
        plan = self.plan
        known = {
            t: self.at(v, t.shape, plan.shardings[t])
            for t, v in zip(arguments, values, strict=True)
            if t not in plan.free
        }
        moved: dict[Any, Any] = {
            (t, place): self.at(value, t.shape, place)
            for t in arguments
            for place, value in self.captured.get(t, {}).items()
        }
        for op in ops:
            if not op.given and not all(tensor in plan.free for tensor in op.outputs):
                with tf.name_scope(f"nm.{plan.names[op]}/"):
                    self.op(op, known, moved)
        results = []
        for i, tensor in enumerate(outputs):
            with tf.name_scope(f"nm.{plan.names[plan.producers[tensor]]}/"):
                if tensor in plan.free:
                    place = plan.made.get((owner, i), plan.shardings[tensor])
                    results.append(self.make(tensor, place, moved))
                else:
                    steps = plan.results.get((owner, i), ())
                    place = plan.shardings[tensor]
                    value = known[tensor]
                    if steps:
                        value = self.move_once(value, tensor, place, steps, moved)
                    results.append(value)
        return results

    def op(self, op: Op, known: dict[Tensor, Any], moved: dict[Any, Any]) -> None:
        """Emits one op: operands brought into place, the op itself, results settled."""
        places = [self.operand_place(op, i) for i in range(len(op.inputs))]
        for (inner, place), (i, steps) in self.plan.captured.get(op, {}).items():
            source = self.plan.shardings[inner]
            key = self.plan.value_of(op.inputs[i]), place
            if key not in moved:  # nor before an enclosing loop
                value = self.at(self.operand(op, i, known, moved), inner.shape, source)
                self.move_once(value, op.inputs[i], source, steps, moved)
            self.captured.setdefault(inner, {})[place] = moved[key]
        if op in self.plan.sums:
            results: Sequence[Any] = [self.add_groups(op, known, moved)]
        else:
            values = [self.operand(op, i, known, moved) for i in range(len(op.inputs))]
            results = self.lower(op, values, places, [self.plan.natural[t] for t in op.outputs])
        for tensor, value in zip(op.outputs, results, strict=True):
            value, steps = self.place(value, tensor), self.plan.moves.get(tensor, ())
            known[tensor] = self.move(value, tensor, self.plan.natural[tensor], steps)

    def operand(self, op: Op, i: int, known: dict[Tensor, Any], moved: dict[Any, Any]) -> Any:
        """Brings an operand into place; one that several ops want there is brought once."""
        tensor, place = op.inputs[i], self.operand_place(op, i)
        if tensor in self.plan.free:
            return self.make(tensor, place, moved)
        steps = self.plan.operands.get((op, i), ())
        if not steps:
            return known[tensor]
        value, source = known[tensor], self.plan.shardings[tensor]
        return self.move_once(value, tensor, source, steps, moved)

    def move_once(
        self,
        value: Any,
        tensor: Tensor,
        source: Sharding,
        steps: Sequence[Transfer],
        moved: dict[Any, Any],
    ) -> Any:
        """Moves a value along a way, of which others' ways may have made the beginning already."""
        same, made = self.plan.value_of(tensor), self.plan.count_made(tensor, steps, moved)
        if made:
            source = steps[made - 1].result
            value = moved[same, source]
        for step in steps[made:]:
            value = moved[same, step.result] = self.move(value, tensor, source, [step])
            source = step.result
        return value

    def add_groups(self, op: Op, known: dict[Tensor, Any], moved: dict[Any, Any]) -> Any:
        """Adds up the parts of a cotangent that lie together, moves the sums, and adds those."""
        total = None
        shape = op.output.shape
        for members, steps in self.plan.sums[op]:
            values = [self.operand(op, i, known, moved) for i in members]
            value = tf.add_n(values) if len(values) > 1 else values[0]
            place = self.operand_place(op, members[0])
            value = self.move(self.at(value, shape, place), op.inputs[members[0]], place, steps)
            total = value if total is None else total + value
        return total

    def lower(
        self,
        op: Op,
        values: Sequence[Any],
        places: Sequence[Sharding],
        natural: Sequence[Sharding],
    ) -> Sequence[Any]:
        """Emits an op on operands in their places; natural is where it makes its results."""
        local = op.manual or op in self.plan.local
        if op.closed and not local:  # it would rather be local, where every size divides
            tensors = zip((*op.inputs, *op.outputs), (*places, *natural), strict=True)
            local = all(place.divides(tensor.shape, self.mesh) for tensor, place in tensors)
        if local:
            return self.run_locally(op, values, places, natural)
        return lower_op(op, self, values)

    def run_locally(
        self,
        op: Op,
        values: Sequence[Any],
        places: Sequence[Sharding],
        natural: Sequence[Sharding],
    ) -> list[Any]:
        """Emits an op on each device's own piece; its results may be parts of sums."""
        axes = {name: on for place in (*places, *natural) for name, on in place.held}
        inside = Local(self, axes)
        pieces = []
        for value, tensor, place in zip(values, op.inputs, places, strict=True):
            piece = self.annotator.to_local(value, position_axes(tensor.shape, place))
            leading = list(range(len(place.partial)))
            pieces.append(tf.squeeze(piece, leading) if leading else piece)
        results = []
        lowered = lower_op(op, inside, pieces)
        for tensor, piece, place in zip(op.outputs, lowered, natural, strict=True):
            for _ in place.partial:
                piece = piece[None]
            results.append(self.join_pieces(piece, tensor.shape, place))
        return results


def position_axes(shape: Shape, sharding: Sharding) -> list[tuple[str, ...]]:
    """Returns the axes of each position of a value: of parts of sums first, then of its dims."""
    leading: list[tuple[str, ...]] = [(axis,) for axis in sharding.partial]
    return leading + [sharding.axes(dim.name) for dim in shape]


def add_parts(value: Any) -> Any:
    """Adds up parts of a sum along the first dimension in their own dtype, as they are sent."""
    if value.dtype in (tf.float32, tf.int32, tf.float64, tf.int64):
        return tf.reduce_sum(value, 0)
    # tf.reduce_sum adds narrow dtypes in wider ones, and the parts would travel so.
    scalar = tf.TensorSpec([], value.dtype)
    add = tf.function(lambda a, b: a + b).get_concrete_function(scalar, scalar)
    results: Any = tf2xla.variadic_reduce(
        [value], [tf.zeros([], value.dtype)], dimensions_to_reduce=[0], reducer=add
    )
    return results[0]


class Local(Eager):
    """Lowering inside a manual region: sizes are those of one device's piece."""

    compiled = True

    def __init__(self, emitter: Emitter, axes: dict[str, tuple[str, ...]]):
        self.emitter, self.axes, self.precision = emitter, axes, emitter.precision
        self.positions: dict[tuple[str, ...], Any] = {}
        for on in {on for on in axes.values() if on}:
            ways = emitter.mesh.size(on)
            self.positions[on] = emitter.annotator.to_local(tf.range(ways), [on])[0]

    def calls_kernel(self, op: Op) -> bool:
        return op in self.emitter.plan.local

    def size(self, dim: Dimension) -> int:
        return dim.size // self.emitter.mesh.size(self.axes.get(dim.name, ()))

    def offset(self, dim: Dimension) -> Any | None:
        on = self.axes.get(dim.name, ())
        return self.positions[on] * self.size(dim) if on else None
