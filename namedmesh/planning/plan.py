"""Plan: for one program, mesh and layout, where every tensor lies and every collective it takes."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding, Transfer
from namedmesh.display.html import html_block, html_text
from namedmesh.display.text import name_some
from namedmesh.errors.errors import NamedMeshError, check_word
from namedmesh.ir.format import format_value
from namedmesh.ir.op import Op, every_op
from namedmesh.ir.operands import as_tuple
from namedmesh.ir.program import Program
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.table import (
    format_communication,
    format_plan_html,
    format_tensors,
)
from namedmesh.records.collective import ALL_PHASES, KINDS, PHASES, Collective
from namedmesh.records.plan import PlanRecord
from namedmesh.records.tensor import TensorRecord

# Functions by name, entered by the rooms that read plans: `cost` says what one takes on a target,
# `report` writes its page.
READERS: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True, eq=False)
class Plan:
    """Every tensor's sharding and every collective, in names; knows nothing of TensorFlow.

    Attributes:
        program: The program that is planned.
        mesh: The devices it is planned for.
        layout: Which dimensions lie on which mesh axes.
        params: The same for parameters and their slots at rest.
        names: What each op is called, in compiled code too.
        shardings: Where each tensor lies.
        natural: Where each tensor lies as its op makes it, before any move.
        operands: The moves of each op's operands, by op and position.
        moves: The moves of each tensor after the op that makes it.
        results: The moves of a loop body's or branch's results, by body and position.
        sums: How the parts of a cotangent are added up: those that lie in one place first, then
            moved together.
        summed_by: The op that a sum belongs to of which a tensor is a part.
        local: The ops that run on each device's own shard, and leave parts of sums.
        free: Tensors made of constants alone, which every reader makes where it needs them.
        captured: The moves of what a loop captures that are made once, before it, by the tensor
            inside and the place its body reads it in; each with the position of the operand.
        made: Where an op, or a body's or the program's result, wants such a tensor.
        decisions: Which of several dimensions that want one axis holds it, where nothing in the
            program says so, and the tensors it was decided for.
        warnings: What the layout leaves unused, in sentences.
        collectives: Every communication of a step, in order.
        producers: The op that makes each tensor.
        initializers: The plan of each variable's first value.

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
    names: dict[Op, str] = field(default_factory=dict)
    shardings: dict[Tensor, Sharding] = field(default_factory=dict)
    natural: dict[Tensor, Sharding] = field(default_factory=dict)  # as made, before any move
    operands: dict[tuple[Op, int], list[Transfer]] = field(default_factory=dict)
    moves: dict[Tensor, list[Transfer]] = field(default_factory=dict)  # after the op
    results: dict[tuple[object, int], list[Transfer]] = field(default_factory=dict)  # of a body
    sums: dict[Op, list[tuple[tuple[int, ...], list[Transfer]]]] = field(default_factory=dict)
    summed_by: dict[Tensor, Op] = field(default_factory=dict)
    local: set[Op] = field(default_factory=set)
    free: dict[Tensor, Tensor] = field(default_factory=dict)  # inside a loop: the one outside
    captured: dict[Op, dict[tuple[Tensor, Sharding], tuple[int, list[Transfer]]]] = field(
        default_factory=dict
    )
    made: dict[tuple[object, int], Sharding] = field(default_factory=dict)
    decisions: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    warnings: list[str] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    producers: dict[Tensor, Op] = field(default_factory=dict)
    initializers: dict[str, Plan] = field(default_factory=dict)

    def bytes_per_device(self, tensor: Tensor) -> int:
        """Return what one device's shard of a tensor takes, padding included.

        Args:
            tensor: A tensor of the program.

        Returns:
            The bytes.
        """
        if not isinstance(tensor, Tensor) or tensor not in self.shardings:
            raise NamedMeshError(
                f"{format_value(tensor)} is not a tensor of {self.program.name} that is planned",
                fix="give e.g. plan.program.inputs['x']",
            )
        return self.shardings[tensor].local_elements(tensor.shape, self.mesh) * tensor.itemsize

    def value_of(self, tensor: Tensor) -> object:
        """Return what equal values have in common, to be moved once.

        Casts of one tensor to one dtype are equal, and so is what one reader sends back.

        Args:
            tensor: A tensor of the program.

        Returns:
            The same key for tensors of equal value.
        """
        producer = self.producers.get(tensor) if isinstance(tensor, Tensor) else None
        while producer is not None and producer.adds_operands and len(producer.inputs) == 1:
            (tensor,) = producer.inputs
            producer = self.producers.get(tensor)
        if producer is None or not producer.same_value:
            return tensor
        return (producer.inputs[0], tensor.dtype)

    def count_made(
        self, tensor: Tensor, steps: Sequence[Transfer], moved: Container[tuple[object, Sharding]]
    ) -> int:
        """Count the first steps of a tensor's way that others' ways have made already.

        Args:
            tensor: The tensor that is moved.
            steps: Its way.
            moved: The values, and where they were moved to.

        Returns:
            How many of the steps need not be made again.
        """
        value = self.value_of(tensor)
        made = (i for i, step in enumerate(steps, 1) if (value, step.result) in moved)
        return max(made, default=0)

    @property
    def activation_bytes(self) -> int:
        """What one device keeps of the loops of the forward pass for the backward pass."""
        backward = [op for op in self.program.ops if op.phase == "backward"]
        read = {tensor for op in backward for tensor in op.inputs}
        forward = [op for op in self.program.ops if op.phase == "forward"]
        kept = (tensor for op in forward for tensor in op.histories if tensor in read)
        return sum(self.bytes_per_device(tensor) for tensor in kept)

    @property
    def initial_collectives(self) -> list[Collective]:
        """The communication that making the variables takes."""
        return [one for plan in self.initializers.values() for one in plan.collectives]

    def of_phase(self, phase: str) -> list[Collective]:
        """Return the collectives of one phase.

        Args:
            phase: forward, backward or update, which make up a step; or init.

        Returns:
            The collectives, in order.
        """
        check_word("phase", phase, ALL_PHASES)
        if phase == "init":
            return self.initial_collectives
        return [collective for collective in self.collectives if collective.phase == phase]

    def count(self, kind: str, phase: str | None = None) -> int:
        """Count how many collectives of a kind one step runs.

        Args:
            kind: Such as `AllReduce`.
            phase: forward, backward or update alone; all of them by default.

        Returns:
            The count; a collective in a loop counts once for each iteration.
        """
        check_word("kind of collective", kind, KINDS)
        collectives = self.collectives if phase is None else self.of_phase(phase)
        return sum(one.times for one in collectives if one.kind == kind)

    def total_bytes(self, phases: Iterable[str] = PHASES) -> int:
        """Return the bytes per device that one step communicates.

        Args:
            phases: The phases to add up; by default those of a step.

        Returns:
            The bytes.
        """
        return sum(c.total_bytes for phase in as_tuple(phases) for c in self.of_phase(phase))

    def total_wire_bytes(self, phases: Iterable[str] = PHASES) -> int:
        """Return the bytes that one device sends in one step, by the usual algorithms.

        Args:
            phases: The phases to add up; by default those of a step.

        Returns:
            The bytes.
        """
        return sum(c.total_wire_bytes for phase in phases for c in self.of_phase(phase))

    def total_host_bytes(self, phases: Iterable[str] = PHASES) -> int:
        """Return the bytes that one host's devices send to other hosts in one step.

        Args:
            phases: The phases to add up; by default those of a step.

        Returns:
            The bytes; 0 for a mesh of one host.
        """
        return sum(c.total_host_bytes for phase in as_tuple(phases) for c in self.of_phase(phase))

    def total_slice_bytes(self, phases: Iterable[str] = PHASES) -> int:
        """Return the bytes that one slice's devices send to other slices in one step.

        Args:
            phases: The phases to add up; by default those of a step.

        Returns:
            The bytes; 0 for a mesh of one slice.
        """
        return sum(c.total_slice_bytes for phase in as_tuple(phases) for c in self.of_phase(phase))

    @property
    def communication(self) -> str:
        """The collectives alone, as a table: those of a step, then those of initialisation."""
        phases = {phase: self.of_phase(phase) for phase in ALL_PHASES}
        return format_communication(phases, self.mesh)

    def tensor_rows(self) -> Iterator[TensorRecord]:
        """Yield a row for each tensor but scalars and a derivative's inner values."""
        for op in every_op(self.program.ops):
            for tensor in op.outputs:
                inner = op.derived and tensor.primal is None
                if tensor not in self.shardings or not len(tensor.shape) or inner:
                    continue
                sharding = self.shardings[tensor]
                yield TensorRecord(
                    tensor.label,
                    f"{tensor.dtype}{sharding.text(tensor.shape)}",
                    self.bytes_per_device(tensor),
                    sharding.waste(tensor.shape, self.mesh),
                    op.source,
                    op.phase,
                    op.scope.rstrip("/"),
                )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as values that JSON has: where tensors lie, collectives and totals.

        Example:
            >>> import namedmesh as nm
            >>> B = nm.Dimension("batch", 8)
            >>> program = nm.trace(lambda x: nm.sum(x), x=nm.spec([B]))
            >>> plan = nm.plan(program, nm.Mesh(data=4), "batch:data")
            >>> [(one["kind"], one["bytes"]) for one in plan.to_json()["collectives"]]
            [('AllReduce', 4)]
        """
        return PlanRecord.of_plan(self).to_json()

    def save(self, path: str | os.PathLike[str], target: Any = None, *, lines: bool = True) -> None:
        """Write the plan as JSON, the same text for the same plan: for `nm.diff` and golden files.

        Args:
            path: The file to write.
            target: What `nm.cost` takes; the file then has time and memory of a step there too.
            lines: Whether sources have line numbers. Without, an edit changes the file only where
                it changes the plan.
        """
        cost = None if target is None else READERS["cost"](self, target)
        PlanRecord.of_plan(self, cost).save(path, lines=lines)

    def report(self, path: str | os.PathLike, **options: Any) -> None:
        """Write the plan as one HTML page, as `nm.report` does.

        Args:
            path: The file to write.
            **options: What `nm.report` takes besides: target, audit, beside.
        """
        READERS["report"](self, path, **options)

    def _describe(self) -> tuple[str, list[str]]:
        """What it is a plan of, and what there is to say about it."""
        params = f", params {self.params.text!r}" if self.params != self.layout else ""
        header = f"plan of {self.program.name} on {self.mesh}, layout {self.layout.text!r}{params}"
        decided = [
            f"{text} ({name_some(tensors)})" for text, tensors in sorted(self.decisions.items())
        ]
        warned = [f"warning: {sentence}" for sentence in self.warnings]
        return header, [*self.program.notes, *decided, *warned]

    def _repr_html_(self) -> str:
        header, said = self._describe()
        phases = {phase: self.of_phase(phase) for phase in ALL_PHASES}
        tables = format_plan_html(self.tensor_rows(), phases, self.mesh)
        return html_block(header, html_text(*said), *tables)

    def __str__(self) -> str:
        header, said = self._describe()
        parts = [header, *(["\n".join(f"  {sentence}" for sentence in said)] if said else [])]
        return "\n\n".join([*parts, format_tensors(self.tensor_rows()), self.communication])
