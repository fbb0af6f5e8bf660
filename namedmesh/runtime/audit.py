"""Audit: the collectives the compiler made against the collectives the plan has."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from namedmesh.dims.errors import NamedMeshError
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.source import caller
from namedmesh.hlo.collectives import Found, collectives

_AROUND = r"^jit\(.*?\)/namedmesh/"  # what jax puts before the names of a module's ops
ALTERED = {
    "float32": ("bfloat16",),
    "bfloat16": ("float32",),
    "float16": ("float32",),
    "bool": ("uint8", "int32"),
}


@dataclass
class Audit:
    """What was planned and found, what was made as part of that, what was not planned, what was planned and not found."""

    matched: list[tuple[dict[str, Any], Found]] = field(default_factory=list)
    merged: list[dict[str, Any]] = field(default_factory=list)
    unplanned: list[Found] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether plan and compiler agree on every collective."""
        return not self.unplanned and not self.missing

    def count(self, kind: str) -> int:
        """How many collectives of a kind the compiled code has, loops counted once; planned kinds where matched."""
        return sum(planned["kind"] == kind for planned, _ in self.matched) + sum(
            one.kind == kind for one in self.unplanned
        )

    def enforce(self, strict: bool | None) -> None:
        """Raises for a collective that was not planned, or warns; strict unless said follows NAMEDMESH_STRICT."""
        if not self.unplanned:
            return
        strict = (
            os.environ.get("NAMEDMESH_STRICT", "") not in ("", "0") if strict is None else strict
        )
        count = len(self.unplanned)
        problem = (
            f"the compiler made {count} collective{'s'[: count - 1]} that the plan does not have"
        )
        details = [
            f"{one.kind} over {'+'.join(one.axes) if one.axes else 'other groups'} of {one.elements} {one.dtype} elements, "
            f"from {re.sub(_AROUND, '', one.op) or one.name}"
            for one in self.unplanned
        ]
        if strict:
            raise NamedMeshError(
                problem,
                *details,
                fix="reshard or replicate the tensors named here explicitly, or run with strict=False",
            )
        line = caller()
        warnings.warn_explicit("\n  ".join([problem, *details]), UserWarning, line.file, line.line)

    def __str__(self) -> str:
        known = len(self.matched) + len(self.merged)
        lines = [
            f"audit: {known} as planned, {len(self.unplanned)} unplanned, {len(self.missing)} not made"
        ]
        lines += [
            f"  unplanned {one.kind} {one.axes} {one.elements} {one.dtype} {one.op}"
            for one in self.unplanned
        ]
        lines += [
            f"  not made {one['kind']} {'+'.join(one['axes'])} of {one['tensor']} ({one['op']})"
            for one in self.missing
        ]
        return "\n".join(lines + [f"  {note}" for note in self.notes])


def audit(text: str, mesh: Mesh, planned: Sequence[dict[str, Any]]) -> Audit:
    """Matches every collective in compiled HLO text with one of the plan, best evidence first."""
    result = Audit()
    open_found = [one for one in collectives(text, mesh) if one.axes != ()]
    open_planned = list(planned)
    tests = (
        lambda plan, one: _same(plan, one) and _attributed(plan, one),
        lambda plan, one: _same(plan, one),
        lambda plan, one: _as_reduce("ReduceScatter", plan, one),
        lambda plan, one: _altered(plan, one) and _attributed(plan, one),
        lambda plan, one: _altered(plan, one),
        lambda plan, one: _as_reduce("AllGather", plan, one),
    )
    taken: Counter[str] = Counter()  # a tensor that has none yet goes before the second of another
    for test in tests:
        for one in list(open_found):
            fitting = [plan for plan in open_planned if test(plan, one)]
            if fitting:
                plan = min(fitting, key=lambda plan: taken[plan["tensor"]])
                taken[plan["tensor"]] += 1
                open_found.remove(one)
                open_planned.remove(plan)
                result.matched.append((plan, one))
                result.notes += _notes(plan, one)
    for one in list(open_found):
        parts = _merged(open_planned, one)
        if parts:
            open_found.remove(one)
            open_planned = [
                plan for plan in open_planned if not any(plan is part for part in parts)
            ]
            result.matched.append(({**parts[0], "axes": list(one.axes or ())}, one))
            result.merged += parts[1:]
            result.notes.append(
                f"{len(parts)} planned AllReduces of {one.dtype}, one after the other, made as one"
            )
    for plan in list(open_planned):
        if any(_added(plan, other, one) for other, one in result.matched):
            open_planned.remove(plan)
            result.merged.append(plan)
            result.notes.append(
                f"planned AllReduces of {plan['tensor']}, which are added up, made as one of their sum"
            )
    result.unplanned, result.missing = open_found, open_planned
    result.notes = [
        f"{note} ({count} times)" if count > 1 else note
        for note, count in Counter(result.notes).items()
    ]
    return result


