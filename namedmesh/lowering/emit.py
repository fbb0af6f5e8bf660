"""Emission: fragments, loops and choices for each named op, every result annotated."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from namedmesh.dims.dimension import Shape
from namedmesh.dims.sharding import Sharding, Transfer, conversion
from namedmesh.ir.context import Context
from namedmesh.ir.op import Body, Op, describe_op
from namedmesh.ir.tensor import Tensor
from namedmesh.lowering.fragments import Block, Call, Choice, Fragments, Repeat, Value
from namedmesh.lowering.op_lowering import OpLowering, position_axes
from namedmesh.planning.plan import Plan


class Emitter(Context):
    """Lowers a planned program; every value is annotated with its planned sharding.

    Values are not TensorFlow's: what TensorFlow computes is asked of fragments, by `compute`.
    """

    compiled = True

    def __init__(self, plan: Plan, ops: OpLowering, fragments: Fragments, block: Block):
        self.placements, self.mesh = plan.placements, plan.mesh
        self.ops, self.precision = ops, ops.precision
        self.captured: dict[Tensor, dict[Sharding, Any]] = {}  # brought before the loop around it
        self._fragments, self._block = fragments, block
        self._op: Op | None = None  # whose instructions are being emitted

    @contextmanager
    def emitting(self, op: Op | None) -> Iterator[None]:
        """A context in which instructions belong to an op."""
        before, self._op = self._op, op
        try:
            yield
        finally:
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
        block = Block([Value(one.sizes, one.dtype) for one in like])
        outer, self._block = self._block, block
        try:
            block.results = list(function(*block.arguments))
        finally:
            self._block = outer
        return block

    def while_loop(
        self, test: Callable[..., Any], body: Callable[..., Any], start: Sequence[Any]
    ) -> list[Any]:
        tested = self._record(lambda *carry: [test(*carry)], start)
        iteration = self._record(body, start)
        results = [Value(one.sizes, one.dtype) for one in start]
        self._block.instructions.append(Repeat(self.name, start, tested, iteration, results))
        return results

    def cond(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> list[Any]:
        first, second = self._record(yes, []), self._record(no, [])
        results = [Value(one.sizes, one.dtype) for one in first.results]
        self._block.instructions.append(Choice(self.name, condition, first, second, results))
        return results

    def at(self, value: Value, shape: Shape, sharding: Sharding) -> Value:
        """Annotate a value with a sharding of its shape; scalars need no annotation."""
        if not len(shape) and not sharding.partial:
            return value
        return self.annotate(value, position_axes(shape, sharding))

    def annotate(self, value: Value, axes: Sequence[Sequence[str]]) -> Value:
        """Annotate a value with the axes of its positions; skip it if unchanged."""
        annotator = self.ops.annotator
        proto = annotator.proto(axes)
        if value.sharding == proto:
            return value
        return self.compute(("annotate", proto), lambda x: annotator.annotate(x, axes), value)

    def place(self, value: Any, tensor: Tensor) -> Any:
        return self.at(value, tensor.shape, self.placements.natural[tensor])

    def part_sizes(self, tensor: Tensor) -> list[int]:
        return [self.mesh.axes[axis] for axis in self.placements.natural[tensor].partial]

    def hold(self, value: Any, op: Op, i: int) -> Any:
        return self.at(value, op.inputs[i].shape, self.placements.operand_sharding(op, i))

    def lies_alike(self, tensor: Tensor, op: Op, i: int) -> bool:
        return self.placements.natural[tensor] == self.placements.operand_sharding(op, i)

    def move(self, value: Any, tensor: Tensor, source: Sharding, steps: Sequence[Transfer]) -> Any:
        """Move a value: each annotation differs from the one before by one collective."""
        shape, ops = tensor.shape, self.ops
        for step in steps:
            if step.sums or step.kind == "Alone":
                # A sum is made in the name of the op that left the parts.
                op = self.placements.sum_owners[tensor] if step.sums else self._op
                places = position_axes(shape, source), position_axes(shape, step.result)
                key = "move", step.kind, step.sums, tuple(step.axes), *places
                with self.emitting(op):
                    move = lambda x, source=source, step=step: ops.move(x, shape, source, step)
                    value = self.compute(key, move, value)
            else:
                value = self.at(value, shape, step.result)
            source = step.result
        return value

    def make(self, tensor: Tensor, place: Sharding, moved: dict[Any, Any]) -> Any:
        """Make a tensor of constants where it is read."""
        tensor = self.placements.constants[tensor]
        key = tensor, place
        if key not in moved:
            op = self.placements.producers[tensor]
            with self.emitting(op):
                # What rearranges makes all of it, and cuts out what is wanted.
                bare = Sharding() if op.rearranges else place.with_partial(())
                places = [bare.only(x.shape.names) for x in op.inputs]
                values = [self.make(x, on, moved) for x, on in zip(op.inputs, places, strict=True)]
                (value,) = self.lower(op, values, places, [bare])
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
        """Emit ops on values for some tensors, and brings outputs where their owner wants them."""
        plan = self.placements
        known: dict[Tensor, Any] = {}
        for t, v in zip(arguments, values, strict=True):
            if t not in plan.constants:
                with self.emitting(self._op or plan.producers.get(t)):  # a loop gives its body's
                    known[t] = self.at(v, t.shape, plan.shardings[t])
        moved: dict[Any, Any] = {
            (t, place): self.at(value, t.shape, place)
            for t in arguments
            for place, value in self.captured.get(t, {}).items()
        }
        for op in ops:
            if not op.given and not all(tensor in plan.constants for tensor in op.outputs):
                with self.emitting(op):
                    self.op(op, known, moved)
        results = []
        for i, tensor in enumerate(outputs):
            with self.emitting(plan.producers[tensor]):
                if tensor in plan.constants:
                    place = plan.constant_uses.get((owner, i), plan.shardings[tensor])
                    results.append(self.make(tensor, place, moved))
                else:
                    steps = plan.result_moves.get((owner, i), ())
                    place = plan.shardings[tensor]
                    value = known[tensor]
                    if steps:
                        value = self.move_once(value, tensor, place, steps, moved)
                    results.append(value)
        return results

    def op(self, op: Op, known: dict[Tensor, Any], moved: dict[Any, Any]) -> None:
        """Emit one op: operands brought into place, the op itself, results settled."""
        places = [self.placements.operand_sharding(op, i) for i in range(len(op.inputs))]
        for (inner, place), (i, steps) in self.placements.captured_moves.get(op, {}).items():
            source = self.placements.shardings[inner]
            key = self.placements.value_of(op.inputs[i]), place
            if key not in moved:  # nor before an enclosing loop
                value = self.at(self.operand(op, i, known, moved), inner.shape, source)
                self.move_once(value, op.inputs[i], source, steps, moved)
            self.captured.setdefault(inner, {})[place] = moved[key]
        if op in self.placements.sum_groups:
            results: Sequence[Any] = [self.add_groups(op, known, moved)]
        else:
            values = [self.operand(op, i, known, moved) for i in range(len(op.inputs))]
            results = self.lower(
                op, values, places, [self.placements.natural[t] for t in op.outputs]
            )
        for tensor, value in zip(op.outputs, results, strict=True):
            value, steps = self.place(value, tensor), self.placements.moves.get(tensor, ())
            known[tensor] = self.move(value, tensor, self.placements.natural[tensor], steps)

    def operand(self, op: Op, i: int, known: dict[Tensor, Any], moved: dict[Any, Any]) -> Any:
        """Bring an operand into place; one that several ops want there is brought once."""
        tensor, place = op.inputs[i], self.placements.operand_sharding(op, i)
        if tensor in self.placements.constants:
            return self.make(tensor, place, moved)
        steps = self.placements.operand_moves.get((op, i), ())
        if not steps:
            return known[tensor]
        value, source = known[tensor], self.placements.shardings[tensor]
        return self.move_once(value, tensor, source, steps, moved)

    def move_once(
        self,
        value: Any,
        tensor: Tensor,
        source: Sharding,
        steps: Sequence[Transfer],
        moved: dict[Any, Any],
    ) -> Any:
        """Move a value along a way, of which others' ways may have made the beginning already."""
        same, made = (
            self.placements.value_of(tensor),
            self.placements.count_shared_moves(tensor, steps, moved),
        )
        if made:
            source = steps[made - 1].result
            value = moved[same, source]
        for step in steps[made:]:
            value = moved[same, step.result] = self.move(value, tensor, source, [step])
            source = step.result
        return value

    def add_groups(self, op: Op, known: dict[Tensor, Any], moved: dict[Any, Any]) -> Any:
        """Add up the parts of a cotangent that lie together, moves the sums, and adds those."""
        total = None
        shape = op.output.shape
        for members, steps in self.placements.sum_groups[op]:
            values = [self.operand(op, i, known, moved) for i in members]
            value = self.add(values) if len(values) > 1 else values[0]
            place = self.placements.operand_sharding(op, members[0])
            value = self.move(self.at(value, shape, place), op.inputs[members[0]], place, steps)
            total = value if total is None else self.add([total, value])
        return total

    def add(self, values: Sequence[Any]) -> Any:
        """Add values up."""
        return self.compute("add", lambda *values: self.tf.add_n(values), *values)

    def lower(
        self,
        op: Op,
        values: Sequence[Any],
        places: Sequence[Sharding],
        natural: Sequence[Sharding],
    ) -> Sequence[Any]:
        """Emit an op on operands in their places; natural is where it makes its results."""
        if op.control:
            return op.lower(self, *values)
        kernel = op in self.placements.local_ops
        local = op.manual or kernel
        if op.closed and not local:  # it would rather be local, where its operands' sizes divide
            pairs = zip((*op.inputs, *op.outputs), (*places, *natural), strict=True)
            divides = all(place.divides(tensor.shape, self.mesh) for tensor, place in pairs)
            # A region into which nothing enters is not told from what lies around it.
            local = divides if op.inputs else any(place.held for place in natural)
        key = describe_op(op), tuple(places), tuple(natural), local, kernel
        lower = lambda *values: self.ops.lower(op, values, places, natural, local, kernel)
        return self.compute_all(key, lower, values)
