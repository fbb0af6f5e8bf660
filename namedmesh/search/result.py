"""The result of a search: the front of time and memory, and why nothing else is on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from namedmesh.cost.cost import format_seconds
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.display.html import html_block, html_table, html_text
from namedmesh.display.text import columns, human
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.mistakes import Explained
from namedmesh.hardware.chips import GPUS
from namedmesh.hardware.hardware import Hardware
from namedmesh.hardware.links import Nodes, TorusSlice
from namedmesh.hardware.topology import Target
from namedmesh.ir.program import Program
from namedmesh.planning.plan import Plan
from namedmesh.planning.plan_program import plan as make_plan
from namedmesh.records.codec import write_value
from namedmesh.search.exploration import OVER, TOO_LARGE
from namedmesh.search.measure import Measure

MOST_REFUSALS = 3  # how many errors of the planner are printed


@dataclass(frozen=True)
class Verified:
    """The outcome of compiling an entry's plan ahead of time."""

    target: str
    exact: bool | None  # None if the step did not fit, or was not compiled
    memory_bytes: int | None  # the peak of a device's memory by the compiler
    seconds: float  # of compiling
    problems: tuple[str, ...] = ()  # deviations from the plan, or why it does not compile
    step_seconds: float | None = None  # of a step by the compiler's schedule, if it writes one

    def __str__(self) -> str:
        if self.exact is None:
            return f"not on {self.target}"
        verdict = "as planned" if self.exact else "NOT as planned"
        size = "" if self.memory_bytes is None else f", {human(self.memory_bytes)}"
        time = "" if self.step_seconds is None else f", {format_seconds(self.step_seconds)}"
        return f"{self.target}: {verdict}{size}{time}"


