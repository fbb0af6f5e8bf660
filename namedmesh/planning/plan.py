"""Plan: for one program, mesh and layout, the sharding of every tensor and every collective."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding
from namedmesh.display.text import human, name_some
from namedmesh.ir.op import every_op
from namedmesh.ir.program import Program, every_run
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.communication import Communication
from namedmesh.planning.state import Placements
from namedmesh.planning.why import explain
from namedmesh.records.collective import Collective
from namedmesh.records.plan import PlanRecord, tell_recomputed
from namedmesh.records.tensor import TensorRecord


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Communication):
    """Every tensor's sharding and every collective, in names; knows nothing of TensorFlow.

    Attributes:
        program: The program that is planned, for the devices of `mesh`.
        layout: The mesh axes that dimensions are sharded over.
        params: The axes that parameters and their slots have at rest besides.
        shardings: The sharding of each tensor, as its readers find it.
        collectives: Every communication of a step, in order.
        decisions: Which of several dimensions gets an axis, where the program does not state it.
        warnings: What the layout leaves unused, in sentences.
        initializers: The plan of each variable's first value.
        placements: The compiler's notes, for lowering and costs; they change without notice.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=8 model=4")
        >>> program = nm.trace(lambda x: nm.sum(x, over=B), x=nm.spec([B, M]))
        >>> plan = nm.plan(program, nm.Mesh(data=4), "batch:data")
        >>> plan.count("AllReduce"), plan.total_bytes()
        (1, 16)
        >>> plan.shardings[program.inputs["x"]].mapping
        {'batch': ('data',)}
    """

    program: Program
    mesh: Mesh
    layout: Layout
    params: Layout
    shardings: Mapping[Tensor, Sharding]
    collectives: tuple[Collective, ...]
    decisions: Mapping[str, tuple[str, ...]]
    placements: Placements
    warnings: tuple[str, ...] = ()
    initializers: Mapping[str, Plan] = field(default_factory=lambda: MappingProxyType({}))

    def bytes_per_device(self, tensor: Tensor) -> int:
        """Return the bytes of one device's shard of a tensor, padding included.

        Args:
            tensor: A tensor of the program.
        """
        return self.shardings[tensor].local_elements(tensor.shape, self.mesh) * tensor.itemsize

    def why(self, what: str | Tensor) -> str:
        """Return why there is a collective, or why a tensor is sharded as it is.

        Args:
            what: A tensor or its name, a kind of collective, or both: `"AllReduce of loss"`.

        Example:
            >>> import namedmesh as nm
            >>> B, M = nm.dims("batch=8 model=4")
            >>> program = nm.trace(lambda x: nm.sum(x, over=B), x=nm.spec([B, M]))
            >>> plan = nm.plan(program, nm.Mesh(data=4), "batch:data")
            >>> print(plan.why("x"))
            x: float32[batch=8/data, model=4]
              batch is sharded over data
              model is whole: the layout maps it to no axis
        """
        return explain(self, what)

    @property
    def activation_bytes(self) -> int:
        """The bytes that one device keeps of the forward pass's loops for the backward pass."""
        return sum(self.bytes_per_device(tensor) for tensor in self.program.histories)

    @property
    def recomputed(self) -> dict[str, float]:
        """The share of a step's FLOPs that the backward pass computes again, by scope."""
        return {scope: round(share, 6) for scope, share in self.program.recomputed.items()}

    @property
    def offloaded(self) -> int:
        """The bytes that one device sends to the host's memory, and takes back (`offload=True`)."""
        moves = ((op, times) for op, times in every_run(self.program.ops) if op.offloads)
        return sum(times * self.bytes_per_device(op.output) for op, times in moves)

    @property
    def notes(self) -> list[str]:
        """Sentences about the program under every layout, such as what is computed again."""
        offloaded = f"{human(self.offloaded)} per device wait in the host's memory"
        notes = [*self.program.notes, *tell_recomputed(self.recomputed)]
        return [*notes, offloaded] if self.offloaded else notes

    @property
    def initial_collectives(self) -> list[Collective]:
        """The communication that making the variables takes."""
        return [one for plan in self.initializers.values() for one in plan.collectives]

    @functools.cached_property
    def tensor_rows(self) -> tuple[TensorRecord, ...]:
        """A row for each tensor but scalars and a derivative's inner values."""
        return tuple(self._list_tensors())

    def _list_tensors(self) -> Iterator[TensorRecord]:
        for op in every_op(self.program.ops):
            for tensor in op.outputs:
                inner = op.derived and tensor.primal is None
                sharding = self.shardings.get(tensor)
                if sharding is None or not len(tensor.shape) or inner:
                    continue
                place = f"{tensor.dtype}{sharding.text(tensor.shape)}"
                size, waste = self.bytes_per_device(tensor), sharding.waste(tensor.shape, self.mesh)
                scope = op.scope.rstrip("/")
                yield TensorRecord(tensor.label, place, size, waste, op.source, op.phase, scope)

    @property
    def record(self) -> PlanRecord:
        """The plan in the form that files have and `nm.diff` compares."""
        return PlanRecord.of_plan(self)

    def save(self, path: str | os.PathLike[str], target: Any = None, *, lines: bool = True) -> None:
        """Write the plan as JSON, the same text for the same plan: for `nm.diff` and golden files.

        Args:
            path: The file to write.
            target: What `nm.cost` takes; the file then has time and memory of a step there too.
            lines: Whether sources have line numbers, which edits elsewhere change.
        """
        import namedmesh as nm  # costs are computed by a room that imports this one

        cost = None if target is None else nm.cost(self, target).summary()
        PlanRecord.of_plan(self, cost).save(path, lines=lines)

    def _describe(self) -> tuple[str, list[str]]:
        """Return the title of the plan, then notes, decisions and warnings."""
        params = f", params {self.params.text!r}" if self.params != self.layout else ""
        header = f"plan of {self.program.name} on {self.mesh}, layout {self.layout.text!r}{params}"
        decisions = sorted(self.decisions.items())
        decided = [f"{text} ({name_some(names)})" if names else text for text, names in decisions]
        warned = [f"warning: {sentence}" for sentence in self.warnings]
        return header, [*self.notes, *decided, *warned]
