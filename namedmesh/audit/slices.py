"""Several TPU slices: the code of one of them, matched with a plan for all.

What crosses slices is sent to the host and received from it, and the runtime carries it over the
data-centre network. Attributes say what it does, and between which devices. Metadata names no op.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from namedmesh.audit.backend_rules import ACROSS_SLICES, BETWEEN_SLICES, BackendRule, alter
from namedmesh.audit.hlo.communication import OTHER, CompiledCollective, find_collectives
from namedmesh.audit.hlo.module import Module
from namedmesh.audit.matching import Matching, find_pairs, match_collectives
from namedmesh.dims.hop import list_groups
from namedmesh.dims.mesh import Mesh
from namedmesh.records.collective import Collective

_KINDS = {
    "ALL_GATHER": "AllGather", "ALL_REDUCE": "AllReduce", "ALL_TO_ALL": "AllToAll",
    "ONE_TO_ONE": "CollectivePermute", "REDUCE_SCATTER": "ReduceScatter",
}  # fmt: skip
_REDUCTIONS = {"SUM": "add", "MAX": "max", "MIN": "min", "PRODUCT": "mul"}
_ATTRIBUTE = re.compile(r'_xla_(?:megascale|host_transfer)_(\w+)=("[^"]*"|\{\{.*?\}\})')
_SLICES = re.compile(r"(.*)x\{(\d+):(\d+)\}")  # {1,2}x{0:3}: device 0 to 3 of two slices each
_LIST = re.compile(r"\{([\d,]+|\d+->\d+)\}")
_FIRST_OF_SLICE = 100_000  # 200003 is device 3 of the second slice
_PARTS = ("AllReduce", "ReduceScatter", "AllGather")  # of a sum over several slices
_CROP = "a call of ZeroCrop"  # removes the padding of what is sent
Groups = frozenset[tuple[int, ...]]


@dataclass(frozen=True)
class SliceTransfer:
    """A Send and the Recv of the same name, between which the runtime carries data."""

    kind: str  # as in plans
    groups: Groups  # of devices as the mesh numbers them; senders with their receivers
    reduction: str
    send: CompiledCollective
    recv: CompiledCollective

    @property
    def elements(self) -> int:
        """The elements that a device sends or receives, whichever is more."""
        return max(self.send.elements, self.recv.elements)


def match_slices(
    planned: Sequence[Collective],
    module: Module,
    mesh: Mesh,
    rules: Sequence[BackendRule],
    ops: Iterable[str] = (),
) -> Matching:
    """Match the collectives of one slice's code with those planned for all slices."""
    inner = mesh.one_block(mesh.slices)
    compiled = [one for one in find_collectives(module, inner) if one.axes != () and one.times]
    transfers = _find_transfers(module, mesh, compiled)
    sent = {end.name for one in transfers for end in (one.send, one.recv)}
    inside = [one for one in compiled if one.name not in sent and not one.name.endswith(_CROP)]
    crops = [one for one in compiled if one.name.endswith(_CROP)]
    local = [one for one in planned if not one.slice_bytes]
    result = match_collectives(local, inside, inner, rules, ops)
    missing = []
    for plan in (one for one in planned if one.slice_bytes):
        alone = plan.kind != "AllReduce" and ACROSS_SLICES in rules
        if not (alone and _match_one(plan, transfers, result, mesh, rules)):
            missing.append(plan)
    for how in sorted({plan.reduction for plan in missing if plan.kind in _PARTS[:2]}):
        sums = [one for one in missing if one.kind in _PARTS[:2] and one.reduction == how]
        if BETWEEN_SLICES in rules and _match_sums(sums, how, transfers, result, mesh):
            missing = [one for one in missing if one not in sums]
    (result.unplanned if transfers or missing else result.helpers).extend(crops)
    result.unplanned += [end for one in transfers for end in (one.send, one.recv)]
    result.missing += missing
    return result


def _find_transfers(
    module: Module, mesh: Mesh, compiled: Sequence[CompiledCollective]
) -> list[SliceTransfer]:
    """Pair Sends and Recvs by the name under which the runtime knows them."""
    ends = {one.name: one for one in compiled if one.kind in ("Send", "Recv")}
    named: dict[tuple[str, ...], dict[str, CompiledCollective]] = {}
    for _, one in module.instructions():
        if one.name in ends and one.opcode in ("send", "recv"):
            found = _ATTRIBUTE.findall(one.attributes.get("frontend_attributes", ""))
            told = {key: value.strip('"') for key, value in found}
            key = tuple(
                told.get(name, "")
                for name in ("rendezvous", "transfer_type", "target", "reduce_operation")
            )
            if key[1] in _KINDS:
                named.setdefault(key, {})[one.opcode] = ends[one.name]
    return [
        SliceTransfer(
            _KINDS[kind],
            _read_groups(target, mesh),
            _REDUCTIONS.get(how, OTHER) if how else "",
            pair["send"],
            pair["recv"],
        )
        for (_, kind, target, how), pair in named.items()
        if len(pair) == 2 and pair["send"].times == pair["recv"].times
    ]


