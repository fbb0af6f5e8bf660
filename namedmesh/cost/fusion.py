"""Fusion as XLA does it: which ops of a body run as one, and what each fusion reads and writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from namedmesh.dims.dimension import Shape
from namedmesh.dims.sharding import Sharding, Transfer
from namedmesh.hardware.hardware import Hardware
from namedmesh.ir.op import Op, describe_options
from namedmesh.ir.program import every_op_with_times
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.plan import Plan


def find_axes(plan: Plan, op: Op) -> tuple[str, ...]:
    """Find the axes along which an op's work is divided: those its tensors are sharded over."""
    axes: set[str] = set()
    for i, tensor in enumerate(op.inputs):
        steps = plan.placements.operand_moves.get((op, i))
        place = steps[-1].result if steps else plan.shardings[tensor]
        axes |= {*place.used, *place.partial}
    for tensor in op.outputs:
        place = plan.placements.natural.get(tensor, plan.shardings[tensor])
        axes |= {*place.used, *place.partial}
    return tuple(axes)


# The rules, after what XLA does. An op that treats elements one by one, or only rearranges them,
# fuses into the ops that read its result, which is then never written to memory. It is written if
#
# - a collective moves it, the program or a loop's iteration returns it, or a loop, a branch or a
#   manual op reads it;
# - a matrix product reads it, unless the compiler fuses operands into products (`fuses_products`)
#   and nothing else reads it;
# - several ops read it, and all of them reading its inputs would be more than writing it once and
#   reading it, or the compiler does not compute it twice (`repeats`).
#
# Ops of equal contents on equal operands are one, as XLA merges them, unless a barrier is between,
# which itself takes nothing. A reduction computes its operand itself, and writes its result; with
# `merges_sums` sums that share an operand run as one.
#
# With `fuses_products` elementwise ops that follow a product are its epilogue, and what is written
# is the first of their results that has to be. If that is so only because several ops read it, and
# the product's own result is smaller (bfloat16, cast to float32), the product's is written, and
# every reader computes the rest. With `fuses_relu` the epilogue is a relu alone.

MOST_PAIRS = 2**31  # of queries and keys, for kernels with tiles: as tpu_attention_kernel.py has it
# Elementwise functions that XLA calls expensive.
COSTLY = {
    "cos", "divide", "erf", "erfinv", "exp", "expm1", "log", "log1p", "power", "reciprocal",
    "rsqrt", "sigmoid", "sin", "sqrt", "tanh",
}  # fmt: skip


def is_product(op: Op) -> bool:
    """Return True for a matrix product or a convolution."""
    return op.kept_by_dots and op.inherits_sharding and not op.elementwise


def moves_data(steps: Sequence[Transfer]) -> bool:
    """Return True if there is a collective among some transfers."""
    return any(step.kind not in ("Slice", "Alone") for step in steps)


def spreads(op: Op) -> bool:
    """Return True if an op expands its input without arithmetic, as one_hot does."""
    if op.manual or op.control or not op.inputs or op.flops():
        return False
    return all(x.shape.elements < op.output.shape.elements for x in op.inputs)


def keeps_numbers(op: Op) -> bool:
    """Return True if the only result has the elements of the only operand, in order."""
    (x,), y = op.inputs, op.output
    same = x.dtype == y.dtype and x.shape.elements == y.shape.elements
    return same and (op.elementwise or op.rearranges) and not op.flops()


class Contents:
    """Keys of the ops of one body: equal for ops that compute the same."""

    def __init__(self, plan: Plan, resolve: Callable[[Tensor], Tensor]):
        self.plan, self.resolve = plan, resolve
        self._numbers: dict[Hashable, int] = {}
        self._constants: dict[Tensor, int] = {}

    def describe(self, op: Op) -> Hashable:
        """Return a key that equal ops on equal operands and shardings share."""
        operands = []
        for i, x in enumerate(op.inputs):
            steps = self.plan.placements.operand_moves.get((op, i))
            operands.append((self._describe_operand(x), steps[-1].result if steps else None))
        places = [self.plan.shardings[tensor] for tensor in op.outputs]
        return describe_options(op), tuple(operands), tuple(places)

    def _describe_operand(self, tensor: Tensor) -> Hashable:
        """Return a key of an operand; constants are equal if their ops are."""
        if tensor not in self.plan.placements.constants:
            return self.resolve(tensor)
        tensor = self.plan.placements.constants[tensor]
        if tensor not in self._constants:
            op = self.plan.placements.producers[tensor]
            inputs = tuple(map(self._describe_operand, op.inputs))
            key = describe_options(op), inputs, tensor.shape
            self._constants[tensor] = self._numbers.setdefault(key, len(self._numbers))
        return self._constants[tensor]


