"""Matching for several TPU slices, of which the compiler makes the code of one.

Groups of devices are those of a slice. What crosses slices is sent to the host and received from
it, and the runtime carries it over the data-centre network.
"""

from __future__ import annotations

from collections.abc import Sequence

from namedmesh.audit.backend_rules import BETWEEN_SLICES, BackendRule
from namedmesh.audit.hlo.communication import CompiledCollective, find_collectives
from namedmesh.audit.hlo.module import Module
from namedmesh.audit.matching import Matching, match_collectives
from namedmesh.dims.mesh import Mesh
from namedmesh.records.collective import Collective

_PARTS = ("AllReduce", "ReduceScatter", "AllGather")  # of a sum over several slices
_CROP = "a call of ZeroCrop"  # takes padding off what is sent
_SUMS = '_xla_megascale_transfer_type="ALL_REDUCE"'  # what the runtime does with what is sent


def match_slices(
    planned: Sequence[Collective], module: Module, mesh: Mesh, rules: Sequence[BackendRule]
) -> Matching:
    """Match what a slice's code communicates with what is planned for all slices."""
    inner = mesh.one_block(mesh.slices)
    compiled = [one for one in find_collectives(module, inner) if one.axes != () and one.times]
    summing = _find_summing(module)
    carried = [one for one in compiled if one.name in summing or one.name.endswith(_CROP)]
    inside = [one for one in compiled if one not in carried]
    result = match_collectives(
        [one for one in planned if not one.slice_bytes], inside, inner, rules
    )
    crossing = [one for one in planned if one.slice_bytes]
    sums = [one for one in crossing if one.kind == "AllReduce"]
    parts = [one for one in result.unplanned if _is_part(one, sums, inner)]
    if sums and BETWEEN_SLICES in rules and _covers(carried, parts, sums, inner):
        sent = [one for one in carried if one.kind == "Send"]
        largest = sorted(sums, key=lambda plan: -plan.elements)
        pairs = [*zip(largest, sorted(sent, key=lambda one: -one.elements), strict=False)]
        result.matched += pairs
        result.merged += largest[len(pairs) :]
        result.helpers += [*parts, *(one for one in carried if one.kind != "Send")]
        result.unplanned = [one for one in result.unplanned if one not in parts]
        result.rules[BETWEEN_SLICES.name] += len(sums)
        carried = sorted(sent, key=lambda one: -one.elements)[len(pairs) :]
        crossing = [one for one in crossing if one not in sums]
    result.unplanned += carried
    result.missing += crossing
    return result


def _find_summing(module: Module) -> set[str]:
    """Find the Sends and Recvs between which the runtime adds up what all slices sent."""
    return {
        one.name
        for _, one in module.instructions()
        if one.opcode in ("send", "recv") and _SUMS in one.attributes.get("frontend_attributes", "")
    }


def _inner_axes(plan: Collective, inner: Mesh) -> tuple[str, ...]:
    """The axes along which a collective has several devices in one slice."""
    return tuple(axis for axis in plan.axes if inner.axes[axis] > 1)


def _is_part(one: CompiledCollective, sums: Sequence[Collective], inner: Mesh) -> bool:
    """Whether a collective inside a slice can be a part of a sum over several."""
    return one.kind in _PARTS and any(one.axes == _inner_axes(plan, inner) for plan in sums)


def _covers(
    carried: Sequence[CompiledCollective],
    parts: Sequence[CompiledCollective],
    sums: Sequence[Collective],
    inner: Mesh,
) -> bool:
    """Whether as much is added up inside, sent, received and gathered as the sums need."""

    def count(kind: str, ones: Sequence[CompiledCollective]) -> int:
        return sum(one.elements * one.times for one in ones if one.kind == kind)

    needed = sum(
        plan.elements * plan.times // inner.size(_inner_axes(plan, inner)) for plan in sums
    )
    within = sum(plan.elements * plan.times for plan in sums if _inner_axes(plan, inner))
    scattered = count("ReduceScatter", parts)
    return (
        count("Send", carried) == count("Recv", carried) >= needed
        and scattered + count("AllReduce", parts) >= within
        and scattered == count("AllGather", parts)
    )
