"""remat="fit": as little computed again in the backward pass as fits the memory of a target."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

from namedmesh.display.text import human
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.program import Program
from namedmesh.planning.plan import Plan

PARTS = 8  # of what can be stored, in which it is chosen
# Of the memory: estimates are within a tenth of what compilers take, and the runtime has its share.
USABLE = 0.9


def fit_plan(program: Program, options: Mapping[str, Any], target: Any, verify: bool) -> Plan:
    """Plan a program with as little computed again as fits, and tell it in its decisions."""
    import namedmesh as nm  # costs and compilers are in rooms that import this one

    def decide(plan: Plan, text: str) -> Plan:
        return replace(plan, decisions=MappingProxyType({**plan.decisions, text: ()}))

    retrace, told = program.retrace, ""
    assert retrace is not None, "a program without a choice"
    if target is None:
        told = "remat='fit' computes everything again: without target= the memory is not known"
        return decide(nm.plan(replace(program, retrace=None), **options), told)
    hardware = target if isinstance(target, nm.Hardware) else nm.Hardware.parse(target)

    @cache
    def estimate(parts: int) -> tuple[int, Plan]:
        """Return the memory of a step that stores so many parts, and its plan."""
        plan = nm.plan(retrace(parts / PARTS), **options)
        return nm.cost(plan, hardware).memory.peak_bytes, plan

    most, plan = estimate(PARTS)
    devices = plan.mesh.devices if hardware.shared else 1  # that have the memory together
    usable, stored = USABLE * hardware.memory_bytes / devices, PARTS
    if most > usable:  # the more is stored, the more memory it takes
        stored = bisect_right(range(PARTS), usable, key=lambda parts: estimate(parts)[0]) - 1
    while verify and stored >= 0:
        artifact = nm.export(estimate(stored)[1].program, **options)
        place = f"cpu:{plan.mesh.devices}" if hardware.shared else str(target)
        report = nm.aot.compile_for(artifact, place)
        told = f", {human(report.peak_bytes or 0)} by the compiler"
        if report.fits:
            break
        stored -= 1
    peak, plan = estimate(max(stored, 0))
    by = "by estimate" if hardware.memory_known else "by the plan's tensors"
    takes = f"{human(peak)} {by}{told}, of {human(usable)} that a step may use on {target}"
    if stored < 0:
        raise NamedMeshError(
            f"{program.name} does not fit with everything computed again (remat='fit')",
            *(takes, f"mesh: {plan.mesh}", f"layout: {plan.layout.text}"),
            fix="use more devices, keep weights and slots in shards with params=, or take smaller "
            "batches; nm.cost(plan, target) lists what takes memory",
        )
    takes += f"; all of it takes {human(most)}" if stored < PARTS else ""
    return decide(plan, f"remat='fit' stores {stored}/{PARTS} of what spares products: {takes}")
