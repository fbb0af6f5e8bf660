"""Communication: the collectives and tensors of a plan, or of a compiled step, as tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from namedmesh.dims.mesh import Mesh
from namedmesh.display.html import html_block, html_text
from namedmesh.errors.errors import check_word
from namedmesh.errors.mistakes import Explained
from namedmesh.ir.operands import as_tuple
from namedmesh.planning.table import (
    format_communication,
    format_plan_html,
    format_tensors,
    format_totals,
)
from namedmesh.records.collective import ALL_PHASES, KINDS, PHASES, Collective


class Communication(Explained):
    """The common part of plans and compiled steps: collectives on a mesh, counted and printed."""

    mesh: Mesh
    collectives: tuple[Collective, ...]

    tensor_rows: Any  # of every tensor, a TensorRecord
    record: Any  # the PlanRecord that files have and `nm.diff` compares
    _describe: Any  # returns the title, then notes and warnings

    @property
    def initial_collectives(self) -> list[Collective]:
        """The communication that making the variables takes."""
        return []

    def of_phase(self, phase: str) -> list[Collective]:
        """Return the collectives of a phase, in order.

        Args:
            phase: forward, backward or update, which make up a step; or init.
        """
        check_word("phase", phase, ALL_PHASES)
        if phase == "init":
            return self.initial_collectives
        return [one for one in self.collectives if one.phase == phase]

    def count(self, kind: str, phase: str | None = None) -> int:
        """Return how many collectives of a kind one step runs.

        Args:
            kind: Such as `AllReduce`; in a loop it counts once for each iteration.
            phase: forward, backward or update alone; all of them by default.
        """
        check_word("kind of collective", kind, KINDS)
        collectives = self.collectives if phase is None else self.of_phase(phase)
        return sum(one.times for one in collectives if one.kind == kind)

    def total_bytes(self, phases: str | Iterable[str] = PHASES) -> int:
        """Return the bytes per device that phases communicate.

        Args:
            phases: A phase, or the phases to add up; by default those of a step.
        """
        return self._total("total_bytes", phases)

    def total_wire_bytes(self, phases: str | Iterable[str] = PHASES) -> int:
        """Return the bytes that one device sends in phases, by the usual algorithms.

        Args:
            phases: A phase, or the phases to add up; by default those of a step.
        """
        return self._total("total_wire_bytes", phases)

    def total_host_bytes(self, phases: str | Iterable[str] = PHASES) -> int:
        """Return the bytes that one host's devices send to other hosts in phases.

        Args:
            phases: A phase, or the phases to add up; by default those of a step.
        """
        return self._total("total_host_bytes", phases)

    def total_slice_bytes(self, phases: str | Iterable[str] = PHASES) -> int:
        """Return the bytes that one slice's devices send to other slices in phases.

        Args:
            phases: A phase, or the phases to add up; by default those of a step.
        """
        return self._total("total_slice_bytes", phases)

    def _total(self, attribute: str, phases: str | Iterable[str]) -> int:
        """Add up an attribute of the collectives of some phases."""
        chosen = (one for phase in as_tuple(phases) for one in self.of_phase(phase))
        return sum(getattr(one, attribute) for one in chosen)

    @property
    def communication(self) -> str:
        """The collectives alone, as a table: those of a step, then those of initialisation."""
        return format_communication(self._phases(), self.mesh)

    def _phases(self) -> dict[str, Sequence[Collective]]:
        """Return the collectives by phase, those of initialisation last."""
        return {phase: self.of_phase(phase) for phase in ALL_PHASES}

    def to_json(self) -> dict[str, Any]:
        """Return values that JSON has: shardings, collectives and totals."""
        return self.record.to_json()

    def report(self, path: str | os.PathLike, **options: Any) -> None:
        """Write everything as one HTML page.

        Args:
            path: The file to write.
            **options: What `nm.report` takes besides.
        """
        import namedmesh as nm  # reports are written by a room that imports this one

        nm.report(self, path, **options)  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        header, notes = self._describe()
        tables = format_plan_html(self.tensor_rows, self._phases(), self.mesh)
        return html_block(header, html_text(*notes), *tables)

    def __repr__(self) -> str:
        header, notes = self._describe()
        more = [f"  and {len(notes) - 3} more notes"] if len(notes) > 3 else []
        totals = format_totals(self._phases(), self.mesh)
        return "\n".join([header, *(f"  {note}" for note in notes[:3]), *more, *totals])

    def __str__(self) -> str:
        header, notes = self._describe()
        parts = [header, *(["\n".join(f"  {note}" for note in notes)] if notes else [])]
        return "\n\n".join([*parts, format_tensors(self.tensor_rows), self.communication])
