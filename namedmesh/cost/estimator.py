"""Estimator: walks a plan's bodies, prices what runs and finds what memory holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from namedmesh.cost.fusion import Buffer, FusedBody, Run, is_product, moves_data
from namedmesh.cost.live_ranges import Alive, Occupancy, PeakMemory, measure_body
from namedmesh.errors.source import Source
from namedmesh.hardware.hardware import Hardware
from namedmesh.ir.op import Body, Op
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.plan import Plan

Homes = Mapping[Tensor, Tensor | None]  # the tensor whose memory each result reuses


@dataclass(frozen=True, eq=False)
class OpCost:
    """The cost of one op on one device, with the ops fused into it."""

    op: Op = field(repr=False)  # the op
    name: str  # its name in the plan
    phase: str  # forward, backward or update
    scope: str  # the scopes it was made in
    source: Source  # the user's line
    times: int  # how often it runs in one step
    flops: float  # floating point operations, each time
    bytes: float  # bytes of memory that it reads and writes, each time
    seconds: float  # how long it takes, each time
    bound: str  # "compute" or "memory", whichever takes longer

    @property
    def total_seconds(self) -> float:
        """The seconds it takes in one step."""
        return self.seconds * self.times


class Estimator:
    """Walks a plan's bodies, and collects the costs of ops."""

    def __init__(self, plan: Plan, hardware: Hardware, precision: str):
        self.plan, self.hardware, self.precision = plan, hardware, precision
        self.ops: list[OpCost] = []

    def walk(
        self, ops: Sequence[Op], outputs: Sequence[Tensor], times: int, homes: Homes
    ) -> Occupancy:
        """Enter the costs of a body's ops, and return what they hold in memory."""
        body = FusedBody(self.plan, ops, outputs, self.hardware)
        inner: dict[int, Occupancy] = {}
        shared: dict[Tensor, Tensor] = {}
        for i, run in enumerate(body.runs):
            if run.op.control:
                inner[i] = self._walk_bodies(run.op, times)
                run.beside |= self._find_rounded(body, run.op)
                held = self.plan.placements.held_between(run.op)
                run.beside |= {one: body.bytes_of(*one) for one in held}
                shared |= _find_shared(run.op)
            else:
                self.ops.append(self._price(run, times))
        resolved = {body.resolve(tensor): home for tensor, home in homes.items()}
        return measure_body(body, resolved, inner, shared)

    def _walk_bodies(self, op: Op, times: int) -> Occupancy:
        """Enter the costs of loops and branches; of branches the slowest."""
        repeats = times * (1 if op.loop is None else op.loop.length)
        before, found = self.ops, []
        for body in op.bodies:
            self.ops = []
            occupancy = self.walk(body.ops, body.outputs, repeats, _find_homes(op, body))
            found.append((self.ops, occupancy))
        if op.branches:
            found.sort(key=lambda one: sum(cost.total_seconds for cost in one[0]))
            found = found[-1:]
        self.ops = before + [cost for costs, _ in found for cost in costs]
        return max((occupancy for _, occupancy in found), key=lambda one: one.peak_bytes)

    def _find_rounded(self, outer: FusedBody, op: Op) -> dict[Buffer, int]:
        """Find bytes of operands that a loop's products read rounded to bfloat16."""
        # Where products alone read an operand, the compiler rounds it for all iterations at once.
        rounds = self.hardware.rounds_products and self.precision == "default"
        if not rounds or op.loop is None or op.loop.over is None:
            return {}
        body = op.loop.body
        written = {read for _, read in getattr(op, "overwrites", ())}
        readers: dict[Tensor, list[tuple[Op, int]]] = defaultdict(list)
        for one in body.ops:
            for i, x in enumerate(one.inputs):
                readers[x].append((one, i))
        rounded: dict[Buffer, int] = {}
        for inner, x in zip(body.inputs, op.inputs, strict=False):
            if x.shape == inner.shape or x.dtype != "float32" or inner in written:
                continue
            if _is_read_by_products(self.plan, readers, inner):
                rounded[x, self.plan.shardings[x]] = outer.bytes_of(x) // 2
        return rounded

    def _price(self, run: Run, times: int) -> OpCost:
        """Return the cost of a run: its arithmetic or its memory traffic."""
        op, hardware = run.op, self.hardware
        rate = vector_rate = hardware.vector_flops
        if is_product(op) or op.offers_kernel:
            rate = hardware.product_flops(op.inputs[0].dtype, self.precision)
            share = hardware.kernel_product_share if op.offers_kernel else 0.0
            rate *= share or hardware.product_share
        if op.offers_kernel:
            vector_rate *= hardware.kernel_share
        compute = run.flops / rate + run.fused_flops / vector_rate
        if op.queries is not None:
            q, _, passes = op.queries
            local = self.plan.shardings[q].local_elements(q.shape, self.plan.mesh)
            compute += passes * local / q.shape[-1].size * hardware.kernel_row
        memory = run.bytes / (hardware.memory_bandwidth * hardware.memory_share)
        seconds = hardware.start + max(compute, memory)
        bound = "compute" if compute > memory else "memory"
        place = (op, self.plan.placements.names[op], op.phase, op.scope.rstrip("/"), op.source)
        return OpCost(*place, times, run.flops + run.fused_flops, run.bytes, seconds, bound)

    def describe_memory(self, occupancy: Occupancy) -> PeakMemory:
        """Describe the peak by the plan's names, with inputs and state."""
        plan, program, body = self.plan, self.plan.program, occupancy.body
        given = [*program.inputs.values(), *(one.tensor for one in program.variables.values())]
        kept = {tensor: body.bytes_of(tensor) for tensor in given}
        below = sum(kept.values())
        held = (*kept.items(), *occupancy.find_alive())
        alive = [self._describe(buffer, size) for buffer, size in held if size]
        run = occupancy.find_peak()
        names = plan.placements.names
        timeline = tuple((names[run.op], held) for run, held in occupancy.walk(below))
        alive.sort(key=lambda one: -one.bytes)
        at = names[run.op] if run else ""
        known = self.hardware.memory_known
        return PeakMemory(below + occupancy.peak_bytes, at, below, tuple(alive), timeline, known)

    def _describe(self, buffer: Buffer, size: int) -> Alive:
        """Describe a buffer; a resharded value has the name of its tensor."""
        if isinstance(buffer, Tensor):
            tensor, place = buffer, self.plan.shardings[buffer]
        else:
            value, place = buffer
            tensor = value if isinstance(value, Tensor) else value[0]  # type: ignore[index]
        whole = place.local_elements(tensor.shape, self.plan.mesh) * tensor.itemsize
        dtype = "bfloat16" if 2 * size == whole else tensor.dtype
        return Alive(tensor.label, size, tensor.source, f"{dtype}{place.text(tensor.shape)}")


def _is_read_by_products(
    plan: Plan, readers: Mapping[Tensor, Sequence[tuple[Op, int]]], tensor: Tensor
) -> bool:
    """Return True if products alone read a tensor, or its cast, without moving it."""
    found = readers.get(tensor, ())
    return bool(found) and all(
        not moves_data(plan.placements.operand_moves.get((op, i), ()))
        and (is_product(op) or (op.same_value and _is_read_by_products(plan, readers, op.output)))
        for op, i in found
    )


def _find_homes(op: Op, body: Body) -> dict[Tensor, Tensor | None]:
    """Return the memory that a body's results reuse: carries that of the iteration before."""
    if op.loop is None or body is not op.loop.body:
        return {}
    carries = op.loop.carries
    homes: dict[Tensor, Tensor | None] = dict.fromkeys(body.outputs[carries:])
    return homes | dict(zip(body.outputs[:carries], body.inputs[:carries], strict=True))


def _find_shared(op: Op) -> dict[Tensor, Tensor]:
    """Return the results of a loop that reuse the memory of the carries' initial values."""
    carries = 0 if op.loop is None else op.loop.carries
    return dict(zip(op.outputs[:carries], op.inputs[:carries], strict=True))
