"""Several TPU slices: the code of one of them, matched with a plan for all.

What crosses slices is sent to the host and received from it, and the runtime carries it over the
data-centre network. Attributes say what it does, and between which devices. What is sent and what
is received is followed to the collectives inside the slice that complete it: both together are one
collective of the whole mesh, which is matched as any other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from namedmesh.audit.backend_rules import (
    ACROSS_SLICES,
    BETWEEN_SLICES,
    CONCATENATED,
    IN_HALF,
    BackendRule,
)
from namedmesh.audit.hlo.communication import (
    OF_BOOLS,
    OTHER,
    CompiledCollective,
    describe_sum,
    find_collectives,
    take_apart,
)
from namedmesh.audit.hlo.groups import Groups, Pairs, axes_of_groups, axes_of_pairs, order_of_groups
from namedmesh.audit.hlo.module import Module
from namedmesh.audit.hlo.origins import (
    HloValue,
    Readers,
    Routes,
    array_dtype,
    count_spread,
    count_unpadded,
    follow_back,
    follow_readers,
    name_of_maker,
)
from namedmesh.audit.matching import Matching, find_pairs, match_collectives
from namedmesh.dims.hop import list_groups
from namedmesh.dims.mesh import Mesh
from namedmesh.records.collective import ORDERED, REDUCING, Collective

_KINDS = {
    "ALL_GATHER": "AllGather", "ALL_REDUCE": "AllReduce", "ALL_TO_ALL": "AllToAll",
    "ONE_TO_ONE": "CollectivePermute", "REDUCE_SCATTER": "ReduceScatter",
}  # fmt: skip
_REDUCTIONS = {"SUM": "add", "MAX": "max", "MIN": "min", "PRODUCT": "mul"}
_ATTRIBUTE = re.compile(r'_xla_(?:megascale|host_transfer)_(\w+)=("[^"]*"|\{\{.*?\}\})')
_TOLD = ("rendezvous", "transfer_type", "target", "reduce_operation")
_SLICES = re.compile(r"(.*)x\{(\d+):(\d+)\}")  # {1,2}x{0:3}: device 0 to 3 of two slices each
_LIST = re.compile(r"\{([\d,]+|\d+->\d+)\}")
_FIRST_OF_SLICE = 100_000  # 200003 is device 3 of the second slice
_MOST_PADDING = 2  # times the elements of a sum, in shards for the devices of a slice


@dataclass(frozen=True)
class SliceTransfer:
    """A Send and the Recv of the same name, between which the runtime carries data."""

    kind: str  # as in plans
    groups: Groups  # of devices as the mesh numbers them; senders with their receivers
    reduction: str
    send: CompiledCollective
    recv: CompiledCollective

    @property
    def value(self) -> HloValue:
        """The value that is sent."""
        return self.send.value.operands()[0]

    def runs_as(self, part: CompiledCollective) -> bool:
        """Return whether something runs as often."""
        return (part.times, part.open_ended) == (self.send.times, self.send.open_ended)


@dataclass(frozen=True)
class _Slot:
    """A tensor, of those that a transfer joins, and the collectives that have added it up."""

    transfer: SliceTransfer
    value: HloValue
    parts: tuple[CompiledCollective, ...]
    makers: list[HloValue]  # where nothing has added it up

    @property
    def elements(self) -> int:
        """The elements of what a device sends."""
        return count_unpadded(self.value)

    @property
    def shards(self) -> int:
        """The number of shards of it that the devices of a slice have; 1 if each has all of it."""
        whole = {part.elements for part in self.parts if part.kind == "AllReduce"}
        return 1 if whole == {self.elements} or not self.parts else self.parts[0].devices


def match_slices(
    planned: Sequence[Collective],
    module: Module,
    mesh: Mesh,
    rules: Sequence[BackendRule],
    ops: Iterable[str] = (),
    orders: Iterable[tuple[str, ...]] = (),
) -> Matching:
    """Match the collectives of one slice's code with those planned for all slices."""
    inner = mesh.one_block(mesh.slices)
    compiled = [one for one in find_collectives(module, inner) if one.axes != () and one.times]
    transfers = _find_transfers(compiled, mesh)
    ends = {_key(end) for one in transfers for end in (one.send, one.recv)}
    # What goes along a part of an axis completes what goes along all of it.
    cut = {axis for axis in mesh.axes if inner.axes[axis] < mesh.axes[axis]}
    inside = [one for one in compiled if not cut & {*(one.axes or ())} and _key(one) not in ends]
    far = [one for one in planned if one.slice_bytes or (one.hop and cut & {*one.axes})]
    local = [one for one in planned if one not in far]
    # Losses and gradients are concatenated where they cross slices.
    alone = [rule for rule in rules if rule is not CONCATENATED]
    result = match_collectives(local, inside, inner, alone, ops, orders)
    done = {_key(one) for _, one in result.matched} | {_key(one) for one in result.helpers}
    done |= {_key(one.compiled) for one in result.differences}
    left = [one for one in compiled if _key(one) not in done | ends]
    joining = _Joining(mesh, module, far, left, rules)
    across = match_collectives(far, joining.join_all(transfers), mesh, rules, ops, orders)
    for plan, one in across.matched:
        result.matched.append((plan, joining.made_of[_key(one)][0]))
        result.rules[(BETWEEN_SLICES if one.kind in REDUCING else ACROSS_SLICES).name] += 1
    first = {_key(joining.made_of[_key(one)][0]) for _, one in across.matched}
    used = {_key(part): part for made_of in joining.made_of.values() for part in made_of}
    result.helpers += [part for key, part in used.items() if key not in first]
    result.unplanned = [one for one in compiled if _key(one) not in done | used.keys()]
    result.unplanned += across.unplanned
    for name in ("merged", "missing", "differences", "by_shape"):
        getattr(result, name).extend(getattr(across, name))
    result.rules += across.rules
    return result


