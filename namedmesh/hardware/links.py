"""Links between devices: how long a collective takes over a switch, a host's memory or a torus."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.assignment import torus_assignment
from namedmesh.hardware.chips import TPUS
from namedmesh.hardware.topology import Target, Torus, compact_shape
from namedmesh.records.collective import Collective, count_passes, count_wire_bytes
from namedmesh.records.crossing import count_crossing_bytes

# The bytes that one step sends along each set of axes, which decides where axes are laid.
Traffic = Mapping[tuple[str, ...], float]


class Network(ABC):
    """The links between devices of one kind: fast ones in blocks, such as nodes, slower between."""

    block: ClassVar[str] = "host"
    links: ClassVar[tuple[str, str]] = ("memory", "network")  # inside a block, and between blocks

    @abstractmethod
    def seconds(self, one: Collective, mesh: Mesh, traffic: Traffic) -> float:
        """Estimate the seconds of a collective, once."""

    def count_blocks(self, mesh: Mesh) -> int:
        """Count the blocks that a mesh is on."""
        return mesh.hosts

    def place(self, mesh: Mesh) -> Mesh:
        """Return a mesh with hosts or slices as the target has them, unless it has its own."""
        blocks = self.count_blocks(mesh)
        if mesh.hosts > 1 or blocks == 1:
            return mesh
        key = "slices" if self.block == "slice" else "hosts"
        return Mesh(mesh.device_assignment, **mesh.axes, **{key: blocks})

    def leaving_bytes(self, one: Collective, mesh: Mesh) -> int:
        """Count the bytes of a collective that leave a block, once."""
        blocks = self.count_blocks(mesh)
        # The plan's own numbers know who sends to whom.
        for count, planned in ((mesh.hosts, one.host_bytes), (mesh.slices, one.slice_bytes)):
            if blocks == count:
                return planned
        return self.count_leaving(one, mesh, blocks)

    def count_leaving(self, one: Collective, mesh: Mesh, blocks: int) -> int:
        """Count the bytes of a collective that leave one of so many blocks, once."""
        if mesh.divides(blocks):
            return count_crossing_bytes(one.kind, one.bytes, one.axes, mesh, blocks, one.hop)
        # Groups are cut anyhow: at most all that the devices of a block send.
        homes = np.arange(mesh.devices).reshape(*mesh.axes.values()) * blocks // mesh.devices
        along = tuple(i for i, axis in enumerate(mesh.axes) if axis in one.axes)
        cut = (homes.max(along) != homes.min(along)).any()
        return one.wire_bytes * (mesh.devices // blocks) if cut else 0


@dataclass(frozen=True)
class Nodes(Network):
    """Nodes of devices behind a fast switch, with a slower network between nodes."""

    block: ClassVar[str] = "node"
    links: ClassVar[tuple[str, str]] = ("NVLink", "NICs")

    devices: int  # the devices of a node, unless the mesh has hosts or slices
    inside: float  # bytes a second that one device sends within its node
    across: float  # bytes a second that one device sends to other nodes
    inside_latency: float = 0.0  # seconds of one message within a node
    across_latency: float = 0.0  # seconds of one message between nodes
    start: float = 0.0  # seconds before a collective sends anything
    nodes: int = 0  # how many there are, whatever the mesh says; by default as many as it needs

    def count_blocks(self, mesh: Mesh) -> int:
        """Count the nodes that a mesh is on: its slices or hosts, unless the nodes are known."""
        if not self.nodes:
            return mesh.slices if mesh.slices > 1 else mesh.hosts
        if mesh.devices != self.nodes * self.devices:
            raise NamedMeshError(
                f"{self.nodes} nodes of {self.devices} have {self.nodes * self.devices} devices, "
                f"and the mesh {mesh.devices}",
                f"mesh: {mesh}",
                fix=f"give a target of {mesh.devices} devices, or a mesh of "
                f"{self.nodes * self.devices}",
            )
        return self.nodes

    def seconds(self, one: Collective, mesh: Mesh, traffic: Traffic) -> float:
        """Estimate the seconds of a collective, once."""
        # What goes to other nodes is first cut into as many shards as members of the group share a
        # node, so that all of their links carry some.
        near = self._members_of_a_node(one, mesh)
        nodes = -(-one.devices // near)

        if one.kind == "CollectivePermute":
            several = self.count_blocks(mesh) > 1
            far = self.leaving_bytes(one, mesh) > 0 if several else nodes > 1
            bandwidth = self.across if far else self.inside
            latency = self.across_latency if far else self.inside_latency
            return self.start + latency + one.bytes / bandwidth
        if one.kind == "AllToAll":
            within = one.bytes * (near - 1) / one.devices / self.inside
            beyond = one.bytes * (one.devices - near) / one.devices / self.across
            latency = self.across_latency if nodes > 1 else self.inside_latency
            return self.start + latency + max(within, beyond)
        within = count_wire_bytes(one.kind, one.bytes, near) / self.inside
        beyond = count_wire_bytes(one.kind, one.bytes // near, nodes) / self.across
        latency = (near - 1) * self.inside_latency + (nodes - 1) * self.across_latency
        return self.start + count_passes(one.kind) * latency + within + beyond

    def _members_of_a_node(self, one: Collective, mesh: Mesh) -> int:
        """Count the devices of a group that are in one node."""
        blocks = self.count_blocks(mesh)
        if blocks > 1 and mesh.divides(blocks):
            return mesh.members_of_block(one.axes, blocks)
        # Devices fill nodes in the order of the mesh, its last axis first.
        members, below = 1, 1
        for axis, size in reversed(mesh.axes.items()):
            if axis in one.axes:
                members *= min(size, max(1, self.devices // below))
            below *= size
        return min(members, one.devices)


@dataclass(frozen=True)
class Host(Network):
    """Devices that share one host's memory and cores: a collective is copies and a rendezvous."""

    bandwidth: float  # bytes a second that all devices together copy
    start: float = 0.0  # seconds until the devices of a collective have met, for each of them
    # Bytes a second that all processes together send to each other; 0 if not known.
    across: float = 0.0
    across_start: float = 0.0  # seconds that a collective between processes takes besides

    def seconds(self, one: Collective, mesh: Mesh, traffic: Traffic) -> float:
        """Estimate the seconds of a collective, once."""
        # Every device reads what it gets and writes it; a sum reads every part.
        moved = 2 * max(one.wire_bytes, one.bytes) * mesh.devices
        seconds = self.start * mesh.devices + moved / self.bandwidth
        if one.host_bytes:
            seconds += self.across_start
            seconds += one.host_bytes * mesh.hosts / check_across(self.across, mesh, "hosts")
        return seconds