def find_target(hardware: Hardware, mesh: Mesh) -> Target:
    """Return the target to compile for: TPU slices or nodes of GPUs for the mesh, or CPUs."""
    network, name = hardware.network, hardware.name.partition(":")[0]
    if isinstance(network, TorusSlice):
        return network.target(mesh)
    if isinstance(network, Nodes) and name in GPUS:
        nodes = max(network.count_blocks(mesh), -(-mesh.devices // network.devices))
        if mesh.devices % nodes == 0:
            return Target("gpu", name, (nodes, mesh.devices // nodes))
    return Target("cpu", "", (mesh.devices,))


def verify_plan(plan: Plan, target: Target) -> Verified:
    """Lower a plan, compile it ahead of time and audit it."""
    from namedmesh.aot.compilation import compile_for
    from namedmesh.lowering.export import export_planned

    try:
        report = compile_for(export_planned(plan), target)
    except NamedMeshError as error:
        if target.platform != "cpu":  # its compiler may not be here
            return verify_plan(plan, Target("cpu", "", (plan.mesh.devices,)))
        return Verified(str(target), None, None, 0.0, (error.problem,))
    exact = report.audit.exact if report.audit and report.fits else None
    problems = tuple(report.audit.describe_problems()) if report.audit else ()
    if report.error:
        problems = (report.error, *problems)
    seconds = report.timeline.seconds if report.timeline else None
    took = report.compile_seconds
    return Verified(str(target), exact, report.peak_bytes, took, problems, seconds)


@dataclass(frozen=True, repr=False)
class Entry(Explained):
    """One mesh and layout that a search found, with its time and memory.

    Attributes:
        mesh: The devices.
        layout: The axes of each dimension.
        params: The same for parameters at rest; None where it is the layout.
        choices: The arguments that the program was made with, such as `{"remat": "full"}`.
        takes: Its time and memory by the plan.
        program: The program.
        verified: The outcome of compiling it, if it was asked for.
    """

    mesh: Mesh
    layout: Layout
    params: Layout | None
    choices: Mapping[str, Any]
    takes: Measure
    program: Program = field(compare=False)
    verified: Verified | None = None

    @property
    def seconds(self) -> float:
        """The seconds of a step, with the overlap that the hardware's schedulers reach."""
        return self.takes.seconds

    @property
    def least_seconds(self) -> float:
        """The seconds of a step if all communication overlaps with compute."""
        return self.takes.least_seconds

    @property
    def memory_bytes(self) -> int:
        """The peak of a device's memory."""
        return self.takes.memory_bytes

    @property
    def wire_bytes(self) -> int:
        """The bytes that one device sends in a step."""
        return self.takes.wire_bytes

    @property
    def host_bytes(self) -> int:
        """The bytes that one host sends to others in a step."""
        return self.takes.host_bytes

    @property
    def conflicts(self) -> str:
        """The argument of `nm.plan`: `cheapest` where operands disagree and one of them moves."""
        return self.takes.conflicts

    def __repr__(self) -> str:
        params = f", params={self.params.text!r}" if self.params is not None else ""
        layout = f"{self.mesh}, {self.layout.text!r}{params}"
        return f"Entry({layout}: {format_seconds(self.seconds)}, {human(self.memory_bytes)})"

    def _repr_html_(self) -> str:
        return html_block(f"{self.program.name} on {self.mesh}", _html_entries([self]))

    def plan(self) -> Plan:
        """Return the plan."""
        layout = self.mesh, self.layout, self.params
        return make_plan(self.program, *layout, conflicts=self.conflicts)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as values that JSON has."""
        takes = write_value(self.takes)
        del takes["refused"], takes["conflict"]
        return {
            "mesh": self.mesh.to_json(),
            "layout": self.layout.text,
            "params": None if self.params is None else self.params.text,
            "choices": dict(self.choices),
            **takes,
            "verified": None if self.verified is None else write_value(self.verified),
        }


@dataclass(frozen=True, repr=False)
class Search(Explained):
    """The result of `nm.search`.

    Attributes:
        program: The program's name.
        devices: How many devices a mesh has.
        target: Their hardware.
        memory: The memory of one of them, in bytes.
        front: Entries that fit, none both slower and larger than another, fastest first; before
            them the fastest that were compiled, in the order of their schedules.
        too_large: Entries that are faster and do not fit, fastest first.
        enumerated: How many candidates there were.
        planned: How many of them were planned.
        reasons: How many are not on the front, by reason.
        refusals: How many the planner refused, by its error.
        floor_seconds: The seconds of a step than which no candidate that fits can take less.
        elapsed: The seconds that the search took.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=1024 model=512")
        >>> def step(x):
        ...     w = nm.param("w", [M])
        ...     nm.assign(w, w - nm.grad(nm.sum(x * w), w))
        >>> program = nm.trace(step, x=nm.spec([B, M]))
        >>> found = nm.search(program, 8, "tpu-v3", progress=False)
        >>> found.best.mesh, found.best.layout
        (Mesh(x=8), Layout('model:x'))
        >>> sum(found.reasons.values()) + len(found.front) == found.enumerated
        True
    """

    program: str
    devices: int
    target: str
    memory: float
    front: tuple[Entry, ...]
    too_large: tuple[Entry, ...]
    enumerated: int
    planned: int
    reasons: Mapping[str, int]
    refusals: Mapping[str, int]
    floor_seconds: float
    elapsed: float = field(compare=False, default=0.0)

    @property
    def best(self) -> Entry:
        """The fastest entry that fits.

        Raises:
            NamedMeshError: Nothing fits.
        """
        if self.front:
            return self.front[0]
        place = f"{self.program} on {self.devices:,} devices"
        reasons = [f"{count:,}: {reason}" for reason, count in self.reasons.items()]
        reasons += [f"{count:,} times: {problem}" for problem, count in self._worst_refusals]
        if not self._lacks_memory:
            fix = "pin less, or write nm.reshard where the planner asks which dimension has an axis"
            raise NamedMeshError(f"no layout of {place} can be planned", *reasons, fix=fix)
        least = min((one.memory_bytes for one in self.too_large), default=None)
        if least is not None:
            reasons = [f"the smallest that was planned takes {human(least)}"]
        raise NamedMeshError(
            f"no layout of {place} fits into {human(self.memory)}",
            *reasons,
            fix="use more devices, offer the program with remat or smaller microbatches "
            "(nm.search(make_program, ..., remat=['none', 'full'])), or pin less",
        )

    @property
    def gap(self) -> float:
        """The share by which the best is above what no candidate can beat; 0.06 is within 6%."""
        return self.best.seconds / self.floor_seconds - 1 if self.front else float("inf")

    @property
    def _worst_refusals(self) -> list[tuple[str, int]]:
        """The errors that the planner raised most often."""
        return Counter(self.refusals).most_common(MOST_REFUSALS)

    @property
    def _lacks_memory(self) -> bool:
        """True if a candidate was left out for its memory."""
        return any(reason in self.reasons for reason in (TOO_LARGE, OVER))

    def to_json(self) -> dict[str, Any]:
        """Return the result as values that JSON has."""
        return {
            **vars(self),
            "front": [one.to_json() for one in self.front],
            "too_large": [one.to_json() for one in self.too_large],
            "reasons": dict(self.reasons),
            "refusals": dict(self.refusals),
        }

    def __str__(self) -> str:
        parts = [f"search of {self._title} in {self.elapsed:.1f} s"]
        if self.front:
            parts.append("\n".join(columns(_tabulate(self.front, self.too_large))))
        else:
            parts.append("nothing fits" if self._lacks_memory else "nothing can be planned")
        if self.front:
            floor = format_seconds(self.floor_seconds)
            parts.append(
                f"no candidate can take less than {floor}: the best is within {self.gap:.1%}"
            )
        if self.too_large:
            rows = columns(_tabulate(self.too_large))
            parts.append("\n".join(["faster, and too large", *rows]))
        if self.reasons:
            width = max(len(f"{count:,}") for count in self.reasons.values())
            lines = [f"  {count:>{width},}  {reason}" for reason, count in self.reasons.items()]
            lines += [f"    {count:,} times: {text}" for text, count in self._worst_refusals]
            parts.append("\n".join(["why not the others", *lines]))
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        best = f", best {self.best!r}" if self.front else ""
        return f"Search({self._title}, {len(self.front)} on the front{best})"

    def _repr_html_(self) -> str:
        parts = [_html_entries(self.front, self.too_large)] if self.front else []
        if self.too_large:
            parts += [html_text("faster, and too large"), _html_entries(self.too_large)]
        reasons = [(f"{count:,}", reason) for reason, count in self.reasons.items()]
        head = ("candidates", "why they are not listed")
        parts.append(html_table(head, reasons, head[:1]))
        return html_block(f"search of {self._title}", *parts)

    @property
    def _title(self) -> str:
        return (
            f"{self.program} on {self.devices:,} devices of {self.target}, "
            f"{human(self.memory)} each: {self.enumerated:,} candidates, {self.planned:,} planned"
        )


def _html_entries(entries: Sequence[Entry], faster: Sequence[Entry] = ()) -> str:
    """Format entries as a table of a notebook."""
    head, *rows = _tabulate(entries, faster)
    return html_table(head, rows, ("step", "overlapped", "memory", "sends", "leaves a host"))


def _has_conflicts(entry: Entry) -> bool:
    """Return whether operands disagree in an entry's plan, and one of them moves."""
    return entry.conflicts != "error"


def _is_verified(entry: Entry) -> bool:
    """Return whether an entry was compiled."""
    return entry.verified is not None


def _tabulate(entries: Sequence[Entry], faster: Sequence[Entry] = ()) -> list[list[str]]:
    """Return the rows of a table; each has what the next faster entry takes more."""
    names = [*entries[0].choices]
    across = any(one.mesh.hosts > 1 for one in entries)
    sizes = ["memory", "sends", *["leaves a host"] * across]
    head = ["step", "overlapped", *sizes, "mesh", "layout", "at rest", *names]
    moves, checked = (any(map(test, entries)) for test in (_has_conflicts, _is_verified))
    head += [*["conflicts"] * moves, *["compiled"] * checked]
    rows = [[*head, "to be faster"]]
    before = faster[-1] if faster else None
    for one in entries:
        row = [
            format_seconds(one.seconds),
            format_seconds(one.least_seconds),
            human(one.memory_bytes),
            human(one.wire_bytes),
            *[human(one.host_bytes)] * across,
            " ".join(f"{name}={size}" for name, size in one.mesh.to_json().items()),
            one.layout.text,
            "" if one.params is None else one.params.text,
            *(str(one.choices[name]) for name in names),
            *["cheapest" if _has_conflicts(one) else ""] * moves,
            *[str(one.verified or "")] * checked,
        ]
        trade = ""
        if before is not None and before.memory_bytes >= one.memory_bytes:
            more = human(before.memory_bytes - one.memory_bytes)
            trade = f"{1 - before.seconds / one.seconds:.1%} for {more} more"
        rows.append([*row, trade])
        before = one
    return rows
