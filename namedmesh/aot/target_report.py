"""The report of an ahead-of-time compile: a table for people and a JSON row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from namedmesh.aot.memory import Buffer, Exhausted, Memory
from namedmesh.artifacts.artifact import Artifact
from namedmesh.audit.audit import Audit
from namedmesh.audit.hlo.communication import CompiledCollective
from namedmesh.display.html import html_block, html_table, html_text
from namedmesh.display.text import columns, human
from namedmesh.errors.mistakes import Explained
from namedmesh.hardware.assignment import Assignment
from namedmesh.hardware.chips import TPUS
from namedmesh.hardware.leaving import Link, tabulate_links
from namedmesh.hardware.topology import Target
from namedmesh.records.collective import Collective
from namedmesh.records.plan import tell_recomputed
from namedmesh.schedule.timeline import Timeline

_HEAD = (
    "collective", "axes", "planned", "made", "planned bytes", "made bytes", "planned on the wire",
    "made on the wire", "sent as",
)  # fmt: skip
_BY = ("axes", "kind", "scope")
_VALUES = "the largest values, of which some take each other's place"


@dataclass
class CollectiveRow:
    """Planned and made collectives of one kind, axes and dtypes, added up over a step."""

    kind: str  # such as `AllReduce`
    axes: tuple[str, ...]  # the mesh axes they run along
    dtype: str  # the planned dtype
    sent_as: str  # the dtype they are sent in
    # How many a step has, as planned; a loop of unknown length counts as one iteration.
    planned: int = 0
    made: int = 0  # how many it has, as compiled
    planned_bytes: int = 0  # the bytes of their buffers, as planned
    made_bytes: int = 0  # the same as compiled
    # The bytes that one device sends by the usual algorithms, as planned.
    planned_wire_bytes: int = 0
    made_wire_bytes: int = 0  # the same as compiled

    def add(self, side: str, one: Collective | CompiledCollective) -> None:
        """Count one more planned or made collective, with all its runs."""
        figures = {"": 1, "_bytes": one.bytes, "_wire_bytes": one.wire_bytes}
        for name, size in figures.items():
            setattr(self, side + name, getattr(self, side + name) + one.times * size)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Planned and made bytes of buffers, then on the wire."""
        return self.planned_bytes, self.made_bytes, self.planned_wire_bytes, self.made_wire_bytes


def tabulate_collectives(audit: Audit) -> list[CollectiveRow]:
    """Add up planned and made collectives."""
    rows: dict[tuple[str, tuple[str, ...], str, str], CollectiveRow] = {}

    def row(kind: str, axes: tuple[str, ...], dtype: str, sent_as: str) -> CollectiveRow:
        key = (kind, axes, dtype, sent_as)
        return rows.setdefault(key, CollectiveRow(*key))

    different = [(one.planned, one.compiled) for one in audit.differences]
    for plan, one in (*audit.matched, *different):
        found = row(plan.kind, plan.axes, plan.dtype, one.dtype)
        found.add("planned", plan)
        found.add("made", one)
    for plan in (*audit.merged, *audit.missing):
        row(plan.kind, plan.axes, plan.dtype, plan.dtype).add("planned", plan)
    for one in audit.unplanned:
        axes = one.axes or ("other groups",)
        row(one.kind, axes, one.dtype, one.dtype).add("made", one)
    return list(rows.values())


def _format_collectives(rows: Sequence[CollectiveRow]) -> list[tuple[str, ...]]:
    """Return the cells of a table with its totals; empty without rows."""
    if not rows:
        return []
    cells = []
    for row in rows:
        sent = row.sent_as if row.sent_as == row.dtype else f"{row.sent_as} for {row.dtype}"
        counts = (str(row.planned), str(row.made))
        cells.append((row.kind, "+".join(row.axes), *counts, *map(human, row.sizes), sent))
    counts = (str(sum(row.planned for row in rows)), str(sum(row.made for row in rows)))
    sizes = (human(sum(size)) for size in zip(*(row.sizes for row in rows), strict=True))
    return [_HEAD, *cells, ("all", "", *counts, *sizes, "")]