def _attributed(plan: dict[str, Any], one: Found) -> bool:
    """Whether the compiler's metadata names the planned op."""
    return re.search(rf"nm\.{re.escape(plan['op'])}(?![\w.])", one.op) is not None


def _same(plan: dict[str, Any], one: Found) -> bool:
    """The same collective; which axes a permutation seems to run along depends on which devices it leaves alone."""
    alike = (plan["kind"], plan["elements"], plan["dtype"]) == (one.kind, one.elements, one.dtype)
    return alike and (one.kind == "CollectivePermute" or tuple(plan["axes"]) == one.axes)


def _as_reduce(kind: str, plan: dict[str, Any], one: Found) -> bool:
    """A planned ReduceScatter where the backend reduces and then slices, or AllGather where it sums pieces zero elsewhere."""
    return (
        plan["kind"] == kind
        and one.kind == "AllReduce"
        and _same({**plan, "kind": "AllReduce"}, one)
    )


def _added(plan: dict[str, Any], other: dict[str, Any], one: Found) -> bool:
    """Whether two planned AllReduces are of parts of one gradient, or of one line run twice, which may be added up first."""
    same = all(
        plan[name] == other[name]
        for name in ("kind", "tensor", "elements", "dtype", "times", "phase", "axes")
    )
    parts = plan["phase"] == "backward" or plan["source"] == other["source"]
    return same and parts and plan["kind"] == one.kind == "AllReduce"


def _altered(plan: dict[str, Any], one: Found) -> bool:
    """The same elements sent in another precision, by the backend's choice."""
    if one.dtype not in ALTERED.get(plan["dtype"], ()):
        return False
    changed = {**plan, "dtype": one.dtype}
    return _same(changed, one) or _as_reduce("ReduceScatter", changed, one)


def _merged(planned: Sequence[dict[str, Any]], one: Found) -> list[dict[str, Any]]:
    """Planned AllReduces of one tensor, each over other axes, that the compiler made as one over all of them."""
    for first in planned:
        parts: list[dict[str, Any]] = []
        for plan in planned:
            alike = plan["op"] == first["op"] and _same({**plan, "axes": one.axes or ()}, one)
            if alike and not {*plan["axes"]} & {axis for part in parts for axis in part["axes"]}:
                parts.append(plan)
        if one.kind == "AllReduce" and {axis for part in parts for axis in part["axes"]} == {
            *(one.axes or ())
        }:
            return parts
    return []


def _notes(plan: dict[str, Any], one: Found) -> list[str]:
    notes = []
    if plan["kind"] != one.kind:
        how = (
            "followed by a slice"
            if plan["kind"] == "ReduceScatter"
            else "of pieces that are zero elsewhere"
        )
        notes.append(f"planned {plan['kind']} made as {one.kind} {how}")
    if plan["dtype"] != one.dtype:
        notes.append(f"planned {plan['kind']} of {plan['dtype']} sent as {one.dtype}")
    return notes
