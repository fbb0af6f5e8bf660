"""The result of a search: the front of time and memory, and why nothing else is on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from namedmesh.cost.cost import format_seconds
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.display.text import columns, human
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.hardware import Hardware
from namedmesh.hardware.links import TorusSlice
from namedmesh.hardware.topology import Target
from namedmesh.ir.program import Program
from namedmesh.planning.plan import Plan
from namedmesh.planning.plan_program import plan as make_plan
from namedmesh.search.exploration import OVER, TOO_LARGE
from namedmesh.search.measure import Measure


@dataclass(frozen=True)
class Verified:
    """A plan that was compiled ahead of time.

    Attributes:
        target: What it was compiled for.
        exact: Whether the compiler made the planned collectives and no others; None if the step
            did not fit, or was not compiled.
        memory_bytes: The peak of a device's memory by the compiler.
        seconds: How long compiling took.
        problems: What is not as planned, or why it does not compile.
    """

    target: str
    exact: bool | None
    memory_bytes: int | None
    seconds: float
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as values that JSON has."""
        return {**asdict(self), "problems": list(self.problems)}

    def __str__(self) -> str:
        if self.exact is None:
            return f"not on {self.target}"
        verdict = "as planned" if self.exact else "NOT as planned"
        size = "" if self.memory_bytes is None else f", {human(self.memory_bytes)}"
        return f"{self.target}: {verdict}{size}"


def find_target(hardware: Hardware, mesh: Mesh) -> Target:
    """Return what to compile for: TPU slices of as many cores, or CPU devices for anything else."""
    if isinstance(hardware.network, TorusSlice):
        return hardware.network.target(mesh)
    return Target("cpu", "", (mesh.devices,))


def verify_plan(plan: Plan, target: Target) -> Verified:
    """Lower a plan, compiles it ahead of time and audits it."""
    from namedmesh.aot.compilation import compile_for
    from namedmesh.lowering.export import export_planned

    artifact = export_planned(plan)
    try:
        try:
            report = compile_for(artifact, target)
        except NamedMeshError:
            if target.platform == "cpu":
                raise
            target = Target("cpu", "", (plan.mesh.devices,))
            report = compile_for(artifact, target)
    except NamedMeshError as error:
        return Verified(str(target), None, None, 0.0, (error.problem,))
    exact = report.audit.exact if report.audit and report.fits else None
    problems = tuple(report.audit.describe_problems()) if report.audit else ()
    if report.error:
        problems = (report.error, *problems)
    return Verified(str(target), exact, report.peak_bytes, report.compile_seconds, problems)


