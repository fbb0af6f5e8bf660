"""Emission: fragments, loops and choices for each named op, every result annotated."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from namedmesh.dims.dimension import Shape
from namedmesh.dims.sharding import Sharding, Transfer, conversion
from namedmesh.ir.context import Context
from namedmesh.ir.op import Body, Op, describe_op, describe_options
from namedmesh.ir.prune import trace_back
from namedmesh.ir.tensor import Tensor
from namedmesh.lowering.fragments import Block, Call, Choice, Fragments, Repeat, Value
from namedmesh.lowering.op_lowering import OpLowering, position_axes
from namedmesh.planning.plan import Plan
from namedmesh.planning.state import NO_PIPELINE, Pipeline


class Emitter(Context):
    """Lowers a planned program; what TensorFlow computes is asked of fragments, by `compute`."""

    compiled = True

    def __init__(self, plan: Plan, ops: OpLowering, fragments: Fragments, block: Block):
        self.placements, self.mesh = plan.placements, plan.mesh
        self.ops, self.precision = ops, ops.precision
        self._fragments, self._block = fragments, block
        self._bodies = 0  # of loops and branches around what is being emitted
        self._op: Op | None = None  # whose instructions are being emitted
        self._known: dict[Tensor, Value] = {}
        # Values of the present body that were moved, or made of constants, for one reader and
        # that others use again; those of captures are made before the loop around it.
        self._moved: dict[Any, Value] = {}
        self._captured: dict[Tensor, dict[Sharding, Value]] = {}
        pipelines = self.placements.pipelines.values()
        self._late_sums = {tensor for one in pipelines for tensor in one.sums}
        # Values that were cut, with what they were cut from: a large table is copied to be padded.
        self._padded: dict[Value, Value] = {}

    @contextmanager
    def emitting(self, op: Op | None) -> Iterator[None]:
        """Emit what is emitted inside for an op."""
        before, self._op = self._op, op
        yield
        self._op = before

    @property
    def name(self) -> str:
        """The name that instructions get."""
        return "" if self._op is None else f"nm.{self.placements.names[self._op]}/"

    def compute_all(
        self, key: Hashable, function: Callable[..., Any], values: Sequence[Value]
    ) -> list[Value]:
        """Call the fragment that a TensorFlow function makes; the key says which function."""
        fragment = self._fragments.find(key, function, values, self._op)
        results = [Value(*signature) for signature in fragment.results]
        self._block.instructions.append(Call(self.name, fragment.number, values, results))
        return results

    def compute(self, key: Hashable, function: Callable[..., Any], *values: Any) -> Any:
        return self.compute_all(key, function, values)[0]

    def _record(self, function: Callable[..., Sequence[Value]], like: Sequence[Value]) -> Block:
        """Record what a function emits on arguments like some values."""
        outer, self._block = self._block, Block(copy_types(like))
        block = self._block
        self._bodies += 1
        block.results = list(function(*block.arguments))
        self._bodies -= 1
        self._block = outer
        return block

    def while_loop(
        self, test: Callable[..., Any], body: Callable[..., Any], start: Sequence[Any]
    ) -> list[Any]:
        tested = self._record(lambda *carry: [test(*carry)], start)
        loop = Repeat(self.name, start, tested, self._record(body, start), copy_types(start))
        self._block.instructions.append(loop)
        return loop.results

    def cond(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> list[Any]:
        first, second = self._record(yes, []), self._record(no, [])
        choice = Choice(self.name, condition, first, second, copy_types(first.results))
        self._block.instructions.append(choice)
        return choice.results

    def at(self, value: Value, shape: Shape, sharding: Sharding) -> Value:
        """Annotate a value with a sharding of its shape, unless it has that or is a scalar."""
        annotator, axes = self.ops.annotator, position_axes(shape, sharding)
        proto = annotator.proto(axes)
        if not axes or value.sharding == proto:
            return value
        placed = self.compute(("annotate", proto), lambda x: annotator.annotate(x, axes), value)
        padded = self._padded.get(value)
        if padded is not None and padded.sharding == proto:
            self._padded[placed] = padded
        return placed

    def cut_padding(self, padded: Value, sizes: Sequence[int]) -> Value:
        """Cut off the padding that a value has at rest."""
        cut = lambda x: self.tf.slice(x, [0] * len(sizes), sizes)
        value = self.compute(("cut", sizes), cut, padded)
        self._padded[value] = padded
        return value

    def find_padded(self, value: Value) -> Value | None:
        """Return what a value was cut from; what pads it is unknown."""
        return self._padded.get(value)

    def place(self, value: Any, tensor: Tensor) -> Any:
        return self.at(value, tensor.shape, self.placements.natural[tensor])

    def part_sizes(self, tensor: Tensor) -> list[int]:
        return [self.mesh.axes[axis] for axis in self.placements.natural[tensor].partial]

    def count_parts(self, op: Op, i: int) -> int:
        return len(self.placements.operand_sharding(op, i).partial)

    def hold(self, value: Any, op: Op, i: int) -> Any:
        return self.at(value, op.inputs[i].shape, self.placements.operand_sharding(op, i))

    def lies_alike(self, tensor: Tensor, op: Op, i: int) -> bool:
        if i in self._find_ahead(op):
            return False  # XLA would copy all of it: rows ahead are read whenever it likes
        return self.placements.natural[tensor] == self.placements.operand_sharding(op, i)

    def move(
        self, value: Value, tensor: Tensor, source: Sharding, steps: Sequence[Transfer]
    ) -> Value:
        """Move a value: each annotation differs from the one before by one collective."""
        shape, ops = tensor.shape, self.ops
        for step in steps:
            if step.sums or step.kind == "Alone":
                # A sum is made in the name of the op that left the parts.
                op = self.placements.sum_owners[tensor] if step.sums else self._op
                places = position_axes(shape, source), position_axes(shape, step.result)
                how = op.reduction if op is not None and step.sums else ""
                key = "move", step.kind, step.sums, tuple(step.axes), how, *places
                with self.emitting(op):
                    move = lambda x, way=(source, step, how): ops.move(x, shape, *way)
                    value = self.compute(key, move, value)
            else:
                value = self.at(value, shape, step.result)
            source = step.result
        return value

    def move_once(
        self, value: Value, tensor: Tensor, source: Sharding, steps: Sequence[Transfer]
    ) -> Value:
        """Move a value along a way of which others' ways may have made the beginning already."""
        same = self.placements.value_of(tensor)
        shared = self.placements.count_shared_moves(tensor, steps, self._moved)
        if shared:
            source = steps[shared - 1].result
            if (same, source) in self._moved:
                value = self._moved[same, source]
            else:  # back where it was made
                value = self._known[self.placements.first_equal(tensor)]
        for step in steps[shared:]:
            value = self._moved[same, step.result] = self.move(value, tensor, source, [step])
            source = step.result
        return value

    def make(self, tensor: Tensor, place: Sharding) -> Value:
        """Make a tensor of constants where it is read."""
        tensor = self.placements.constants[tensor]
        key = tensor, place
        if key not in self._moved:
            op = self.placements.producers[tensor]
            with self.emitting(op):
                # What mixes elements makes all of it, and cuts out what is wanted.
                apart = op.constant or op.elementwise
                bare = place.with_partial(()) if apart else Sharding()
                places = [bare.only(x.shape.names) for x in op.inputs]
                values = [self.make(x, on) for x, on in zip(op.inputs, places, strict=True)]
                results = self.lower(op, values, places, [bare] * len(op.outputs))
                value = results[op.outputs.index(tensor)]
                steps = conversion(tensor.shape, self.mesh, bare, place)
                self._moved[key] = self.move(value, tensor, bare, steps)
        return self._moved[key]

    def read(self, owner: object, i: int, tensor: Tensor) -> Value:
        """Bring a tensor to where an op, a body or the program reads it."""
        plan = self.placements
        if tensor in plan.constants:
            return self.make(tensor, plan.sharding_for(owner, i, tensor))
        source, steps = plan.shardings[tensor], plan.moves_for(owner, i)
        return self.move_once(self._known[tensor], tensor, source, steps)

    def run(self, body: Body, values: Sequence[Any]) -> list[Any]:
        return self.emit_body(body, body, values)

    def emit_body(self, owner: object, body: Body, values: Sequence[Value]) -> list[Value]:
        """Emit a body on values, and bring its results to where their owner wants them."""
        with self.inside(body, body.arguments, values):
            self.emit_ops(body.ops)
            return [self.emit_result(owner, i, x) for i, x in enumerate(body.outputs)]

    @contextmanager
    def inside(
        self, body: Body, arguments: Sequence[Tensor], values: Sequence[Value]
    ) -> Iterator[None]:
        """Emit what is emitted inside for a body, on values of its arguments."""
        plan = self.placements
        for t, v in zip(arguments, values, strict=True):
            if t not in plan.constants:
                with self.emitting(self._op or plan.producers.get(t)):  # a loop gives its body's
                    self._known[t] = self.at(v, t.shape, plan.shardings[t])
        outer, self._moved = (
            self._moved,
            {
                (t, place): self.at(value, t.shape, place)
                for t in body.arguments
                for place, value in self._captured.get(t, {}).items()
            },
        )
        yield
        self._moved = outer

    def emit_ops(self, ops: Iterable[Op]) -> None:
        """Emit some ops of a body in order."""
        for op in ops:
            constant = all(tensor in self.placements.constants for tensor in op.outputs)
            if not op.given and not constant:
                with self.emitting(op):
                    self.emit_op(op)

    def emit_result(self, owner: object, i: int, tensor: Tensor) -> Value:
        """Bring a result of a body to where its owner wants it."""
        with self.emitting(self.placements.producers[tensor]):
            return self.read(owner, i, tensor)

    def pipeline(self, op: Op) -> Pipeline:
        return self.placements.pipelines.get(op, NO_PIPELINE)

    def stay_apart(self, value: Value, carry: Sequence[Value], rows: Sequence[Value]) -> Value:
        backward = self._op is not None and self._op.phase == "backward"
        begins = carry if self._bodies else rows[: int(backward)]  # histories of the forward loop
        barrier = lambda *values: self.ops.xla.optimization_barrier(*values)[-1]
        return self.compute("barrier", barrier, *begins, value) if begins else value

    def _find_ahead(self, op: Op) -> set[int]:
        """Return the operands of a loop of which rows of the next iteration are read."""
        gathers = self.pipeline(op).gathers
        if op.loop is None or not gathers:
            return set()
        read = trace_back(op.loop.body.ops, [tensor for _, tensor, _ in gathers.values()])
        return {i for i, one in enumerate(op.loop.body.arguments) if one in read}

    def gather_ahead(self, op: Op, values: Sequence[Value]) -> list[Value]:
        loop, gathers = op.loop, self.placements.pipelines[op].gathers
        assert loop is not None
        with self.inside(loop.body, loop.body.arguments[loop.carries :], values):
            self._emit_known(loop.body, [tensor for _, tensor, _ in gathers.values()])
            moved = []
            for reader, x, steps in gathers.values():
                with self.emitting(reader):
                    source = self.placements.shardings[x]
                    moved.append(self.move_once(self._known[x], x, source, steps))
            return moved

    def run_ahead(
        self, op: Op, values: Sequence[Value], ahead: Sequence[Value]
    ) -> tuple[list[Value], list[Value]]:
        assert op.loop is not None
        body, (gathers, sums, late, results) = op.loop.body, self.pipeline(op)
        with self.inside(body, body.arguments, values):
            for ((_, place), (reader, x, _)), value in zip(gathers.items(), ahead, strict=True):
                with self.emitting(reader):
                    key = self.placements.value_of(x), place
                    self._moved[key] = self.at(value, x.shape, place)
            self.emit_ops(one for one in body.ops if one not in {*late})
            early = [(i, x) for i, x in enumerate(body.outputs) if i not in results]
            return [self.emit_result(body, *one) for one in early], [self._known[x] for x in sums]

    def finish_late(self, op: Op, values: Sequence[Value], waiting: Sequence[Value]) -> list[Value]:
        loop, (_, sums, late, results) = op.loop, self.placements.pipelines[op]
        assert loop is not None
        with self.inside(loop.body, loop.body.arguments[loop.carries :], values):
            made = {*sums, *(x for one in late for x in one.outputs)}
            self._emit_known(loop.body, [x for one in late for x in one.inputs if x not in made])
            for x, value in zip(sums, waiting, strict=True):
                with self.emitting(self.placements.producers[x]):
                    self.settle(x, self.place(value, x))
            self.emit_ops(late)
            return [self.emit_result(loop.body, i, loop.body.outputs[i]) for i in results]

    def _emit_known(self, body: Body, tensors: Sequence[Tensor]) -> None:
        """Emit the ops that make some tensors of a body."""
        needed = trace_back(body.ops, tensors)
        self.emit_ops(one for one in body.ops if not needed.isdisjoint(one.outputs))

    def emit_op(self, op: Op) -> None:
        """Emit one op: operands brought into place, the op itself, results settled."""
        plan = self.placements
        for (inner, place), (i, steps) in plan.captured_moves.get(op, {}).items():
            source, key = plan.shardings[inner], (plan.value_of(op.inputs[i]), place)
            moved = self._moved.get(key)
            if moved is None:  # nor before an enclosing loop
                value = self.at(self.read(op, i, op.inputs[i]), inner.shape, source)
                moved = self.move_once(value, op.inputs[i], source, steps)
            self._captured.setdefault(inner, {})[place] = moved
        if op in plan.sum_groups:
            results = [self.add_groups(op)]
        else:
            values = [self.read(op, i, tensor) for i, tensor in enumerate(op.inputs)]
            places = [plan.operand_sharding(op, i) for i in range(len(op.inputs))]
            results = self.lower(op, values, places, [plan.natural[t] for t in op.outputs])
        for tensor, value in zip(op.outputs, results, strict=True):
            self._known[tensor] = value = self.place(value, tensor)
            if tensor not in self._late_sums:
                self.settle(tensor, value)

    def settle(self, tensor: Tensor, value: Value) -> None:
        """Move a result from where its op makes it to where its readers find it."""
        plan = self.placements
        steps = plan.moves.get(tensor, ())
        self._known[tensor] = self.move(value, tensor, plan.natural[tensor], steps)

    def add_groups(self, op: Op) -> Value:
        """Add up the terms of a cotangent that are sharded alike, move the sums, and add those."""
        sums: list[Value] = []
        for members, steps in self.placements.sum_groups[op]:
            first = op.inputs[members[0]]
            value = self.add([self.read(op, i, op.inputs[i]) for i in members])
            place = self.placements.operand_sharding(op, members[0])
            value = self.move(self.at(value, op.output.shape, place), first, place, steps)
            sums = [self.add([*sums, value])]
        return sums[0]

    def add(self, values: Sequence[Value]) -> Value:
        """Add values up."""
        if len(values) == 1:
            return values[0]
        return self.compute("add", lambda *values: self.tf.add_n(values), *values)

    def lower(
        self,
        op: Op,
        values: Sequence[Value],
        places: Sequence[Sharding],
        natural: Sequence[Sharding],
    ) -> Sequence[Value]:
        """Emit an op on operands in their places; natural is where it makes its results."""
        if op.control:
            return op.lower(self, *values)
        kernel = op in self.placements.local_ops
        local = op.manual or kernel
        if op.closed and not local:  # it would rather be local, where its operands' sizes divide
            pairs = zip((*op.inputs, *op.outputs), (*places, *natural), strict=True)
            divides = all(place.divides(tensor.shape, self.mesh) for tensor, place in pairs)
            # On shards it would reduce over each device's own elements alone.
            split = {name for place in places for name, _ in place.held}
            divides = divides and split.isdisjoint(op.placement().reduced)
            # A region into which nothing enters is not told from what is around it.
            local = divides if op.inputs else any(place.held for place in natural)
        key = _describe_lowering(op, places, natural), local, kernel
        lower = lambda *values: self.ops.lower(op, values, places, natural, local, kernel)
        if not (op.any_padding and local):
            return self.compute_all(key, lower, values)
        values = [self._padded.get(value, value) for value in values]
        found = self.compute_all(key, lower, values)
        results, padded = found[: len(op.outputs)], found[len(op.outputs) :]
        made = zip(results, op.outputs, natural, strict=True)
        uneven = [one for one, x, place in made if not place.divides(x.shape, self.mesh)]
        self._padded.update(zip(uneven, padded, strict=True))
        return results


def _describe_lowering(op: Op, places: Sequence[Sharding], natural: Sequence[Sharding]) -> Hashable:
    """Return all that the lowering of an op on operands in their places depends on."""
    tensors = (*op.inputs, *op.outputs)
    axes = tuple(map(position_axes, (x.shape for x in tensors), (*places, *natural)))
    if not op.nameless:
        return describe_op(op), axes
    numbers: dict[str, int] = {}
    numbered = [
        (x.dtype, *((numbers.setdefault(dim.name, len(numbers)), dim.size) for dim in x.shape))
        for x in tensors
    ]
    return describe_options(op), tuple(numbered), axes


def copy_types(values: Sequence[Value]) -> list[Value]:
    """Return new values of the same sizes and dtypes."""
    return [Value(one.sizes, one.dtype) for one in values]
