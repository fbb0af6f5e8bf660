"""Verification: what the compiler makes of a plan that a search found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from namedmesh.dims.mesh import Mesh
from namedmesh.display.text import human
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.hardware import Hardware
from namedmesh.hardware.slice_links import TorusSlice
from namedmesh.hardware.target import Target
from namedmesh.planning.plan import Plan


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
