"""Audit: the collectives the compiler made against the collectives the plan has."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from namedmesh.dims.collective import Collective
from namedmesh.dims.errors import NamedMeshError
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.source import caller
from namedmesh.hlo.communication import CompiledCollective, find_collectives
from namedmesh.hlo.module import Module

_ENCLOSING = "/namedmesh/"  # jax puts jit(...)/namedmesh/ before the names of a module's ops
# Backends may send these dtypes as others.
_SENT_AS = {
    "float32": ("bfloat16",),
    "bfloat16": ("float32",),
    "float16": ("float32",),
    "bool": ("uint8", "int32"),
}


@dataclass
class Audit:
    """What a plan has and what the compiler made of it.

    Attributes:
        matched: Planned collectives, each with the one the compiler made for it.
        merged: Planned collectives that were made as a part of a matched one.
        unplanned: Collectives that the compiler made and the plan does not have.
        missing: Planned collectives that the compiler did not make.
        notes: What the compiler did differently, in sentences.

    Example:
        >>> from namedmesh.hlo import CompiledCollective
        >>> from namedmesh.runtime import Audit
        >>> unplanned = CompiledCollective("AllReduce", ("data",), 8, "float32", "nm.sum.1", "r")
        >>> print(Audit(unplanned=[unplanned]))
        audit: 0 as planned, 1 unplanned, 0 not made
          unplanned AllReduce ('data',) 8 float32 nm.sum.1
    """

    matched: list[tuple[Collective, CompiledCollective]] = field(default_factory=list)
    merged: list[Collective] = field(default_factory=list)
    unplanned: list[CompiledCollective] = field(default_factory=list)
    missing: list[Collective] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether plan and compiler agree on every collective."""
        return not self.unplanned and not self.missing

    def count(self, kind: str) -> int:
        """How many collectives of a kind the compiled code has, loops counted once.

        Args:
            kind: Such as `AllReduce`; of a matched collective, the planned kind counts.

        Returns:
            The count.
        """
        return sum(planned.kind == kind for planned, _ in self.matched) + sum(
            one.kind == kind for one in self.unplanned
        )

    def enforce(self, strict: bool | None) -> None:
        """Warns about collectives that were not planned, or raises.

        Args:
            strict: Whether to raise; None follows the environment variable NAMEDMESH_STRICT.

        Raises:
            NamedMeshError: If strict and there is an unplanned collective; it names all of them.
        """
        if not self.unplanned:
            return
        if strict is None:
            strict = os.environ.get("NAMEDMESH_STRICT", "") not in ("", "0")
        count = len(self.unplanned)
        problem = (
            f"the compiler made {count} collective{'s'[: count - 1]} that the plan does not have"
        )
        details = [_describe_unplanned(one) for one in self.unplanned]
        if strict:
            raise NamedMeshError(
                problem,
                *details,
                fix="reshard or replicate the tensors named here explicitly, "
                "or run with strict=False",
            )
        line = caller()
        warnings.warn_explicit("\n  ".join([problem, *details]), UserWarning, line.file, line.line)

    def __str__(self) -> str:
        known = len(self.matched) + len(self.merged)
        lines = [
            f"audit: {known} as planned, {len(self.unplanned)} unplanned, "
            f"{len(self.missing)} not made"
        ]
        lines += [
            f"  unplanned {one.kind} {one.axes} {one.elements} {one.dtype} {one.op_name}"
            for one in self.unplanned
        ]
        lines += [
            f"  not made {one.kind} {'+'.join(one.axes)} of {one.tensor} ({one.op})"
            for one in self.missing
        ]
        return "\n".join(lines + [f"  {note}" for note in self.notes])


def audit(module: Module, mesh: Mesh, planned: Sequence[Collective]) -> Audit:
    """Matches every collective of a compiled module with one of the plan, best evidence first.

    Args:
        module: The compiled module.
        mesh: The mesh it was compiled for.
        planned: The collectives that the plan has.

    Returns:
        What matches, and what does not.
    """
    result = Audit(missing=list(planned))
    # A collective among groups of one device communicates nothing.
    result.unplanned = [one for one in find_collectives(module, mesh) if one.axes != ()]
    _match_each(result)
    _match_merged(result)
    _match_added(result)
    result.notes = [
        f"{note} ({count} times)" if count > 1 else note
        for note, count in Counter(result.notes).items()
    ]
    return result


def _match_each(result: Audit) -> None:
    """Matches one compiled collective with one planned one, by ever weaker evidence."""
    tests: tuple[Callable[[Collective, CompiledCollective], bool], ...] = (
        lambda plan, one: _same(plan, one) and _names_op(one.op_name, plan.op),
        lambda plan, one: _same(plan, one),
        lambda plan, one: _as_reduce("ReduceScatter", plan, one),
        lambda plan, one: _altered(plan, one) and _names_op(one.op_name, plan.op),
        lambda plan, one: _altered(plan, one),
        lambda plan, one: _as_reduce("AllGather", plan, one),
    )
    taken: Counter[str] = Counter()  # a tensor that has none yet goes before the second of another
    for test in tests:
        for one in list(result.unplanned):
            fitting = [i for i, plan in enumerate(result.missing) if test(plan, one)]
            if fitting:
                best = min(fitting, key=lambda i: taken[result.missing[i].tensor])
                plan = result.missing.pop(best)
                taken[plan.tensor] += 1
                _remove(result.unplanned, [one])
                result.matched.append((plan, one))
                result.notes += _notes(plan, one)