# A value in memory: a tensor with its planned sharding, or a value that was resharded.
Buffer = Tensor | tuple[object, Sharding]


@dataclass
class Run:
    """Ops fused into one, which writes its results to memory."""

    op: Op  # the last of them; the first where several write results
    reads: dict[Buffer, int] = field(default_factory=dict)  # bytes
    writes: dict[Buffer, int] = field(default_factory=dict)  # bytes
    flops: float = 0.0  # of the op itself, on one device
    fused: dict[Op, float] = field(default_factory=dict)  # FLOPs of the ops fused into it
    # Bytes that are allocated only while it runs, such as results before collectives move them.
    beside: dict[Buffer, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """All bytes that are read and written."""
        return sum(self.reads.values()) + sum(self.writes.values())

    @property
    def fused_flops(self) -> float:
        """The FLOPs of all ops fused into the last one."""
        return sum(self.fused.values())


def merge_sums(runs: Iterable[Run]) -> list[Run]:
    """Fuse sums that keep the same dimensions and share a large operand."""
    # A sum joins an earlier one if all that it reads has been written by then.
    merged: list[Run] = []
    written: dict[Buffer, int] = {}  # by which run
    sums: dict[tuple[Buffer, Shape], int] = {}
    for run in runs:
        at = len(merged)
        if run.op.sums and not is_product(run.op):
            keys = [(x, run.op.output.shape) for x in _find_large(run)]
            ready = max((written.get(x, -1) for x in run.reads), default=-1)
            at = min((sums[key] for key in keys if sums.get(key, -1) > ready), default=at)
            sums.update(dict.fromkeys(keys, at))
        written.update(dict.fromkeys(run.writes, at))
        if at == len(merged):
            merged.append(run)
            continue
        earlier = merged[at]
        earlier.reads |= run.reads
        earlier.writes |= run.writes
        earlier.fused |= {**run.fused, run.op: run.flops}
        earlier.beside |= run.beside
    return merged


def _find_large(run: Run) -> list[Tensor]:
    """Find the tensors as large as any that a run reads; dtypes differ by a factor of four."""
    most = max(run.reads.values(), default=0)
    return [x for x, size in run.reads.items() if isinstance(x, Tensor) and 4 * size >= most]


class FusedBody:
    """The fusions of a program's or a loop body's ops, in order."""

    def __init__(
        self, plan: Plan, ops: Sequence[Op], outputs: Sequence[Tensor], hardware: Hardware
    ):
        self.plan, self.hardware, self.outputs = plan, hardware, outputs
        self._sizes: dict[tuple[Tensor, Sharding], int] = {}
        self.ops = self._find_live(ops)
        self._producers = {tensor: op for op in self.ops for tensor in op.outputs}
        self._replaced = self._find_replaced(ops)
        self._renaming: set[Op] = set()
        self.aliases: dict[Tensor, Tensor] = {}
        self._find_aliases()
        self.readers: Counter[Tensor] = Counter()
        self._last_reader: dict[Tensor, Op] = {}
        for op in self.ops:
            if op not in self._renaming:
                operands = {self.resolve(op.inputs[i]) for i in self.read_positions(op)}
                self.readers.update(operands)
                self._last_reader.update(dict.fromkeys(operands, op))
        self._demanded = self._find_demanded()
        self._moved: set[Buffer] = set()
        self._within: dict[Tensor, Run] = {}  # for what is not written: how it is made
        self.runs = [run for op in self.ops if (run := self._make_run(op)) is not None]
        if hardware.merges_sums:
            self.runs = merge_sums(self.runs)

    def read_positions(self, op: Op) -> range:
        """Return which operands an op reads when it runs; the others are for derivatives."""
        if self.uses_kernel(op):
            return range(len(op.outputs), len(op.inputs))
        return range(len(op.outputs if op.passes_through else op.inputs))

    def uses_kernel(self, op: Op) -> bool:
        """Return True if a kernel replaces the named ops that computed an op's operands."""
        chosen = self.hardware.kernels and op in self.plan.placements.local_ops
        return op.offers_kernel and chosen and self._is_cut(op)

    def _is_cut(self, op: Op) -> bool:
        """Return whether attention has whole tiles of a dtype that kernels of the hardware take."""
        tile = self.hardware.kernel_tile
        if op.queries is None or tile == 1:
            return True
        q, k, _ = op.queries
        pairs = 1
        for x, other in ((q, k), (k, q)):
            own = Shape([dim for dim in x.shape if dim not in other.shape])
            count = self.plan.shardings[x].local_elements(own, self.plan.mesh)
            if count % tile:
                return False
            pairs *= count
        return q.dtype == "bfloat16" and pairs <= MOST_PAIRS

    def elements_of(self, tensor: Tensor, place: Sharding | None = None) -> int:
        """Count the elements of one device's shard, as planned or of another sharding."""
        key = tensor, self.plan.shardings[tensor] if place is None else place
        if key not in self._sizes:
            self._sizes[key] = key[1].local_elements(tensor.shape, self.plan.mesh)
        return self._sizes[key]

    def bytes_of(self, tensor: Tensor, place: Sharding | None = None) -> int:
        """Count the bytes of one device's shard, as planned or of another sharding."""
        return self.elements_of(tensor, place) * self._item_bytes(tensor)

    def _item_bytes(self, tensor: Tensor) -> int:
        """Return the bytes of an element, which `widens` may make four."""
        narrow = self.hardware.widens and tensor.floating and tensor.itemsize < 4
        computed = narrow and tensor in self._producers and not self._producers[tensor].control
        return 4 if computed else tensor.itemsize

    def resolve(self, tensor: Tensor) -> Tensor:
        """Return the tensor whose memory another one shares."""
        while tensor in self.aliases:
            tensor = self.aliases[tensor]
        return tensor

    def fuses(self, op: Op) -> bool:
        """Return True if an op fuses into those that read its results."""
        if op.control or self.uses_kernel(op) or self._is_barrier(op):
            return False
        return op.elementwise or op.rearranges or op.repeatable or spreads(op)

    def _is_barrier(self, op: Op) -> bool:
        """Return True for a fusion barrier, which also keeps equal ops apart."""
        return op.inherits_sharding and op.elementwise and not op.repeatable

    def _flops_of(self, op: Op) -> float:
        """Count the FLOPs of an op on one device."""
        total = 0 if op.control else op.flops()
        return total / self.plan.mesh.size(find_axes(self.plan, op)) if total else 0.0

    def _find_live(self, ops: Sequence[Op]) -> list[Op]:
        """Return the ops whose results are used, without those that kernels replace."""
        needed, live = {*self.outputs}, []
        for op in reversed(ops):
            if op.given or all(tensor in self.plan.placements.constants for tensor in op.outputs):
                continue
            if not op.outputs or any(tensor in needed for tensor in op.outputs):
                needed.update(op.inputs[i] for i in self.read_positions(op))
                live.append(op)
        return live[::-1]

    def _find_replaced(self, ops: Sequence[Op]) -> dict[Op, list[Op]]:
        """Find the named ops that kernels replace, by kernel."""
        live, found = {*self.ops}, {op: [] for op in self.ops if self.uses_kernel(op)}
        producers = {tensor: op for op in ops for tensor in op.outputs} if found else {}
        seen: set[Op] = set()
        for kernel, replaced in found.items():
            pending = list(kernel.inputs[: len(kernel.outputs)])
            while pending:
                op = producers.get(pending.pop())
                if op is None or op in live or op in seen or op.given:
                    continue
                seen.add(op)
                replaced.append(op)
                pending += op.inputs
        return found

    def _find_aliases(self) -> None:
        """Find results that share memory with an operand, or with an equal op's result."""
        made: dict[Hashable, Op] = {}
        contents = Contents(self.plan, self.resolve)
        barriers = [op for op in self.ops if self._is_barrier(op)]
        on_host = self.plan.program.on_host
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
        ended = self._find_ended() if self.hardware.fuses_relu else []
        for op in (*barriers, *ended):  # equal ops were told apart by barriers until here
            if self._stays(op) and on_host.isdisjoint((*op.inputs, op.output)):
                self.aliases[op.output] = op.inputs[0]
                self._renaming.add(op)

    def _find_ended(self) -> list[Op]:
        """Find relu ops that alone read a product: its epilogue."""
        readers = Counter(x for op in self.ops for x in {*op.inputs})
        return [
            op
            for op in self.ops
            if op.kind == "relu"
            and readers[op.inputs[0]] == 1
            and op.inputs[0] in self._producers
            and is_product(self._producers[op.inputs[0]])
            and not moves_data(self.plan.placements.moves.get(op.inputs[0], ()))
        ]

    def _passes_on(self, op: Op) -> bool:
        """Return True if an op's results are its operands, and nothing is moved."""
        alone = len(self.read_positions(op)) == 1 == len(op.outputs)
        return (op.passes_through or (alone and keeps_numbers(op))) and self._stays(op)

    def _stays(self, op: Op) -> bool:
        """Return True if an op's results are as large as its operands, and nothing is moved."""
        return not self._sums_move(op) and not any(
            op.inputs[i] in self.plan.placements.constants
            or moves_data(self.plan.placements.operand_moves.get((op, i), ()))
            or moves_data(self.plan.placements.moves.get(tensor, ()))
            or self.bytes_of(op.inputs[i]) != self.bytes_of(tensor)
            for i, tensor in zip(self.read_positions(op), op.outputs, strict=False)
        )

    def _sums_move(self, op: Op) -> bool:
        """Return True if partial sums of a cotangent are moved before they are added up."""
        return any(moves_data(steps) for _, steps in self.plan.placements.sum_groups.get(op, ()))

    def _makes_operand(self, op: Op, tensor: Tensor) -> bool:
        """Return True if an op computes an operand itself, from that one's inputs."""
        if op.control or op.offers_kernel:
            return False
        if self.fuses(op):
            return True
        if is_product(op):
            return self.hardware.fuses_products and self.readers[tensor] == 1
        if op.manual or op.elementwise:
            return False
        return op.output.shape.elements < tensor.shape.elements  # a reduction

    def _find_demanded(self) -> set[Tensor]:
        """Find the tensors that are read from memory, or that collectives move."""
        plan = self.plan
        demanded = {self.resolve(tensor) for tensor in self.outputs}
        for op in self.ops:
            moves = plan.placements.moves
            demanded.update(x for x in op.outputs if moves_data(moves.get(x, ())))
            if self._is_barrier(op):
                demanded.update(self.resolve(x) for x in op.inputs)
            if op in self._renaming:
                continue
            moved = self._sums_move(op)
            for i in self.read_positions(op):
                tensor = self.resolve(op.inputs[i])
                steps = plan.placements.operand_moves.get((op, i), ())
                if moved or moves_data(steps) or not self._makes_operand(op, tensor):
                    demanded.add(tensor)
        return demanded

    def _make_run(self, op: Op) -> Run | None:
        """Return the fusion that an op ends; None if it fuses into its readers."""
        if op in self._renaming:
            return None
        run = self._read_operands(op)
        run.flops = self._flops_of(op)
        for one, times in every_op_with_times(self._replaced.get(op, ())):
            if is_product(one):
                run.flops += times * self._flops_of(one)
            elif not one.bodies:
                run.fused[one] = times * self._flops_of(one)
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
                if moves_data(self.plan.placements.moves.get(tensor, ())):
                    natural = self.plan.placements.natural[tensor]
                    run.beside[tensor, natural] = self.bytes_of(tensor, natural)
        return run

    def _is_written(self, run: Run, tensor: Tensor) -> bool:
        """Return True if a result that could fuse into its readers is written to memory."""
        if tensor in self._demanded:
            return True
        readers, size = self.readers[tensor], self.bytes_of(tensor)
        if is_product(run.op) and self._widens_later(tensor):
            return True
        if readers < 2:
            return False
        if is_product(run.op) or any(is_product(op) for op in run.fused):
            return True  # it is made once
        repeats = self.hardware.repeats
        if repeats == "none" or (repeats == "cheap" and run.op.kind in COSTLY):
            return True
        read = sum(run.reads.values())
        return readers * read > read + (1 + readers) * size

    def _widens_later(self, tensor: Tensor) -> bool:
        """Return True if a product is written before its epilogue, which is larger."""
        # Follow the epilogue to the first result that several ops read.
        made = tensor
        while self.readers[made] == 1 and made not in self._demanded:
            reader = self._last_reader[made]
            if not self.fuses(reader):
                return False
            made = reader.output
        return made not in self._demanded and self.bytes_of(made) > self.bytes_of(tensor)

    def _read_operands(self, op: Op) -> Run:
        """Return a run with what an op reads, and what fuses into it."""
        plan, run = self.plan, Run(op)
        most = None  # elements that a slice or a gather reads of an operand
        if op.rearranges or (op.manual and len(op.inputs) > 1 and not op.flops()):
            most = sum(self.elements_of(tensor) for tensor in op.outputs)
        for i in self.read_positions(op):
            tensor = op.inputs[i]
            if tensor in plan.placements.constants:
                continue
            steps = plan.placements.operand_moves.get((op, i), [])
            if moves_data(steps):
                place = steps[-1].result
                moved = plan.placements.value_of(tensor), place
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
        for (_, place), (i, _) in plan.placements.captured_moves.get(op, {}).items():
            x = op.inputs[i]
            run.reads[plan.placements.value_of(x), place] = self.bytes_of(x, place)
        return run
