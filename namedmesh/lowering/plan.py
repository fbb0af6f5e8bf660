"""Plan: for one program, mesh and layout, where every tensor lies and every collective it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from namedmesh.dims.collective import Collective as Collective
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding, Step
from namedmesh.ir.op import Op
from namedmesh.ir.program import Program
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.elementwise import Cast
from namedmesh.ops.scan import Scan

PHASES = ("forward", "backward", "update")


def value_of(tensor: Tensor) -> object:
    """What equal values have in common, to be moved once: a tensor is itself, casts of one tensor to one dtype are equal."""
    producer = tensor.producer
    return (producer.inputs[0], tensor.dtype) if isinstance(producer, Cast) else tensor


@dataclass(eq=False)
class Plan:
    """Every tensor's sharding and every collective, in names; knows nothing of TensorFlow."""

    program: Program
    mesh: Mesh
    layout: Layout
    params: Layout
    names: dict[Op, str] = field(default_factory=dict)
    shardings: dict[Tensor, Sharding] = field(default_factory=dict)
    natural: dict[Tensor, Sharding] = field(
        default_factory=dict
    )  # as the op makes it, before any move
    operands: dict[tuple[Op, int], list[Step]] = field(default_factory=dict)
    moves: dict[Tensor, list[Step]] = field(default_factory=dict)  # after the op
    results: dict[tuple[object, int], list[Step]] = field(
        default_factory=dict
    )  # of a body, or of the program
    partial: dict[Op, tuple[str, ...]] = field(
        default_factory=dict
    )  # axes a manual op leaves partial sums over
    collectives: list[Collective] = field(default_factory=list)

    def bytes_per_device(self, tensor: Tensor) -> int:
        """What one device's piece of a tensor takes, padding included."""
        size = tensor.itemsize
        for local in self.shardings[tensor].local_sizes(tensor.shape, self.mesh):
            size *= local
        return size

    @property
    def activation_bytes(self) -> int:
        """What one device keeps of the loops of the forward pass for the backward pass."""
        read = {tensor for op in self.program.ops if op.phase == "backward" for tensor in op.inputs}
        loops = [op for op in self.program.ops if isinstance(op, Scan) and op.phase == "forward"]
        return sum(
            self.bytes_per_device(tensor)
            for op in loops
            for tensor in op.outputs[op.carries :]
            if tensor in read
        )

    def of_phase(self, phase: str) -> list[Collective]:
        """The collectives of forward, backward or update."""
        return [collective for collective in self.collectives if collective.phase == phase]

    def count(self, kind: str, phase: str | None = None) -> int:
        """How many collectives of a kind one step runs."""
        return sum(c.times for c in self.collectives if c.kind == kind and phase in (None, c.phase))

    def total_bytes(self, phases: Iterable[str] = PHASES) -> int:
        """Bytes per device that one step communicates."""
        return sum(c.total_bytes for c in self.collectives if c.phase in phases)

    @property
    def communication(self) -> str:
        """The collectives alone, as a table."""
        from namedmesh.lowering.table import communication_table

        return communication_table(self)

    def __str__(self) -> str:
        from namedmesh.lowering.table import plan_table

        return plan_table(self)
