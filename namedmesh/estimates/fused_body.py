"""FusedBody: which ops of a body run as one, what each run reads and what it writes to memory.

The rule, after what XLA does: an op that treats elements one by one, or only rearranges them, runs
within the ops that read its result, which is then never written to memory. It is written where

- a collective moves it, the program or a loop's turn returns it, or a loop, a branch or a manual
  op reads it;
- a matrix product reads it, unless the compiler makes operands within products (`fuses_products`)
  and nothing else reads it;
- several ops read it, and all of them reading what it is made of would be more than writing it
  once and reading it, or the compiler does not compute it twice (`repeats`).

Ops of equal contents on equal operands are one, as XLA merges them, unless a barrier is between.
A sum or another reduction makes its operand itself, and writes its result. With `fuses_products`
the result of a product that one elementwise op reads is not written either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from namedmesh.dims.sharding import Sharding, Transfer
from namedmesh.estimates.equal_ops import Contents
from namedmesh.estimates.hardware import Hardware
from namedmesh.ir.op import Op
from namedmesh.ir.tensor import Tensor
from namedmesh.lowering.plan import Plan

# What is written to memory: a tensor where it lies, or a value that was moved to a place.
Buffer = Tensor | tuple[object, Sharding]


# Elementwise functions that XLA calls expensive.
_COSTLY = {
    "cos", "divide", "erf", "erfinv", "exp", "expm1", "log", "log1p", "power", "reciprocal",
    "rsqrt", "sigmoid", "sin", "sqrt", "tanh",
}  # fmt: skip


@dataclass
class Run:
    """Ops that run as one, ending in one that writes its results to memory.

    Attributes:
        op: The last of them.
        reads: The bytes that are read of each buffer.
        writes: The bytes of each buffer that is written.
        flops: The floating point operations of the op itself, on one device.
        fused: The floating point operations of the ops that run within it, by op.
        beside: What is there only while it runs, such as results before collectives move them.
    """

    op: Op
    reads: dict[Buffer, int] = field(default_factory=dict)
    writes: dict[Buffer, int] = field(default_factory=dict)
    flops: float = 0.0
    fused: dict[Op, float] = field(default_factory=dict)
    beside: dict[Buffer, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """What is read and written."""
        return sum(self.reads.values()) + sum(self.writes.values())

    @property
    def fused_flops(self) -> float:
        """The floating point operations of all ops that run within the last one."""
        return sum(self.fused.values())


def is_product(op: Op) -> bool:
    """Whether an op is a matrix product or a convolution."""
    return op.kept_by_dots and op.rule == "generic" and not op.elementwise


def only_rearranges(op: Op) -> bool:
    """Whether an op makes no new numbers; a sum of constants makes constants, but adds them up."""
    return op.rearranges and not op.sums


def moves_data(steps: Sequence[Transfer]) -> bool:
    """Whether there is a collective among some transfers."""
    return any(step.kind not in ("Slice", "Alone") for step in steps)


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
        self._producers = {tensor: op for op in self.ops for tensor in op.outputs}
        self._kernel_flops = self._find_kernel_flops(ops)
        self._renaming: set[Op] = set()
        self.aliases: dict[Tensor, Tensor] = {}
        self._find_aliases()
        self.readers: Counter[Tensor] = Counter()
        for op in self.ops:
            if op not in self._renaming:
                self.readers.update({self.resolve(op.inputs[i]) for i in self.read_positions(op)})
        self._demanded = self._find_demanded(owner)
        self._moved: set[Buffer] = set()
        self._within: dict[Tensor, Run] = {}  # for what is not written: how it is made
        self.runs = [run for op in self.ops if (run := self._make_run(op)) is not None]

    def read_positions(self, op: Op) -> range:
        """Returns which operands an op reads when it runs; the others are for derivatives."""
        if self.uses_kernel(op):
            return range(len(op.outputs), len(op.inputs))
        if op.rule in ("kernel", "pass_through"):
            return range(len(op.outputs))
        return range(len(op.inputs))

    def uses_kernel(self, op: Op) -> bool:
        """Whether a kernel takes the place of the named ops that made an op's operands."""
        return op.rule == "kernel" and self.hardware.kernels and op in self.plan.local

    def elements_of(self, tensor: Tensor, place: Sharding | None = None) -> int:
        """Returns the elements of one device's piece of a tensor where it lies, or in a place."""
        place = self.plan.shardings[tensor] if place is None else place
        key = tensor, place
        if key not in self._sizes:
            self._sizes[key] = place.local_elements(tensor.shape, self.plan.mesh)
        return self._sizes[key]

    def bytes_of(self, tensor: Tensor, place: Sharding | None = None) -> int:
        """Returns the bytes of one device's piece of a tensor where it lies, or in a place."""
        return self.elements_of(tensor, place) * self._item_bytes(tensor)

    def _item_bytes(self, tensor: Tensor) -> int:
        """The bytes of an element; what is computed where float32 is the narrowest takes more."""
        narrow = self.hardware.widens and tensor.floating and tensor.itemsize < 4
        computed = narrow and tensor in self._producers and not self._producers[tensor].control
        return 4 if computed else tensor.itemsize

    def resolve(self, tensor: Tensor) -> Tensor:
        """Returns the tensor whose memory another one is."""
        while tensor in self.aliases:
            tensor = self.aliases[tensor]
        return tensor

    def fuses(self, op: Op) -> bool:
        """Whether an op runs within those that read its results."""
        if op.control or self.uses_kernel(op):
            return False
        if self._is_barrier(op):
            return False
        return op.elementwise or only_rearranges(op) or op.repeatable or _spreads(op)

    def _is_barrier(self, op: Op) -> bool:
        """Whether nothing runs across an op, and equal ones are all made."""
        return op.rule == "generic" and op.elementwise and not op.repeatable

    def _flops_of(self, op: Op) -> float:
        """The floating point operations of an op on one device."""
        if op in self._kernel_flops:
            return self._kernel_flops[op]
        total = 0 if op.control else op.flops()
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

    def _find_kernel_flops(self, ops: Sequence[Op]) -> dict[Op, float]:
        """The floating point operations of kernels: those of the named ops they replace."""
        kernels = [op for op in self.ops if self.uses_kernel(op)]
        if not kernels:
            return {}
        live, counts = {*self.ops}, {}
        producers = {tensor: op for op in ops for tensor in op.outputs}
        seen: set[Op] = set()
        for kernel in kernels:
            pending, total = list(kernel.inputs[: len(kernel.outputs)]), 0.0
            while pending:
                op = producers.get(pending.pop())
                if op is None or op in live or op in seen or op.given:
                    continue
                seen.add(op)
                if is_product(op):
                    total += op.flops() / self.plan.mesh.size(find_axes(self.plan, op))
                pending += op.inputs
            counts[kernel] = total
        return counts

    def _find_aliases(self) -> None:
        """Finds results that are an operand under another name, or what an equal op made before."""
        made: dict[Hashable, Op] = {}
        contents = Contents(self.plan, self.resolve)
        for op in self.ops:
            if op.control or self.uses_kernel(op) or self._is_barrier(op):
                continue
            if self._passes_on(op):
                pairs = zip(self.read_positions(op), op.outputs, strict=False)
                self.aliases.update((tensor, op.inputs[i]) for i, tensor in pairs)
                self._renaming.add(op)
                continue
            earlier = made.setdefault(contents.describe(op), op)
            if earlier is not op:
                self.aliases.update(zip(op.outputs, earlier.outputs, strict=True))
                self._renaming.add(op)

    def _passes_on(self, op: Op) -> bool:
        """Whether an op's results have the numbers of its operands, which stay where they are."""
        positions = self.read_positions(op)
        passes = op.rule in ("kernel", "pass_through")
        if not passes and not (len(positions) == 1 == len(op.outputs) and _keeps(op)):
            return False
        return not self._sums_move(op) and not any(
            op.inputs[i] in self.plan.free
            or moves_data(self.plan.operands.get((op, i), ()))
            or moves_data(self.plan.moves.get(tensor, ()))
            or self.bytes_of(op.inputs[i]) != self.bytes_of(tensor)
            for i, tensor in zip(positions, op.outputs, strict=False)
        )

    def _sums_move(self, op: Op) -> bool:
        """Whether parts of a cotangent are moved before they are added up."""
        return any(moves_data(steps) for _, steps in self.plan.sums.get(op, ()))

    def _makes_operand(self, op: Op, tensor: Tensor) -> bool:
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

    def _find_demanded(self, owner: object) -> set[Tensor]:
        """The tensors that something reads from memory, or that collectives move."""
        plan = self.plan
        demanded = {self.resolve(tensor) for tensor in self.outputs}
        for op in self.ops:
            demanded.update(
                tensor for tensor in op.outputs if moves_data(plan.moves.get(tensor, ()))
            )
            if op in self._renaming:
                continue
            moved = self._sums_move(op)
            for i in self.read_positions(op):
                tensor = self.resolve(op.inputs[i])
                steps = plan.operands.get((op, i), ())
                if moved or moves_data(steps) or not self._makes_operand(op, tensor):
                    demanded.add(tensor)
        return demanded

    def _make_run(self, op: Op) -> Run | None:
        """What an op reads and writes, with what runs within it; None if it runs within others."""
        if op in self._renaming:
            return None
        run = self._read_operands(op)
        run.flops = self._flops_of(op)
        fused = self.fuses(op)
        ends = self.hardware.fuses_products and is_product(op)
        if (fused or ends) and not any(self._is_written(run, tensor) for tensor in op.outputs):
            within = Run(op, dict(run.reads), fused={**run.fused, op: run.flops})
            if not fused:  # a product that ends in its reader reads its operands once, then
                within = Run(op, dict.fromkeys(run.reads, 0), fused={op: 0.0})
            self._within.update(dict.fromkeys(op.outputs, within))
            return None if fused else run
        for tensor in op.outputs:
            if self.readers[tensor] or tensor in self._demanded:
                run.writes[tensor] = self.bytes_of(tensor)
                if moves_data(self.plan.moves.get(tensor, ())):
                    natural = self.plan.natural[tensor]
                    run.beside[tensor, natural] = self.bytes_of(tensor, natural)
        return run

    def _is_written(self, run: Run, tensor: Tensor) -> bool:
        """Whether a result that could be made within its readers is written to memory."""
        if tensor in self._demanded:
            return True
        readers, size = self.readers[tensor], self.bytes_of(tensor)
        if readers < 2:
            return False
        if is_product(run.op) or any(is_product(op) for op in run.fused):
            return True  # it is made once
        repeats = self.hardware.repeats
        if repeats == "none" or (repeats == "cheap" and run.op.kind in _COSTLY):
            return True
        read = sum(run.reads.values())
        return readers * read > read + (1 + readers) * size

    def _read_operands(self, op: Op) -> Run:
        """What an op reads of memory, and what runs within it."""
        plan, run = self.plan, Run(op)
        most = None
        if only_rearranges(op) or (op.manual and len(op.inputs) > 1 and not op.flops()):
            most = sum(self.elements_of(tensor) for tensor in op.outputs)
        for i in self.read_positions(op):
            tensor = op.inputs[i]
            if tensor in plan.free:
                continue
            steps = plan.operands.get((op, i), [])
            if moves_data(steps):
                place = steps[-1].result
                moved = plan.value_of(tensor), place
                run.reads[moved] = self.bytes_of(tensor, place)
                if moved not in self._moved:  # what is moved is there until it has been
                    self._moved.add(moved)
                    run.reads.setdefault(self.resolve(tensor), 0)
                continue
            root = self.resolve(tensor)
            within = self._within.get(root)
            if within is not None:
                for buffer, size in within.reads.items():
                    limit = size if most is None else min(size, most * self._item_bytes(root))
                    run.reads[buffer] = max(run.reads.get(buffer, 0), limit)
                run.fused |= within.fused
                continue
            elements = self.elements_of(tensor, steps[-1].result if steps else None)
            elements = elements if most is None else min(most, elements)
            run.reads[root] = max(run.reads.get(root, 0), elements * self._item_bytes(root))
        for (_, place), (i, _) in plan.captured.get(op, {}).items():
            run.reads[plan.value_of(op.inputs[i]), place] = self.bytes_of(op.inputs[i], place)
        return run


def _spreads(op: Op) -> bool:
    """Whether an op makes more of less without arithmetic, as a one-hot tensor of indices is."""
    if op.manual or op.control or not op.inputs or op.flops():
        return False
    return all(x.shape.elements < op.output.shape.elements for x in op.inputs)


def _keeps(op: Op) -> bool:
    """Whether the only result has the numbers of the only operand."""
    (x,), y = op.inputs, op.output
    same = x.dtype == y.dtype and x.shape.elements == y.shape.elements
    return same and (op.elementwise or only_rearranges(op)) and not op.flops()
