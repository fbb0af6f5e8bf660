"""The report of an ahead-of-time compile: a table for people and a JSON row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from namedmesh.aot.memory import Buffer, Exhausted, Memory
from namedmesh.artifacts.artifact import Artifact
from namedmesh.audit.audit import Audit
from namedmesh.audit.hlo.communication import CompiledCollective
from namedmesh.display.text import columns, human
from namedmesh.hardware.assignment import Assignment
from namedmesh.hardware.topology import Target
from namedmesh.records.collective import Collective

_HEAD = (
    "collective",
    "axes",
    "planned",
    "made",
    "planned bytes",
    "made bytes",
    "planned on the wire",
    "made on the wire",
    "sent as",
)


@dataclass
class CollectiveRow:
    """Planned and made collectives of one kind, axes and dtypes, side by side.

    Attributes:
        kind: Such as `AllReduce`.
        axes: The mesh axes they run along.
        dtype: The planned dtype.
        sent_as: The dtype they are sent in.
        planned: How many a step has, as planned; a loop of unknown length counts as one iteration.
        made: How many it has, as compiled.
        planned_bytes: The bytes of their buffers in a step, as planned.
        made_bytes: The same as compiled.
        planned_wire_bytes: What one device sends in a step, by the usual algorithms, as planned.
        made_wire_bytes: The same as compiled.
    """

    kind: str
    axes: tuple[str, ...]
    dtype: str
    sent_as: str
    planned: int = 0
    made: int = 0
    planned_bytes: int = 0
    made_bytes: int = 0
    planned_wire_bytes: int = 0
    made_wire_bytes: int = 0

    def add(
        self, planned: Collective | None = None, made: CompiledCollective | None = None
    ) -> None:
        """Count one more collective, with all its runs."""
        if planned:
            self.planned += planned.times
            self.planned_bytes += planned.total_bytes
            self.planned_wire_bytes += planned.total_wire_bytes
        if made:
            self.made += made.times
            self.made_bytes += made.times * made.bytes
            self.made_wire_bytes += made.times * made.wire_bytes

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table for people."""
        sent = self.sent_as if self.sent_as == self.dtype else f"{self.sent_as} for {self.dtype}"
        counts = (str(self.planned), str(self.made))
        return (self.kind, "+".join(self.axes), *counts, *map(human, self.sizes), sent)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Planned and made bytes of buffers, then on the wire."""
        return self.planned_bytes, self.made_bytes, self.planned_wire_bytes, self.made_wire_bytes


def tabulate_collectives(audit: Audit) -> list[CollectiveRow]:
    """Add up what was planned and what was made."""
    rows: dict[tuple[str, tuple[str, ...], str, str], CollectiveRow] = {}

    def row(kind: str, axes: tuple[str, ...], dtype: str, sent_as: str) -> CollectiveRow:
        key = (kind, axes, dtype, sent_as)
        return rows.setdefault(key, CollectiveRow(*key))

    different = [(one.planned, one.compiled) for one in audit.differences]
    for plan, one in (*audit.matched, *different):
        row(plan.kind, plan.axes, plan.dtype, one.dtype).add(plan, one)
    for plan in (*audit.merged, *audit.missing):
        row(plan.kind, plan.axes, plan.dtype, plan.dtype).add(planned=plan)
    for one in audit.unplanned:
        axes = one.axes or ("other groups",)
        row(one.kind, axes, one.dtype, one.dtype).add(made=one)
    return list(rows.values())


def format_rows(rows: Sequence[CollectiveRow], indent: int) -> list[str]:
    """Format rows as lines of a table, with what they add up to."""
    if not rows:
        return [" " * indent + "none"]
    counts = (sum(row.planned for row in rows), sum(row.made for row in rows))
    sizes = (human(sum(size)) for size in zip(*(row.sizes for row in rows), strict=True))
    total = ("all", "", *map(str, counts), *sizes, "")
    return columns([_HEAD, *(row.cells for row in rows), total], indent)


_LABELS = {
    "state": "optimizer and other state",
    "activations": "activations that loops keep, as planned",
}


@dataclass(frozen=True, kw_only=True)
class TargetReport:
    """What an Artifact takes on a target, per core.

    What the compiler did not tell is None: audit and costs, if it gave up early.

    Attributes:
        model: The model's name.
        target: The target, such as `tpu-v3:32x32`.
        mesh: The mesh.
        cores: How many devices the target has.
        weights: How many numbers are trained.
        fits: Whether the step fits into memory.
        hbm_bytes: The memory of a core; None for CPUs.
        memory: What a core's bytes hold.
        lack: The compiler's message if the step does not fit.
        buffers: The largest values.
        levers: What would make the step smaller.
        audit: The compiler's collectives against the plan's.
        program_flops: FLOPs of a core and step by the program's own count.
        compiler_flops: The same by the compiler's, which counts the body of a loop once.
        bytes_accessed: Memory that a core reads and writes in a step, by the compiler's count.
        loops: How many loops there are.
        optimal_seconds: Time of a step at best, by the compiler's cost analysis.
        compute_seconds: Time of a step's computation, by the compiler's estimate of cycles.
        compile_seconds: How long compiling took.
        assignment: Which device takes which place of the mesh.
        leaving: The bytes that leave a host and a slice in a step, as planned, where there are
            several.

    Example:
        >>> import namedmesh as nm
        >>> (B,) = nm.dims("batch=4")
        >>> program = nm.trace(lambda x: nm.exp(x), x=nm.spec([B]))
        >>> report = nm.aot.compile_for(nm.export(program, nm.Mesh(data=1), ""), "cpu:1")
        >>> report.target, report.cores, report.collectives()
        ('cpu:1', 1, [])
        >>> report.row()["memory"]["inputs"]
        16
    """

    model: str
    target: str
    mesh: str
    cores: int
    weights: int
    fits: bool
    hbm_bytes: int | None
    memory: Memory | None
    lack: Exhausted | None
    buffers: tuple[Buffer, ...]
    levers: tuple[str, ...]
    audit: Audit | None
    program_flops: float
    compiler_flops: float | None
    bytes_accessed: float | None
    loops: int
    optimal_seconds: float | None
    compute_seconds: float | None
    compile_seconds: float
    assignment: Assignment
    leaving: Mapping[str, int]

    @property
    def peak_bytes(self) -> int | None:
        """Everything a core holds at once, as far as the compiler said."""
        if self.lack is not None:
            return self.lack.needed
        return self.memory.total if self.memory else None

    @property
    def flops_per_core(self) -> float:
        """The compiler's count, or the program's own if there are loops.

        The compiler counts the body of a loop once.
        """
        return self.program_flops if self.loops or not self.compiler_flops else self.compiler_flops

    @property
    def error(self) -> str | None:
        """Why the step does not run there."""
        if self.lack is None:
            return None
        over = human(self.lack.needed - self.lack.available)
        return (
            f"out of memory by {over} ({human(self.lack.needed)} of {human(self.lack.available)})"
        )

    def collectives(self) -> list[CollectiveRow]:
        """Planned and made collectives side by side.

        Returns:
            A row for each kind, axes and dtypes.
        """
        return tabulate_collectives(self.audit) if self.audit else []

    def row(self) -> dict[str, Any]:
        """Everything as JSON.

        Returns:
            What `namedmesh aot --json` writes for an Artifact.
        """
        return {
            "model": self.model,
            "target": self.target,
            "mesh": self.mesh,
            "cores": self.cores,
            "weights": self.weights,
            "fits": self.fits,
            "error": self.error,
            "peak_bytes": self.peak_bytes,
            "hbm_bytes": self.hbm_bytes,
            "memory": dataclasses.asdict(self.memory) if self.memory else None,
            "largest_buffers": [dataclasses.asdict(buffer) for buffer in self.buffers],
            "levers": list(self.levers),
            "collectives_match_plan": self.audit.exact if self.audit and self.fits else None,
            "collectives": [{**vars(one), "axes": list(one.axes)} for one in self.collectives()],
            "wire_bytes": self.audit.wire_bytes if self.audit else None,
            **{f"planned_{block}_bytes": size for block, size in self.leaving.items()},
            "problems": self.audit.describe_problems() if self.audit else [],
            "rules": dict(self.audit.rules) if self.audit else {},
            "matched_by_shape": len(self.audit.by_shape) if self.audit else 0,
            "notes": self.audit.notes if self.audit else [],
            "flops_per_core": self.flops_per_core,
            "compiler_flops_per_core": self.compiler_flops,
            "bytes_accessed_per_core": self.bytes_accessed,
            "loops_counted_once": self.loops,
            "optimal_seconds": self.optimal_seconds,
            "compute_seconds": self.compute_seconds,
            "compile_seconds": self.compile_seconds,
            "code_bytes": self.memory.code if self.memory else None,
            "mean_hops": self.assignment.hops,
            "mean_hops_in_listed_order": self.assignment.listed_hops,
        }

    def __str__(self) -> str:
        verdict = (
            f"does not fit: {self.error}"
            if not self.fits
            else "fits"
            if self.hbm_bytes
            else "compiles"
        )
        limit = f" of {human(self.hbm_bytes)}" if self.hbm_bytes else ""
        lines = [
            f"{self.model} on {self.target}, {self.cores:,} cores, {self.mesh}: {verdict}",
            "  a core holds",
        ]
        if self.memory:
            held = [
                (_LABELS.get(name, name), human(size))
                for name, size in dataclasses.asdict(self.memory).items()
            ]
            lines += columns([*held, ("all", human(self.peak_bytes or 0) + limit)], 4)
        lines += (
            ["  the largest values, of which some take each other's place"] if self.buffers else []
        )
        lines += (
            columns([_describe_buffer(one) for one in self.buffers[:8]], 4) if self.buffers else []
        )
        lines += [f"  what helps: {lever}" for lever in self.levers]
        if self.audit:
            verdict = "as planned" if self.audit.exact else "NOT as planned"
            tried = "" if self.fits else " in the compiler's last try"
            lines.append(f"  collectives {verdict}{tried}")
            lines += format_rows(self.collectives(), 4)
            lines += [f"    {line}" for line in self.audit.describe_problems()]
            lines += [f"    {note}" for note in self.audit.notes]
        lines += [
            f"  {human(size)} leave a {block} in a step, as planned"
            for block, size in self.leaving.items()
        ]
        lines += [f"  {line}" for line in self._costs()]
        return "\n".join(lines)

    def _costs(self) -> list[str]:
        """The lines about FLOPs, time and distance."""
        whole = (
            "the program's count"
            if self.flops_per_core == self.program_flops
            else "the compiler's count"
        )
        lines = [
            f"{self.weights:,} weights, {self.flops_per_core:.4g} FLOPs a core and step ({whole})"
        ]
        once = ", loop bodies once" if self.loops else ""
        if self.bytes_accessed:
            extent = once.removeprefix(", ") or "all of it"
            lines.append(f"{human(self.bytes_accessed)} of memory accessed by a core ({extent})")
        if self.compute_seconds:
            lines.append(
                f"{self.compute_seconds:.3g} s of computation by the compiler's "
                "estimate of cycles, loops in full"
            )
        if self.optimal_seconds and self.optimal_seconds > 0:
            lines.append(f"{self.optimal_seconds:.3g} s at best by its cost analysis{once}")
        hops, listed = self.assignment.hops, self.assignment.listed_hops
        if hops and listed:
            lines.append(f"{hops:.2f} hops a byte on average, {listed:.2f} in listed order")
        return [*lines, f"compiled in {self.compile_seconds:.1f} s"]


def count_weights(artifact: Artifact) -> int:
    """How many numbers an Artifact trains."""
    return sum(math.prod(spec.sizes) for spec in artifact.variables if spec.trainable)


def failed_row(artifact: Artifact | None, target: Target, model: str, error: str) -> dict[str, Any]:
    """The JSON row of an Artifact that could not be compiled at all."""
    unknown = dict.fromkeys(
        ("peak_bytes", "hbm_bytes", "flops_per_core", "compile_seconds", "collectives_match_plan")
    )
    return {
        "model": model,
        "target": str(target),
        "mesh": str(artifact.mesh) if artifact else None,
        "cores": target.cores,
        "weights": count_weights(artifact) if artifact else None,
        "fits": None,
        "error": error,
        **unknown,
    }


def _describe_buffer(buffer: Buffer) -> tuple[str, str, str]:
    """The cells of a table of buffers."""
    times = f"{buffer.count} x " if buffer.count > 1 else ""
    return times + human(buffer.bytes), buffer.shape, buffer.origin