def _key(one: CompiledCollective) -> tuple[str, int]:
    """Return what tells a collective from the others of a module."""
    return one.name, one.place


class _Joining:
    """Joins transfers and collectives inside a slice to collectives of the whole mesh."""

    def __init__(
        self,
        mesh: Mesh,
        module: Module,
        planned: Sequence[Collective],
        parts: Sequence[CompiledCollective],
        rules: Sequence[BackendRule],
    ) -> None:
        self.mesh, self.inner = mesh, mesh.one_block(mesh.slices)
        self.parts, self.rounds = parts, IN_HALF in rules
        self.routes = Routes(module, {(*one.value.key, one.place): one for one in parts})
        # By name and place: the instructions that a joined collective is made of.
        self.made_of: dict[tuple[str, int], list[CompiledCollective]] = {}
        self.orders = {(plan.kind, plan.order) for plan in planned}
        self.permutes = {
            find_pairs(plan.hop, plan.order, plan.receivers, mesh)
            for plan in planned
            if plan.kind == "CollectivePermute"
        }
        # Those inside slices by name, with the pairs of all slices; a slice may have its own.
        self.near: dict[str, tuple[list[CompiledCollective], Pairs]] = {}
        own = _find_branches(module)
        for part in parts:
            branch = own.get(part.value.computation.name)
            name, slices = branch or (part.name, range(mesh.slices))
            made_of, pairs = self.near.get(name, ([], frozenset()))
            pairs |= {
                (i * self.inner.devices + a, i * self.inner.devices + b)
                for i in slices
                for a, b in part.pairs or ()
            }
            if part.pairs:
                self.near[name] = ([*made_of, part], pairs)

    def join_all(self, transfers: Sequence[SliceTransfer]) -> list[CompiledCollective]:
        """Join what transfers carry with what completes it."""
        joined = [one for transfer in transfers for one in self.join(transfer)]
        for parts, pairs in self.near.values():  # of some slices alone
            if pairs in self.permutes:
                axes = axes_of_pairs(pairs, self.mesh)
                joined.append(replace(parts[0], pairs=pairs, axes=axes))
                self.made_of[_key(parts[0])] = parts
        sums = [one for one in transfers if one.kind == "AllReduce"]
        return joined + self.join_sums([one for one in sums if _key(one.send) not in self.made_of])

    def join(self, one: SliceTransfer) -> list[CompiledCollective]:
        """Join a transfer that adds up nothing, or only over slices of one device."""
        size, sent, received = count_unpadded(one.value), one.send.elements, one.recv.elements
        width, parts = len(one.groups[0]), list[CompiledCollective]()
        pairs = None
        if one.kind == "CollectivePermute" and sent == received:
            far = pairs = frozenset((group[0], group[1]) for group in one.groups)
            source = follow_back(one.value).key
            alike = [
                name
                for name, (some, near) in self.near.items()
                if (some[0].elements, some[0].dtype) == (size, one.send.dtype)
                if one.runs_as(some[0]) and far not in self.permutes and far | near in self.permutes
            ]
            alike.sort(key=lambda name: follow_back(self.near[name][0][0].tensor).key != source)
            if alike:
                parts, near = self.near.pop(alike[0])
                pairs = far | near
        elif (one.kind, received) == ("AllGather", width * sent) or (
            one.reduction == "add" and count_spread(one.value) == width and self.gathers(one)
        ):
            parts, one = self.gathers(one), replace(one, kind="AllGather", reduction="")
            size *= (received // sent) * (parts[0].devices if parts else 1)
            if len(parts) > 1 or [part.elements for part in parts] not in ([], [size]):
                return []
        elif (one.kind, width * received) != ("ReduceScatter", sent) and (
            one.kind != "AllToAll" or sent != received
        ):
            return []
        name = {"kind": one.kind, "reduction": one.reduction, "elements": size}
        return [self.keep(replace(one.send, **name), one, parts, pairs)]

    def join_sums(self, transfers: Sequence[SliceTransfer]) -> list[CompiledCollective]:
        """Join sums: those that slices have added up, with transfers that join some of them."""
        slots = [
            _Slot(one, value, tuple(parts), makers)
            for one in transfers
            for value, parts, makers in self.routes.find_slots(one.value)
        ]
        right = [one for one in transfers if self.gathers_all(one, slots)]
        streams: dict[frozenset[int], list[_Slot]] = {}
        for i, slot in enumerate(slots):
            # What a loop carries on is sent by the next iteration, or after the loop.
            key = frozenset(map(id, slot.parts)) or frozenset([-1 - i])
            streams.setdefault(key, []).append(slot)
        joined = []
        for i, some in enumerate(streams.values()):
            parts, one = some[0].parts, some[0].transfer
            if not all(slot.transfer in right for slot in some):
                continue
            if not parts:
                like = replace(one.send, kind=one.kind, reduction=one.reduction, place=i)
                like = replace(like, elements=some[0].elements, value=some[0].value)
                made_by = max(some[0].makers or [some[0].value], key=name_of_maker)
                joined.append(self.keep(describe_sum(like, made_by), one, []))
            elif self.check_parts(some):
                ends = [end for s in some for end in (s.transfer.send, s.transfer.recv)]
                ends += [gather for slot in some for gather in self.gathers(slot.transfer)]
                name = max(part.op_name for part in parts)  # copies of a loop's body may have none
                for part in parts:
                    whole = self.whole_sum(replace(part, op_name=part.op_name or name))
                    joined.append(self.keep(whole, one, [part]))
                    self.made_of[_key(part)] += ends
        return joined

    def whole_sum(self, part: CompiledCollective) -> CompiledCollective:
        """Return a sum inside a slice as that of all slices, of what is not padding."""
        value = part.value.operands()[part.place]
        packed = (part.dtype, array_dtype(follow_back(value))) == ("uint32", "bool")
        facts = {"kind": "AllReduce", "order": (), "parts": (), "elements": count_unpadded(value)}
        sum = replace(part, dtype="bool" if packed else part.dtype, **facts)
        return replace(sum, parts=take_apart(sum, value, padded=True))

    def check_parts(self, slots: Sequence[_Slot]) -> bool:
        """Check that transfers add up just what slices have, in shards or whole, as often."""
        one, slot, often = slots[0].transfer, slots[0], sum(s.transfer.send.times for s in slots)
        alike = {(s.transfer.groups, s.transfer.reduction, s.elements) for s in slots}
        right = len(alike) == 1 and often == sum(part.times for part in slot.parts)
        for part in slot.parts:
            whole, size = self.whole_sum(part), slot.shards * slot.elements
            operand = part.value.operands()[part.place].instruction.type.arrays[0]
            right &= part.kind in REDUCING and operand.elements == part.elements
            right &= part.elements <= size <= _MOST_PADDING * part.elements
            right &= (whole.dtype, whole.reduction) == (one.send.dtype, one.reduction)
        return right

    def gathers(self, one: SliceTransfer) -> list[CompiledCollective]:
        """Find the AllGathers inside the slice of what a transfer brings, as often as it does."""
        dtypes = {one.send.dtype} | ({"bfloat16"} if self.rounds else set())
        found = self.routes.find_readers(one.recv.value)
        right = (one for one in found if (one.kind, one.sent) == ("AllGather", ""))
        return [part for part in right if part.dtype in dtypes and one.runs_as(part)]

    def gathers_all(self, one: SliceTransfer, slots: Sequence[_Slot]) -> bool:
        """Check that a transfer adds up all that it joins, and that all shards are gathered."""
        mine = [slot for slot in slots if slot.transfer is one and slot.shards > 1]
        needed = Counter((slot.shards * slot.elements, slot.parts[0].axes) for slot in mine)
        orders = {tuple(a for a in self.mesh.axes if a in (near or ())) for _, near in needed}
        for slot in mine:  # or as the sum lists its devices
            groups, near = slot.parts[0].value.instruction.groups, slot.parts[0].axes
            orders.add(order_of_groups(groups, self.inner, near) if groups and near else ())
        gathered = Counter(
            (part.elements, part.axes) for part in self.gathers(one) if part.order in orders
        )
        operand = one.value.instruction.type.arrays[0]
        sizes = {one.send.elements, one.recv.elements, operand.elements}
        return needed == gathered and len(sizes) == 1

    def keep(
        self,
        joined: CompiledCollective,
        one: SliceTransfer,
        parts: Sequence[CompiledCollective],
        pairs: Pairs | None = None,
    ) -> CompiledCollective:
        """Keep what a joined collective is made of, and return it with its devices."""
        self.made_of[_key(joined)] = [*parts, one.send, one.recv]
        if pairs is not None:
            return replace(joined, axes=axes_of_pairs(pairs, self.mesh), pairs=pairs, devices=2)
        near = (parts[0].axes or ()) if parts else ()
        inside, rows = self.inner.devices, list_groups(near, self.inner).tolist()
        group_of = {device: row for row in rows for device in row}
        groups = tuple(
            tuple(d // inside * inside + i for d in group for i in group_of[d % inside])
            for group in one.groups
        )
        # Groups whose devices have all the rest of the slice between them are there several times.
        groups = tuple(dict.fromkeys(tuple(sorted(group)) for group in groups)) if near else groups
        axes, order = axes_of_groups(groups, self.mesh), ()
        if one.kind in ORDERED and axes and not parts:
            order = order_of_groups(groups, self.mesh, axes) or (OTHER,)
        elif one.kind in ORDERED and axes:
            # Slices come in their order, and what is in each in the order of the devices.
            orders = [
                order
                for kind, order in sorted(self.orders)
                if (kind, {*order}) == (one.kind, {*axes})
                if tuple(axis for axis in order if axis in near) == parts[0].order
            ]
            ascending = all([*group] == sorted(group) for group in one.groups)
            order = orders[0] if orders and ascending else (OTHER,)
        members = sorted(device for group in one.groups for device in group)
        axes = axes if members == [*range(self.mesh.devices)] else None
        devices = {"axes": axes, "order": order, "devices": len(groups[0])}
        concatenated = tuple(replace(part, **devices) for part in joined.parts)
        return replace(joined, parts=concatenated, **devices)


def _find_branches(module: Module) -> dict[str, tuple[str, list[int]]]:
    """Find the computations that slices run alone: the name of who calls them, and the slice."""
    return {
        name: (one.name, [i])
        for computation, one in module.instructions()
        if one.opcode == "conditional"
        for i, name in enumerate(one.called["branches"])
        if str(computation.instructions[one.operands[0]].attributes).count('"SliceId"')
    }


def _find_transfers(compiled: Sequence[CompiledCollective], mesh: Mesh) -> list[SliceTransfer]:
    """Pair Sends and Recvs by the name under which the runtime knows them."""
    named: dict[tuple[str, ...], dict[str, CompiledCollective]] = {}
    for one in compiled:
        attributes = one.value.instruction.attributes.get("frontend_attributes", "")
        told = {key: value.strip('"') for key, value in _ATTRIBUTE.findall(attributes)}
        if told.get("transfer_type") in _KINDS and one.kind in ("Send", "Recv"):
            key = tuple(told.get(name, "") for name in _TOLD)
            named.setdefault(key, {})[one.kind] = one
    transfers = []
    for (_, kind, target, how), pair in named.items():
        if len(pair) == 2:
            send, recv = pair["Send"], pair["Recv"]
            how = _REDUCTIONS.get(how, OTHER) if how else ""
            how = OF_BOOLS.get(how, how) if send.dtype == "bool" else how
            one = SliceTransfer(_KINDS[kind], _read_groups(target, mesh), how, send, recv)
            readers = (reader for reader, _ in follow_readers(recv.value, 0, Readers()))
            is_read = any(one.instruction.opcode == "get-tuple-element" for one in readers)
            if is_read and one.groups and one.runs_as(recv) and send.dtype == recv.dtype:
                transfers += [one] * (not send.sent)
    return transfers


def _read_groups(text: str, mesh: Mesh) -> Groups:
    """Read groups of devices, or pairs, as the mesh numbers them; -1 for those it does not have."""
    inside = mesh.devices // mesh.slices
    places = {
        (number // inside + 1) * _FIRST_OF_SLICE + number % inside: place
        for place, number in enumerate(mesh.device_assignment or range(mesh.devices))
    }
    slices = _SLICES.fullmatch(text)
    lists = _LIST.findall(slices[1] if slices else text)
    numbers = [[int(one) for one in re.split(r",|->", group)] for group in lists]
    if slices:
        devices = range(int(slices[2]), int(slices[3]) + 1)
        numbers = [
            [one * _FIRST_OF_SLICE + d for one in group] for group in numbers for d in devices
        ]
    return tuple(tuple(places.get(one, -1) for one in group) for group in numbers)
