"""FusedBody: which ops of a body run as one, what each run reads and what it writes to memory.

The rule, after what XLA does: an op that treats elements one by one, or only rearranges them, runs
within the ops that read its result, which is then never written to memory. It is written where

- a collective moves it, the program or a loop's turn returns it, or a loop, a branch or a manual
  op reads it;
- a matrix product reads it, unless the compiler makes operands within products (`fuses_products`)
  and nothing else reads it;
- several ops read it and it is costly to make again: an exponential, a division.

A sum or another reduction makes its operand itself, and writes its result. With `fuses_products`
the result of a product that one elementwise op reads is not written either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from namedmesh.dims.sharding import Sharding, Transfer
from namedmesh.estimates.hardware import Hardware
from namedmesh.ir.op import Op
from namedmesh.ir.tensor import Tensor
from namedmesh.lowering.plan import Plan

# Elementwise functions that XLA does not compute twice: those it calls expensive.
COSTLY = {
    "cos", "divide", "erf", "erfinv", "exp", "expm1", "log", "log1p", "power", "reciprocal",
    "rsqrt", "sigmoid", "sin", "sqrt", "tanh",
}  # fmt: skip

# What is written to memory: a tensor where it lies, or a value that was moved to a place.
Buffer = Tensor | tuple[object, Sharding]


@dataclass
class Run:
    """Ops that run as one, ending in one that writes its results to memory.

    Attributes:
        op: The last of them.
        reads: The bytes that are read of each buffer.
        writes: The bytes of each buffer that is written.
        flops: The floating point operations of the op itself, on one device.
        fused_flops: Those of the ops that run within it.
    """

    op: Op
    reads: dict[Buffer, int] = field(default_factory=dict)
    writes: dict[Buffer, int] = field(default_factory=dict)
    flops: float = 0.0
    fused_flops: float = 0.0

    @property
    def bytes(self) -> int:
        """What is read and written."""
        return sum(self.reads.values()) + sum(self.writes.values())


def is_product(op: Op) -> bool:
    """Whether an op is a matrix product or a convolution."""
    return op.kept_by_dots and op.rule == "generic" and not op.elementwise


def only_rearranges(op: Op) -> bool:
    """Whether an op makes no new numbers; a sum of constants makes constants, but adds them up."""
    return op.rearranges and not op.sums


def find_axes(plan: Plan, op: Op) -> tuple[str, ...]:
    """Finds the axes along which an op's work is divided: those that its tensors hold."""
    axes: set[str] = set()
    for i, tensor in enumerate(op.inputs):
        steps = plan.operands.get((op, i))
        place = steps[-1].result if steps else plan.shardings[tensor]
        axes |= {*place.used, *place.partial}
    for tensor in op.outputs:
        place = plan.natural.get(tensor, plan.shardings[tensor])
        axes |= {*place.used, *place.partial}
    return tuple(axes)


def count_flops(plan: Plan, ops: Iterable[Op]) -> float:
    """Counts the floating point operations of one device.

    Args:
        plan: The plan.
        ops: The ops to count, those of their loops and branches included.

    Returns:
        The count: an op's work is divided along the axes that its tensors hold.
    """
    total = 0.0
    for op in ops:
        if op.bodies:
            inner = [one for body in op.bodies for one in body.ops]
            once = sum(one.flops() for one in inner)
            total += op.flops() / once * count_flops(plan, inner) if once else 0
            continue
        total += op.flops() / plan.mesh.size(find_axes(plan, op))
    return total


def moves_data(steps: Sequence[Transfer]) -> bool:
    """Whether there is a collective among some transfers."""
    return any(step.kind not in ("Slice", "Alone") for step in steps)