@dataclass(frozen=True, kw_only=True, repr=False)
class TargetReport(Explained):
    """The outcome of compiling an Artifact for a target, per core.

    Values that the compiler did not report are None: audit and costs, if it gave up early.

    Attributes:
        model: The model's name.
        target: The target, such as `tpu-v3:32x32`.
        mesh: The mesh.
        cores: How many devices the target has.
        weights: How many numbers are trained.
        fits: Whether the step fits into memory.
        hbm_bytes: The memory of a core; None for CPUs.
        memory: A core's bytes by use.
        lack: The compiler's message if the step does not fit.
        buffers: The largest values.
        levers: Advice that would make the step smaller.
        audit: The compiler's collectives against the plan's.
        program_flops: FLOPs of a core and step by the program's own count.
        recomputed: The share of them that the backward pass computes again, by scope.
        compiler_flops: The same by the compiler's, which counts the body of a loop once.
        bytes_accessed: Memory that a core reads and writes in a step, by the compiler's count.
        loops: How many loops there are.
        optimal_seconds: Time of a step at best, by the compiler's cost analysis.
        compute_seconds: Time of a step's computation, by the compiler's estimate of cycles.
        compile_seconds: How long compiling took.
        assignment: The device at each place of the mesh.
        leaving: The planned bytes that leave a host and a slice in a step, if there are several.
        links: The planned bytes along each set of axes, and the links they take.
        timeline: What the device runs and waits for, by the schedule; None without one.
        advice: The order of the mesh's axes in which much less would leave a node or slice.
        tuning: The GPU of this machine on which kernels were tuned, or why they were not.

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
    links: Sequence[Link] = ()
    advice: str | None = None
    timeline: Timeline | None = None
    tuning: str = ""
    recomputed: Mapping[str, float] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int | None:
        """The most bytes that a core holds at once, if the compiler reported them."""
        if self.lack is not None:
            return self.lack.needed
        return self.memory.total if self.memory else None

    @property
    def flops_per_core(self) -> float:
        """The compiler's count, or the program's own if there are loops."""
        return self.program_flops if self.loops or not self.compiler_flops else self.compiler_flops

    @property
    def error(self) -> str | None:
        """Why the step does not run there."""
        if self.lack is None:
            return None
        needed, available = self.lack.needed, self.lack.available
        over = human(needed - available)
        return f"out of memory by {over} ({human(needed)} of {human(available)})"

    def collectives(self) -> list[CollectiveRow]:
        """Return planned and made collectives side by side, by kind, axes and dtypes."""
        return tabulate_collectives(self.audit) if self.audit else []

    def row(self) -> dict[str, Any]:
        """Return everything as JSON: what `namedmesh aot --json` writes for an Artifact."""
        same = (
            "model", "target", "mesh", "cores", "weights", "fits", "error", "peak_bytes",
            "hbm_bytes", "flops_per_core", "optimal_seconds", "compute_seconds", "compile_seconds",
        )  # fmt: skip
        audit, memory = self.audit, self.memory
        timeline = self.timeline
        exposed = {f"exposed_by_{what}": timeline and timeline.exposed_by(what) for what in _BY}
        return {
            **{name: getattr(self, name) for name in same},
            "scheduled_seconds": timeline and timeline.seconds,
            "exposed_seconds": timeline and timeline.exposed_seconds,
            **{name: found or {} for name, found in exposed.items()},
            "memory": dataclasses.asdict(memory) if memory else None,
            "largest_buffers": [dataclasses.asdict(buffer) for buffer in self.buffers],
            "levers": list(self.levers),
            "collectives_match_plan": audit.exact if audit and self.fits else None,
            "collectives": [{**vars(one), "axes": list(one.axes)} for one in self.collectives()],
            "wire_bytes": audit.wire_bytes if audit else None,
            **{f"planned_{block}_bytes": size for block, size in self.leaving.items()},
            "problems": audit.describe_problems() if audit else [],
            "rules": dict(audit.rules) if audit else {},
            "matched_by_shape": len(audit.by_shape) if audit else 0,
            "notes": audit.notes if audit else [],
            "compiler_flops_per_core": self.compiler_flops,
            "bytes_accessed_per_core": self.bytes_accessed,
            "loops_counted_once": self.loops,
            "recomputed": dict(self.recomputed),
            "code_bytes": memory.code if memory else None,
            "links": [{**vars(one), "axes": list(one.axes)} for one in self.links],
            "advice": self.advice,
            "tuning": self.tuning,
            "mean_hops": self.assignment.hops,
            "mean_hops_in_listed_order": self.assignment.listed_hops,
        }

    def __str__(self) -> str:
        lines = [self._title, f"  a {self._device} holds"]
        lines += columns(self._memory_rows, 4) if self.memory else []
        if self.buffers:
            lines += [f"  {_VALUES}", *columns(self._buffer_rows, 4)]
        lines += [f"  what helps: {lever}" for lever in self.levers]
        if self.audit:
            lines.append(f"  {self._verdict}")
            rows = _format_collectives(self.collectives())
            lines += columns(rows, 4) if rows else ["    none"]
            problems = self.audit.describe_problems()
            lines += [f"    {line}" for line in (*problems, *self.audit.notes)]
        if self.links:
            lines += [f"  as planned, a {self._device} sends", *columns(self._link_rows, 4)]
        if self.timeline:
            lines += [f"  {line}" for line in str(self.timeline).splitlines()]
        return "\n".join([*lines, *(f"  {line}" for line in self._costs)])

    def __repr__(self) -> str:
        peak = "" if self.peak_bytes is None else f", {human(self.peak_bytes)} a {self._device}"
        return f"TargetReport({self._title}{peak})"

    def _repr_html_(self) -> str:
        numbers = ("bytes", *_HEAD[2:8])
        parts = [html_table((f"a {self._device} holds", "bytes"), self._memory_rows, numbers)]
        if self.buffers:
            head = ("bytes", "shape", "value")
            parts += [html_text(_VALUES), html_table(head, self._buffer_rows)]
        parts += [html_text(f"what helps: {lever}") for lever in self.levers]
        if self.audit:
            parts.append(html_text(self._verdict))
            if rows := _format_collectives(self.collectives()):
                parts.append(html_table(rows[0], rows[1:], numbers))
            parts.append(html_text(*self.audit.describe_problems(), *self.audit.notes))
        if self.links:
            head, *rows = self._link_rows
            parts.append(html_table(head, rows, (head[1], head[3])))
        if self.timeline:
            parts.append(self.timeline._repr_html_())
        return html_block(self._title, *parts, html_text(*self._costs))

    @property
    def _title(self) -> str:
        verdict = "fits" if self.hbm_bytes else "compiles"
        if not self.fits:
            verdict = f"does not fit: {self.error}"
        return (
            f"{self.model} on {self.target}, {self.cores:,} {self._device}s, {self.mesh}: {verdict}"
        )

    @property
    def _device(self) -> str:
        name = self.target.partition(":")[0].removeprefix("tpu-")
        return "core" if name == "cpu" or name in TPUS else "GPU"

    @property
    def _verdict(self) -> str:
        verdict = "as planned" if self.audit and self.audit.exact else "NOT as planned"
        return f"collectives {verdict}" + ("" if self.fits else " in the compiler's last try")

    @property
    def _memory_rows(self) -> list[tuple[str, str]]:
        limit = f" of {human(self.hbm_bytes)}" if self.hbm_bytes else ""
        rows = self.memory.rows if self.memory else []
        return [*rows, ("all", human(self.peak_bytes or 0) + limit)]

    @property
    def _link_rows(self) -> list[tuple[str, ...]]:
        return tabulate_links(self.links, "node" if self._device == "GPU" else "slice")

    @property
    def _buffer_rows(self) -> list[tuple[str, str, str]]:
        rows = []
        for one in self.buffers[:8]:
            times = f"{one.count} x " if one.count > 1 else ""
            rows.append((times + human(one.bytes), one.shape, one.origin))
        return rows

    @property
    def _costs(self) -> list[str]:
        """The lines about bytes that leave a host, FLOPs, time and distance."""
        leaving = self.leaving.items()
        lines = [f"warning: {self.advice}"] if self.advice else []
        lines += [f"{human(size)} leave a {block} in a step, as planned" for block, size in leaving]
        counter = "program" if self.flops_per_core == self.program_flops else "compiler"
        flops = f"{self.flops_per_core:.4g} FLOPs a {self._device} and step (the {counter}'s count)"
        lines += [f"{self.weights:,} weights, {flops}", *tell_recomputed(self.recomputed)]
        once = ", loop bodies once" if self.loops else ""
        if self.bytes_accessed:
            extent = once.removeprefix(", ") or "all of it"
            lines.append(
                f"{human(self.bytes_accessed)} of memory accessed by a {self._device} ({extent})"
            )
        if self.compute_seconds:
            source = "by the compiler's estimate of cycles, loops in full"
            lines.append(f"{self.compute_seconds:.3g} s of computation {source}")
        if self.optimal_seconds and self.optimal_seconds > 0:
            lines.append(f"{self.optimal_seconds:.3g} s at best by its cost analysis{once}")
        hops, listed = self.assignment.hops, self.assignment.listed_hops
        if hops and listed:
            lines.append(f"{hops:.2f} hops a byte on average, {listed:.2f} in listed order")
        tuning = f"; {self.tuning}" if self.tuning else ""
        return [*lines, f"compiled in {self.compile_seconds:.1f} s{tuning}"]


def count_weights(artifact: Artifact) -> int:
    """Count the weights of an Artifact, trained or not."""
    return sum(math.prod(spec.sizes) for spec in artifact.variables if spec.parameter)


def failed_row(artifact: Artifact | None, target: Target, model: str, error: str) -> dict[str, Any]:
    """Return the JSON row of an Artifact that could not be compiled at all."""
    names = (
        "mesh", "weights", "fits", "peak_bytes", "hbm_bytes", "flops_per_core", "compile_seconds",
        "collectives_match_plan",
    )  # fmt: skip
    row = {"model": model, "target": str(target), "cores": target.cores, "error": error}
    known = {"mesh": str(artifact.mesh), "weights": count_weights(artifact)} if artifact else {}
    return {**row, **dict.fromkeys(names), **known}