@dataclass(frozen=True)
class Entry:
    """One mesh and layout that a search found, and what it takes.

    Attributes:
        mesh: The devices.
        layout: Which dimensions lie on which axes.
        params: The same for parameters at rest; None where they lie as in use.
        choices: What the program was made with, such as `{"remat": "full"}`.
        takes: Its time and memory by the plan.
        program: The program.
        verified: What the compiler made of it, if it was asked.
    """

    mesh: Mesh
    layout: Layout
    params: Layout | None
    choices: Mapping[str, Any]
    takes: Measure
    program: Program = field(repr=False, compare=False)
    verified: Verified | None = None

    @property
    def seconds(self) -> float:
        """The time of a step where nothing overlaps."""
        return self.takes.seconds

    @property
    def least_seconds(self) -> float:
        """The time of a step where computation and communication overlap perfectly."""
        return self.takes.least_seconds

    @property
    def memory_bytes(self) -> int:
        """The peak of a device's memory."""
        return self.takes.memory_bytes

    @property
    def wire_bytes(self) -> int:
        """What one device sends in a step."""
        return self.takes.wire_bytes

    @property
    def host_bytes(self) -> int:
        """What one host sends to others in a step."""
        return self.takes.host_bytes

    def plan(self) -> Plan:
        """Return the plan."""
        return make_plan(self.program, self.mesh, self.layout, self.params)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as values that JSON has."""
        takes = self.takes.to_json()
        del takes["refused"], takes["conflict"]
        return {
            "mesh": self.mesh.to_json(),
            "layout": self.layout.text,
            "params": None if self.params is None else self.params.text,
            "choices": dict(self.choices),
            **takes,
            "verified": None if self.verified is None else self.verified.to_json(),
        }


@dataclass(frozen=True)
class Search:
    """The result of `nm.search`.

    Attributes:
        program: The program's name.
        devices: How many devices a mesh has.
        target: What they are.
        memory: What one of them holds, in bytes.
        front: What fits and than which nothing planned is both faster and smaller, fastest first.
        too_large: What would be faster and does not fit, fastest first.
        enumerated: How many candidates there were.
        planned: How many of them were planned.
        reasons: How many are not on the front, by reason.
        refusals: How many the planner refused, by what it said.
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
    elapsed: float = field(compare=False, default=0.0)

    @property
    def best(self) -> Entry:
        """The fastest that fits.

        Raises:
            NamedMeshError: Nothing fits.
        """
        if self.front:
            return self.front[0]
        place = f"{self.program} on {self.devices:,} devices"
        reasons = [f"{count:,}: {reason}" for reason, count in self.reasons.items()]
        if not self._lacks_memory:
            raise NamedMeshError(
                f"no layout of {place} can be planned",
                *reasons,
                fix="pin less, or use a number of devices that divides more dimensions",
            )
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
    def _lacks_memory(self) -> bool:
        """Whether a candidate was left out for its memory."""
        return any(reason in self.reasons for reason in (TOO_LARGE, OVER))

    def to_json(self) -> dict[str, Any]:
        """Return the result as values that JSON has."""
        return {
            "program": self.program,
            "devices": self.devices,
            "target": self.target,
            "memory": self.memory,
            "front": [one.to_json() for one in self.front],
            "too_large": [one.to_json() for one in self.too_large],
            "enumerated": self.enumerated,
            "planned": self.planned,
            "reasons": dict(self.reasons),
            "refusals": dict(self.refusals),
            "elapsed": self.elapsed,
        }

    def __str__(self) -> str:
        head = (
            f"search of {self.program} on {self.devices:,} devices of {self.target}, "
            f"{human(self.memory)} each: {self.enumerated:,} candidates, {self.planned:,} planned "
            f"in {self.elapsed:.1f} s"
        )
        parts = [head, *self._tables()]
        reasons = [(f"{count:,}", reason) for reason, count in self.reasons.items()]
        if reasons:
            width = max(len(count) for count, _ in reasons)
            lines = [f"  {count.rjust(width)}  {reason}" for count, reason in reasons]
            parts.append("\n".join(["why not the others", *lines]))
        return "\n\n".join(parts)

    def _tables(self) -> Iterator[str]:
        """The front, and what is faster and does not fit."""
        if self.front:
            yield "\n".join(_tabulate(self.front, self.too_large))
        else:
            yield "nothing fits" if self._lacks_memory else "nothing can be planned"
        if self.too_large:
            yield "\n".join(["faster, and too large", *_tabulate(self.too_large, ())])


def _tabulate(entries: tuple[Entry, ...], faster: tuple[Entry, ...]) -> list[str]:
    """A table of entries; each has what the next faster one takes."""
    names = [*entries[0].choices]
    across = any(one.mesh.hosts > 1 for one in entries)
    sizes = ["memory", "sends", *["leaves a host"] * across]
    head = ["step", "overlapped", *sizes, "mesh", "layout", "at rest", *names]
    checked = any(one.verified for one in entries)
    head += ["compiled"] if checked else []
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
        ]
        row += [str(one.verified or "")] if checked else []
        rows.append([*row, _describe_step(one, before)])
        before = one
    return columns(rows)


def _describe_step(entry: Entry, faster: Entry | None) -> str:
    """What the next faster entry takes more."""
    if faster is None:
        return ""
    more = faster.memory_bytes - entry.memory_bytes
    return f"{1 - faster.seconds / entry.seconds:.1%} for {human(more)} more"