def check_across(rate: float, mesh: Mesh, what: str) -> float:
    """Return a network's rate between hosts or slices, or raise if it has none."""
    if not rate:
        raise NamedMeshError(
            f"the hardware does not say how fast {what} send to each other",
            f"mesh: {mesh}",
            fix=f"give the network its rate, e.g. across: 12e9, or leave {what} out of the mesh",
        )
    return rate


MOST_CORES = 2**18  # more than any pod has; the places of more take long to list


@dataclass(frozen=True)
class TorusLine:
    """The chips of a group along one dimension of the torus."""

    chips: int
    ring: bool  # closed
    sharing: float = 1  # how many groups send over the same links


@dataclass(frozen=True)
class Region:
    """The chips of a group on the torus."""

    lines: tuple[TorusLine, ...]  # along each dimension in which the group has several chips
    cores: int = 1  # of a chip that are in the group
    groups: int = 1  # that share a chip, and so its links
    passing: int = 1  # messages on the busiest link if each device sends to the next of its group
    closed: bool = True  # whether AllToAlls take the links that close a ring

    def link_bytes(self, kind: str, size: float) -> float:
        """Count the bytes over the busiest link, one direction of it."""
        if not self.lines:
            return 0.0
        if kind == "AllToAll":
            busiest = max(_exchange(line, self.closed) for line in self.lines)
            return size * self.groups * self.cores * busiest
        if kind == "CollectivePermute":
            return size * self.passing
        return count_passes(kind) * size * self.groups * _gather(self.lines)

    def hops(self, kind: str) -> int:
        """Count the links on the longest path of one byte."""
        ways = [line.chips // 2 if line.ring else line.chips - 1 for line in self.lines]
        if kind == "CollectivePermute":
            return min(1, len(ways))
        return sum(ways) * count_passes(kind)


def _gather(lines: Sequence[TorusLine]) -> float:
    """Return the share of an AllGather's bytes that the busiest link carries."""
    # The data is cut into as many parts as there are dimensions, and each goes along all of them in
    # another order, so that all links are busy. A ReduceScatter is the same backwards.
    count, time = len(lines), 0.0
    held = [1 / math.prod(line.chips for line in lines)] * count
    for phase in range(count):
        shares = []
        for part in range(count):
            line = lines[(part + phase) % count]
            sent = (line.chips - 1) * held[part] / count * line.sharing
            shares.append(sent / 2 if line.ring else sent)
            held[part] *= line.chips
        time += max(shares)
    return time


def _exchange(line: TorusLine, closed: bool) -> float:
    """Return the bytes over the busiest link of a line, for an AllToAll of one byte per chip."""
    # Of a line of n chips the link in the middle carries what one half sends to the other; on a
    # ring all links carry the same.
    size = line.chips
    if line.ring and closed:
        return sum(min(i, size - i) for i in range(size)) / size / 2 * line.sharing
    return (size // 2) * (size - size // 2) / size * line.sharing


@dataclass(frozen=True)
class TorusSlice(Network):
    """A slice of a TPU generation, whose chips are connected to their neighbours."""

    block: ClassVar[str] = "slice"
    links: ClassVar[tuple[str, str]] = ("ICI", "DCN")

    generation: str  # the TPU generation, such as `v3`
    # The chips of a slice along each dimension; the most compact slice if not given.
    shape: tuple[int, ...] | None
    bandwidth: float  # bytes a second over one link, in one direction
    latency: float = 0.0  # seconds for each link on the path
    start: float = 0.0  # seconds before a collective sends anything
    across: float = 0.0  # bytes a second that a chip sends to other slices; 0 if that is not known
    across_latency: float = 0.0  # seconds of one message between slices
    slices: int = 0  # how many there are; by default as the mesh says

    def count_blocks(self, mesh: Mesh) -> int:
        """Count the slices that a mesh is on."""
        if self.slices and mesh.slices not in (1, self.slices):
            raise NamedMeshError(
                f"the target has {self.slices} slices, and the mesh {mesh.slices}",
                f"mesh: {mesh}",
                fix=f"plan it for a mesh with slices={self.slices}",
            )
        return self.slices or mesh.slices

    def seconds(self, one: Collective, mesh: Mesh, traffic: Traffic) -> float:
        """Estimate the seconds of a collective, once."""
        region = self.region_of(one.axes, mesh, traffic)
        size = one.bytes
        if one.kind == "AllToAll":  # the rest of the buffer goes to other slices
            size = size * mesh.members_of_block(one.axes, self.count_blocks(mesh)) // one.devices
        within = region.link_bytes(one.kind, size) / self.bandwidth
        within += region.hops(one.kind) * self.latency
        leaving = self.leaving_bytes(one, mesh)
        if not leaving:
            return self.start + within
        beyond = self._seconds_between_slices(one, mesh, leaving)
        together = one.kind in ("AllToAll", "CollectivePermute")
        return self.start + (max(within, beyond) if together else within + beyond)

    def _seconds_between_slices(self, one: Collective, mesh: Mesh, leaving: int) -> float:
        """Estimate the seconds of the bytes that leave a slice, over all of its chips."""
        blocks = self.count_blocks(mesh)
        chips = -(-mesh.devices // blocks // TPUS[self.generation].devices)
        rate = chips * check_across(self.across, mesh, "slices")
        messages = 1
        if one.kind not in ("AllToAll", "CollectivePermute"):
            slices = one.devices // mesh.members_of_block(one.axes, blocks)
            messages = (slices - 1) * count_passes(one.kind)
        return messages * self.across_latency + leaving / rate

    def link_bytes(self, kind: str, size: float, axes: Iterable[str], mesh: Mesh) -> float:
        """Count the bytes over the busiest link, devices in the order of the mesh."""
        return self.region_of(axes, mesh, {}).link_bytes(kind, size)

    def target(self, mesh: Mesh) -> Target:
        """Return the slices of a mesh."""
        if mesh.devices > MOST_CORES:
            problem = f"slices of TPU {self.generation} are estimated up to {MOST_CORES:,} cores"
            raise NamedMeshError(problem, f"mesh: {mesh}", fix="estimate a smaller mesh")

        chip, slices = TPUS[self.generation], self.count_blocks(mesh)
        chips = max(1, -(-mesh.devices // slices // chip.devices))
        shape = self.shape or compact_shape(chips, chip.dimensions)
        target = Target("tpu", self.generation, shape, slices)
        if self.shape is not None and target.cores != mesh.devices:
            raise NamedMeshError(
                f"{target} has {target.cores} cores and the mesh {mesh.devices} devices",
                f"mesh: {mesh}",
                fix=f"give 'tpu-{self.generation}' alone, or a slice of as many cores",
            )
        return target

    def region_of(self, axes: Iterable[str], mesh: Mesh, traffic: Traffic) -> Region:
        """Return the region of the devices along some axes on the torus of one slice."""
        target = self.target(mesh).one_slice
        mesh = mesh.one_block(self.count_blocks(mesh))
        wide = [axis for axis, size in mesh.axes.items() if size > 1]
        within = frozenset(axes) & frozenset(wide)
        # Along a single axis it does not matter which device is where.
        rounded = _round_traffic(traffic) if len(wide) > 1 else ()
        return _region_of(target, mesh, rounded, within)


_Rounded = tuple[tuple[tuple[str, ...], float], ...]


def _round_traffic(traffic: Traffic) -> _Rounded:
    """Round traffic to powers of two of the heaviest, so that similar plans share an assignment."""
    most = max(traffic.values(), default=0)
    if not most:
        return ()
    shares = {axes: 2.0 ** round(math.log2(sent / most)) for axes, sent in traffic.items() if sent}
    return tuple(sorted(shares.items()))


@lru_cache(maxsize=256)
def _positions(target: Target, mesh: Mesh, traffic: _Rounded) -> np.ndarray:
    """Return the coordinates of the device at each place of the mesh."""
    torus = Torus.of_target(target)
    assert torus is not None, "a TPU slice has a torus"
    order = mesh.device_assignment
    if order is None and traffic and len(torus.places) == mesh.devices:
        order = torus_assignment(mesh, torus, dict(traffic))
    places = torus.positions[: mesh.devices] if order is None else torus.positions[list(order)]
    return places.reshape(*mesh.axes.values(), -1)


@lru_cache(maxsize=1024)
def _region_of(target: Target, mesh: Mesh, traffic: _Rounded, axes: frozenset[str]) -> Region:
    """Return the region of the group at the corner of the mesh."""
    grid = _positions(target, mesh, traffic)
    group = grid[tuple(slice(None) if axis in axes else 0 for axis in mesh.axes)]
    group = group.reshape(-1, grid.shape[-1])
    lines = []
    for i, (size, ring) in enumerate(zip(target.shape, target.rings, strict=True)):
        places = np.unique(group[:, i])
        if len(places) > 1:
            apart = (int(places[-1]) - int(places[0])) / (len(places) - 1)
            closed = ring and len(places) * apart >= size
            lines.append(TorusLine(len(places), closed, max(1.0, apart)))
    cores = len(np.unique(group[:, -1]))
    present = min(TPUS[target.generation].devices, mesh.devices)
    passing = _count_passing(target, mesh, grid, axes) if lines else 0
    closed = TPUS[target.generation].closed_exchange
    return Region(tuple(lines), cores, max(1, present // cores), passing, closed)


def _count_passing(target: Target, mesh: Mesh, grid: np.ndarray, axes: frozenset[str]) -> int:
    """Count the messages on the busiest link if every device sends to the next of its group."""
    inner = [i for i, axis in enumerate(mesh.axes) if axis in axes]
    outer = [i for i in range(len(mesh.axes)) if i not in inner]
    groups = grid.transpose(*outer, *inner, -1).reshape(-1, mesh.size(tuple(axes)), grid.shape[-1])
    places = groups[..., :-1].reshape(-1, len(target.shape)).copy()
    goals = np.roll(groups[..., :-1], -1, 1).reshape(places.shape)
    busiest = 0
    # Messages go along the first dimension first, all of them one link at a time.
    for i, (size, ring) in enumerate(zip(target.shape, target.rings, strict=True)):
        ahead = goals[:, i] - places[:, i]
        if ring:
            ahead = (ahead + (size - 1) // 2) % size - (size - 1) // 2
        for forward in (1, -1):
            loads, left = np.zeros(target.shape, np.int64), ahead * forward
            while (sending := left > 0).any():
                np.add.at(loads, tuple(places[sending].T), 1)
                places[sending, i] = (places[sending, i] + forward) % size
                left = left - 1
            busiest = max(busiest, int(loads.max()))
    return busiest