def _match_merged(result: Audit) -> None:
    """Matches an AllReduce over several axes with planned ones that follow each other."""
    for one in list(result.unplanned):
        parts = _merged_parts(result.missing, one)
        if parts:
            _remove(result.unplanned, [one])
            _remove(result.missing, parts)
            result.matched.append((replace(parts[0], axes=one.axes or ()), one))
            result.merged += parts[1:]
            result.notes.append(
                f"{len(parts)} planned AllReduces of {one.dtype}, one after the other, made as one"
            )


def _match_added(result: Audit) -> None:
    """Matches planned AllReduces of parts of a sum with the one AllReduce of the sum."""
    for plan in list(result.missing):
        if any(_added(plan, other, one) for other, one in result.matched):
            _remove(result.missing, [plan])
            result.merged.append(plan)
            result.notes.append(
                f"planned AllReduces of {plan.tensor}, which are added up, made as one of their sum"
            )


def _remove(values: list, removed: Iterable[object]) -> None:
    """Takes these very objects out of a list, where others may be equal to them."""
    gone = {id(value) for value in removed}
    values[:] = [value for value in values if id(value) not in gone]


def _names_op(op_name: str, op: str) -> bool:
    """Whether the compiler's metadata names a planned op, and not one whose name only starts so."""
    scope = f"nm.{op}"
    start = op_name.find(scope)
    while start >= 0:
        following = op_name[start + len(scope) : start + len(scope) + 1]
        if not (following.isalnum() or following in ("_", ".")):
            return True
        start = op_name.find(scope, start + 1)
    return False


def _same(plan: Collective, one: CompiledCollective) -> bool:
    """The same collective; a permutation's axes depend on which devices it leaves alone."""
    alike = (plan.kind, plan.elements, plan.dtype) == (one.kind, one.elements, one.dtype)
    return alike and (one.kind == "CollectivePermute" or plan.axes == one.axes)


def _as_reduce(kind: str, plan: Collective, one: CompiledCollective) -> bool:
    """A planned collective of a kind where the backend sums instead, and slices or adds zeros."""
    if plan.kind != kind or one.kind != "AllReduce":
        return False
    return _same(replace(plan, kind="AllReduce"), one)


def _altered(plan: Collective, one: CompiledCollective) -> bool:
    """The same elements sent in another precision, by the backend's choice."""
    if one.dtype not in _SENT_AS.get(plan.dtype, ()):
        return False
    changed = replace(plan, dtype=one.dtype)
    return _same(changed, one) or _as_reduce("ReduceScatter", changed, one)


def _added(plan: Collective, other: Collective, one: CompiledCollective) -> bool:
    """Whether two planned AllReduces are of parts of one gradient, or of one line run twice."""
    same = all(
        getattr(plan, name) == getattr(other, name)
        for name in ("kind", "tensor", "elements", "dtype", "times", "phase", "axes")
    )
    parts = plan.phase == "backward" or plan.source == other.source
    return same and parts and plan.kind == one.kind == "AllReduce"


def _merged_parts(planned: Sequence[Collective], one: CompiledCollective) -> list[Collective]:
    """Planned AllReduces of one tensor, each over other axes, that were made as one over all."""
    if one.kind != "AllReduce" or not one.axes:
        return []
    for first in planned:
        parts: list[Collective] = []
        axes: set[str] = set()
        for plan in planned:
            alike = plan.op == first.op and _same(replace(plan, axes=one.axes), one)
            if alike and not axes & {*plan.axes}:
                parts.append(plan)
                axes |= {*plan.axes}
        if axes == {*one.axes}:
            return parts
    return []


def _notes(plan: Collective, one: CompiledCollective) -> list[str]:
    """What the compiler did differently, in sentences."""
    notes = []
    if plan.kind != one.kind:
        how = (
            "followed by a slice"
            if plan.kind == "ReduceScatter"
            else "of pieces that are zero elsewhere"
        )
        notes.append(f"planned {plan.kind} made as {one.kind} {how}")
    if plan.dtype != one.dtype:
        notes.append(f"planned {plan.kind} of {plan.dtype} sent as {one.dtype}")
    return notes


def _describe_unplanned(one: CompiledCollective) -> str:
    """A collective that was not planned, and the op it comes from."""
    axes = "+".join(one.axes) if one.axes else "other groups"
    op = one.op_name
    if op.startswith("jit("):
        op = op.partition(_ENCLOSING)[2] or op
    origin = op or one.name
    return f"{one.kind} over {axes} of {one.elements} {one.dtype} elements, from {origin}"