class FusedBody:
    """The runs of a program's or a loop body's ops, in order.

    Args:
        plan: The plan.
        owner: The program, or the body whose ops these are.
        ops: The ops.
        outputs: What they are for.
        hardware: What decides which ops fuse.
    """

    def __init__(
        self,
        plan: Plan,
        owner: object,
        ops: Sequence[Op],
        outputs: Sequence[Tensor],
        hardware: Hardware,
    ):
        self.plan, self.hardware, self.outputs = plan, hardware, outputs
        self._sizes: dict[tuple[Tensor, Sharding], int] = {}
        self.ops = self._find_live(ops)
        self.producers = {tensor: op for op in self.ops for tensor in op.outputs}
        self.aliases = dict(self._find_aliases())
        self.readers: Counter[Tensor] = Counter()
        for op in self.ops:
            if op in self.aliases_of_ops:
                continue
            for tensor in {self.resolve(op.inputs[i]) for i in self.read_positions(op)}:
                self.readers[tensor] += 1
        self.written: set[Tensor] = set()
        self._decide(owner)
        self.runs = [run for op in self.ops if (run := self._make_run(op)) is not None]

    def read_positions(self, op: Op) -> range:
        """Returns which operands an op reads when it runs; the others are for derivatives."""
        if op.rule == "kernel" and self.uses_kernel(op):
            return range(len(op.outputs), len(op.inputs))
        if op.rule in ("kernel", "pass_through"):
            return range(len(op.outputs))
        return range(len(op.inputs))

    def uses_kernel(self, op: Op) -> bool:
        """Whether a kernel takes the place of the named ops that made an op's operands."""
        return self.hardware.kernels and op in self.plan.local and op.rule == "kernel"

    def elements_of(self, tensor: Tensor, place: Sharding | None = None) -> int:
        """Returns the elements of one device's piece of a tensor where it lies, or in a place."""
        place = self.plan.shardings[tensor] if place is None else place
        key = tensor, place
        if key not in self._sizes:
            self._sizes[key] = place.local_elements(tensor.shape, self.plan.mesh)
        return self._sizes[key]

    def bytes_of(self, tensor: Tensor, place: Sharding | None = None) -> int:
        """Returns the bytes of one device's piece of a tensor where it lies, or in a place."""
        return self.elements_of(tensor, place) * tensor.itemsize

    def resolve(self, tensor: Tensor) -> Tensor:
        """Returns the tensor whose memory another one is."""
        while tensor in self.aliases:
            tensor = self.aliases[tensor]
        return tensor

    def flops_of(self, op: Op) -> float:
        """Returns the floating point operations of an op on one device."""
        total = op.flops()
        return total / self.plan.mesh.size(find_axes(self.plan, op)) if total else 0.0

    def _find_live(self, ops: Sequence[Op]) -> list[Op]:
        """The ops that something needs, without those that kernels take the place of."""
        needed, live = {*self.outputs}, []
        for op in reversed(ops):
            if op.given or all(tensor in self.plan.free for tensor in op.outputs):
                continue
            if op.control or any(tensor in needed for tensor in op.outputs):
                needed.update(op.inputs[i] for i in self.read_positions(op))
                live.append(op)
        return live[::-1]

    def _find_aliases(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Results that are an operand under another name, or in another order."""
        self.aliases_of_ops: set[Op] = set()
        for op in self.ops:
            positions = self.read_positions(op)
            if op.control or (op.rule == "kernel" and self.uses_kernel(op)):
                continue
            pairs = list(zip(positions, op.outputs, strict=False))
            passes = op.rule in ("kernel", "pass_through")
            if not passes and not (len(positions) == 1 == len(op.outputs) and self._keeps(op)):
                continue
            if any(
                op.inputs[i] in self.plan.free
                or moves_data(self.plan.operands.get((op, i), ()))
                or moves_data(self.plan.moves.get(tensor, ()))
                or self.bytes_of(op.inputs[i]) != self.bytes_of(tensor)
                for i, tensor in pairs
            ) or (op in self.plan.sums and any(moves_data(way) for _, way in self.plan.sums[op])):
                continue
            self.aliases_of_ops.add(op)
            yield from ((tensor, op.inputs[i]) for i, tensor in pairs)

    def _keeps(self, op: Op) -> bool:
        """Whether the only result has the numbers of the only operand."""
        (x,), y = op.inputs, op.output
        same = x.dtype == y.dtype and x.shape.elements == y.shape.elements
        return same and (op.elementwise or only_rearranges(op)) and not op.flops()

    def fuses(self, op: Op) -> bool:
        """Whether an op runs within those that read its results."""
        if op.control or (op.rule == "kernel" and self.uses_kernel(op)):
            return False
        if op.rule == "generic" and op.elementwise and not op.repeatable:
            return False  # a barrier
        return op.elementwise or only_rearranges(op) or op.repeatable

    def makes_operand(self, op: Op, tensor: Tensor) -> bool:
        """Whether an op computes an operand while it reads what that is made of."""
        if op.control or op.rule == "kernel":
            return False
        if self.fuses(op):
            return True
        if is_product(op):
            return self.hardware.fuses_products and self.readers[tensor] == 1
        if op.manual or op.elementwise:
            return False
        return op.output.shape.elements < tensor.shape.elements  # a reduction

    def _decide(self, owner: object) -> None:
        """Finds the tensors that are written to memory."""
        plan, moved = self.plan, set()
        for i, tensor in enumerate(self.outputs):
            self.written.add(self.resolve(tensor))
            if moves_data(plan.results.get((owner, i), ())):
                moved.add(self.resolve(tensor))
        for op in self.ops:
            if op in self.aliases_of_ops:
                continue
            sums = op in plan.sums and any(moves_data(way) for _, way in plan.sums[op])
            for i in self.read_positions(op):
                tensor = self.resolve(op.inputs[i])
                if tensor in plan.free:
                    continue
                if sums or moves_data(plan.operands.get((op, i), ())):
                    moved.add(tensor)
                elif not self.makes_operand(op, tensor):
                    self.written.add(tensor)
            for tensor in op.outputs:
                if moves_data(plan.moves.get(tensor, ())):
                    moved.add(tensor)
                if (not self.fuses(op) and not self._ends_in_reader(op, tensor)) or (
                    op.kind in COSTLY and self.readers[tensor] > 1
                ):
                    self.written.add(tensor)
        self.written |= moved
        self._keep_made_products()
        self.written -= plan.free.keys()

    def _ends_in_reader(self, op: Op, tensor: Tensor) -> bool:
        """Whether a product's result goes into the one elementwise op that reads it."""
        return self.hardware.fuses_products and is_product(op) and self.readers[tensor] == 1

    def _keep_made_products(self) -> None:
        """Products that end in a reader are made once: what holds one and is read twice is kept."""
        holds: set[Tensor] = set()
        for op in self.ops:
            if op in self.aliases_of_ops:
                continue
            inside = [self.resolve(op.inputs[i]) for i in self.read_positions(op)]
            within = any(tensor in holds for tensor in inside)
            if within and not self.fuses(op):
                self.written.update(tensor for tensor in inside if tensor in holds)
            for tensor in op.outputs:
                if tensor in self.written or not (is_product(op) or (within and self.fuses(op))):
                    continue
                if self.readers[tensor] > 1:
                    self.written.add(tensor)
                else:
                    holds.add(tensor)

    def _make_run(self, op: Op) -> Run | None:
        """What an op reads and writes, with what runs within it; None if it runs within others."""
        if op in self.aliases_of_ops:
            return None
        outputs = [tensor for tensor in op.outputs if tensor in self.written]
        if not outputs and self.fuses(op):
            return None
        run = Run(op, flops=0.0 if op.control else self.flops_of(op))
        self._read_operands(run, op, None, {op})
        for (_, place), (i, _) in self.plan.captured.get(op, {}).items():
            key = self.plan.value_of(op.inputs[i]), place
            run.reads[key] = self.bytes_of(op.inputs[i], place)
        for tensor in outputs:
            run.writes[tensor] = self.bytes_of(tensor)
        return run

    def _read_operands(self, run: Run, op: Op, most: int | None, seen: set[Op]) -> None:
        """Enters what an op reads into a run; most is how many elements a reader wants of each."""
        if only_rearranges(op) or (op.manual and len(op.inputs) > 1 and not op.flops()):
            made = sum(self.elements_of(tensor) for tensor in op.outputs)
            most = made if most is None else min(most, made)
        for i in self.read_positions(op):
            tensor = op.inputs[i]
            if tensor in self.plan.free:
                continue
            steps = self.plan.operands.get((op, i), [])
            if moves_data(steps):
                key = self.plan.value_of(tensor), steps[-1].result
                run.reads[key] = self.bytes_of(tensor, steps[-1].result)
                continue
            place = steps[-1].result if steps else None
            elements = self.elements_of(tensor, place)
            elements = elements if most is None else min(most, elements)
            root = self.resolve(tensor)
            producer = self.producers.get(root)
            if producer is None or root in self.written:
                size = elements * root.itemsize
                run.reads[root] = max(run.reads.get(root, 0), size)
            elif producer not in seen and self.fuses(producer):
                seen.add(producer)
                run.fused_flops += self.flops_of(producer)
                self._read_operands(run, producer, most, seen)