def _read_groups(text: str, mesh: Mesh) -> Groups:
    """Read groups of devices, or pairs, as the mesh numbers them; none if they are unknown."""
    inside = mesh.devices // mesh.slices
    order = mesh.device_assignment or range(mesh.devices)
    places = {number: place for place, number in enumerate(order)}

    def place(number: int) -> int:
        return places.get((number // _FIRST_OF_SLICE - 1) * inside + number % _FIRST_OF_SLICE, -1)

    slices = _SLICES.fullmatch(text)
    lists = [re.split(r",|->", one) for one in _LIST.findall(slices[1] if slices else text)]
    if slices:
        devices = range(int(slices[2]), int(slices[3]) + 1)
        numbers = [
            [int(one) * _FIRST_OF_SLICE + device for one in group]
            for group in lists
            for device in devices
        ]
    else:
        numbers = [[int(one) for one in group] for group in lists]
    return frozenset(tuple(place(number) for number in group) for group in numbers)


def _expect_groups(plan: Collective, mesh: Mesh) -> tuple[Groups, frozenset[tuple[int, int]]]:
    """Return the groups of what crosses slices, and the pairs of a permutation that do not."""
    if plan.kind == "CollectivePermute":
        pairs = find_pairs(plan.hop, plan.order, plan.receivers, mesh)
        inside = mesh.devices // mesh.slices
        far = frozenset(pair for pair in pairs if pair[0] // inside != pair[1] // inside)
        return far, frozenset((a % inside, b % inside) for a, b in pairs - far)
    if plan.kind == "AllToAll":
        rows = list_groups(plan.order or plan.axes, mesh)
    else:
        inner, sizes = mesh.one_block(mesh.slices), {}
        for axis, size in mesh.axes.items():
            near = inner.axes[axis]
            sizes |= {f"{axis}_across": size // near, f"{axis}_inside": near}
        rows = list_groups([f"{axis}_across" for axis in plan.axes], Mesh(None, **sizes))
    return frozenset(map(tuple, rows.tolist())), frozenset()


def _match_one(
    plan: Collective,
    transfers: list[SliceTransfer],
    result: Matching,
    mesh: Mesh,
    rules: Sequence[BackendRule],
) -> bool:
    """Match a collective with a transfer, and with what completes it inside the slice."""
    inner, (groups, near) = mesh.one_block(mesh.slices), _expect_groups(plan, mesh)
    axes, forms = _inner_axes(plan, inner), [(plan, ()), *alter(plan, rules)]
    dtypes = {form.dtype for form, _ in forms}  # it may be rounded on the way
    for form, used in forms:
        sizes = [(form.elements, form.elements if near else 0)]
        if axes and form.kind in ("AllGather", "ReduceScatter"):
            # Shards are gathered across slices and then inside, or the other way round.
            across, several = len(next(iter(groups))), inner.size(axes)
            sizes = [
                (form.elements // several, form.elements),
                (form.elements, form.elements // across),
            ]
        facts = (form.kind, form.dtype, form.times, form.open_ended)
        for one in transfers:
            made = (one.kind, one.send.dtype, one.send.times, one.send.open_ended)
            if (made, one.groups) != (facts, groups) or one.reduction != form.reduction:
                continue
            parts = [
                part
                for part in result.unplanned
                if (part.kind, part.times, part.open_ended) == (facts[0], *facts[2:])
                and part.dtype in dtypes
                and (one.elements, part.elements) in sizes
                and (part.pairs == near if near else part.axes == axes)
            ][:1]
            if parts or (one.elements, 0) in sizes:
                result.matched.append((plan, one.send))
                result.helpers += [one.recv, *parts]
                result.unplanned = [part for part in result.unplanned if part not in parts]
                result.rules.update([ACROSS_SLICES.name, *(rule.name for rule in used)])
                transfers.remove(one)
                return True
    return False


def _match_sums(
    sums: Sequence[Collective],
    how: str,
    transfers: list[SliceTransfer],
    result: Matching,
    mesh: Mesh,
) -> bool:
    """Match sums by their amounts: small ones share a Send, and shards are padded."""
    inner, groups = mesh.one_block(mesh.slices), {_expect_groups(one, mesh)[0] for one in sums}
    carried = [
        one
        for one in transfers
        if (one.kind, one.reduction) == ("AllReduce", how) and one.groups in groups
    ]
    parts = [
        one
        for one in result.unplanned
        if one.kind in _PARTS
        and one.reduction in ("", how)
        and any(one.axes == _inner_axes(plan, inner) for plan in sums)
    ]
    if not _covers(carried, parts, sums, inner):
        return False
    carried.sort(key=lambda one: -one.elements)
    largest = sorted(sums, key=lambda plan: -plan.elements)
    pairs = [*zip(largest, carried, strict=False)]
    result.matched += [(plan, one.send) for plan, one in pairs]
    result.merged += largest[len(pairs) :]
    result.helpers += [*parts, *(one.recv for _, one in pairs)]
    result.unplanned = [one for one in result.unplanned if one not in parts]
    result.rules[BETWEEN_SLICES.name] += len(sums)
    for _, one in pairs:
        transfers.remove(one)
    return True


def _inner_axes(plan: Collective, inner: Mesh) -> tuple[str, ...]:
    """Return the axes along which a collective has several devices in one slice."""
    return tuple(axis for axis in plan.axes if inner.axes[axis] > 1)


def _covers(
    carried: Sequence[SliceTransfer],
    parts: Sequence[CompiledCollective],
    sums: Sequence[Collective],
    inner: Mesh,
) -> bool:
    """Check that as much is added up inside, sent, received and gathered as the sums need."""

    def count(kind: str) -> int:
        return sum(one.elements * one.times for one in parts if one.kind == kind)

    needed = sum(
        plan.elements * plan.times // inner.size(_inner_axes(plan, inner)) for plan in sums
    )
    within = sum(plan.elements * plan.times for plan in sums if _inner_axes(plan, inner))
    sent = sum(one.send.elements * one.send.times for one in carried)
    received = sum(one.recv.elements * one.recv.times for one in carried)
    scattered = count("ReduceScatter")
    # What is added up inside and then sliced is gathered too.
    return (
        sent == received >= needed
        and scattered + count("AllReduce") >= within
        and scattered <= count("AllGather") <= max(scattered, within)
    )
