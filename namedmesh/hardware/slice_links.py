"""Links of a TPU slice: what a collective sends over the busiest one, and how long that takes.

The cores of a chip exchange data for nothing, and links carry both directions at once.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.assignment import torus_assignment
from namedmesh.hardware.links import Network, Traffic, check_across
from namedmesh.hardware.target import GENERATIONS, Target
from namedmesh.hardware.torus import Torus
from namedmesh.records.collective import Collective, count_passes

MOST_CORES = 2**18  # more than any pod has; the places of more take long to list


@dataclass(frozen=True)
class TorusLine:
    """The chips of a group along one dimension of the torus.

    Attributes:
        chips: How many there are.
        ring: Whether they close to a ring.
        sharing: How many groups send over the same links.
    """

    chips: int
    ring: bool
    sharing: float = 1


@dataclass(frozen=True)
class Region:
    """Where the devices of a group lie on the torus.

    Attributes:
        lines: Along each dimension in which the group has several chips.
        cores: How many cores of a chip are of the group.
        groups: How many groups share a chip, and so its links.
        passing: Where every device of the mesh sends to the next one of its group, how many of
            these messages share the busiest link.
    """

    lines: tuple[TorusLine, ...]
    cores: int = 1
    groups: int = 1
    passing: int = 1

    def link_bytes(self, kind: str, size: float) -> float:
        """Estimate what passes over the busiest link, one direction of it."""
        if not self.lines:
            return 0.0
        if kind == "AllToAll":
            return size * self.groups * self.cores * max(map(_exchange, self.lines))
        if kind == "CollectivePermute":
            return size * self.passing
        gather = size * self.groups * _gather(self.lines)
        return 2 * gather if kind == "AllReduce" else gather

    def hops(self, kind: str) -> int:
        """Count the links that one byte passes on its longest way, one after the other."""
        ways = [line.chips // 2 if line.ring else line.chips - 1 for line in self.lines]
        if kind == "CollectivePermute":
            return min(1, len(ways))
        return sum(ways) * (2 if kind == "AllReduce" else 1)


def _gather(lines: Sequence[TorusLine]) -> float:
    """An AllGather of one byte in all: the share of it that the busiest link carries.

    The data is cut into as many parts as there are dimensions, and each goes along all of them in
    another order, so that all links are busy. A ReduceScatter is the same backwards.
    """
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


def _exchange(line: TorusLine) -> float:
    """An AllToAll of one byte from every chip: what the busiest link of a line carries.

    Of a line of n chips the link in the middle carries what one half sends to the other; on a
    ring all links carry the same.
    """
    size = line.chips
    if line.ring:
        return sum(min(i, size - i) for i in range(size)) / size / 2 * line.sharing
    return (size // 2) * (size - size // 2) / size * line.sharing


@dataclass(frozen=True)
class TorusSlice(Network):
    """A slice of a TPU generation, whose chips are connected to their neighbours.

    Devices take the places in which the heaviest traffic has the shortest ways, as
    `namedmesh.aot` compiles programs. Several slices are joined by the data-centre network: what
    goes to others is cut into as many shards as members of the group share a slice.

    Attributes:
        generation: The TPU generation, such as `v3`.
        shape: The chips of a slice along each dimension; the most compact slice if not given.
        bandwidth: Bytes a second over one link, in one direction.
        latency: Seconds for each link on the way.
        start: Seconds before a collective sends anything.
        across: Bytes a second that a chip sends to other slices; 0 if that is not known.
        across_latency: Seconds of one message between slices.
    """

    generation: str
    shape: tuple[int, ...] | None
    bandwidth: float
    latency: float
    start: float
    across: float = 0.0
    across_latency: float = 0.0

    def seconds(self, one: Collective, mesh: Mesh, traffic: Traffic) -> float:
        """Estimate how long a collective takes, once."""
        region = self.region_of(one.axes, mesh, traffic)
        size = one.bytes
        if one.kind == "AllToAll":  # the rest of the buffer goes to other slices
            size = size * mesh.members_of_block(one.axes, mesh.slices) // one.devices
        within = region.link_bytes(one.kind, size) / self.bandwidth
        within += region.hops(one.kind) * self.latency
        if not one.slice_bytes:
            return self.start + within
        beyond = self._seconds_between_slices(one, mesh)
        together = one.kind in ("AllToAll", "CollectivePermute")
        return self.start + (max(within, beyond) if together else within + beyond)

    def _seconds_between_slices(self, one: Collective, mesh: Mesh) -> float:
        """Estimate how long what leaves a slice takes, over all of its chips' shares."""
        chips = -(-mesh.devices // mesh.slices // GENERATIONS[self.generation].cores)
        rate = chips * check_across(self.across, mesh, "slices")
        iterations = 1
        if one.kind not in ("AllToAll", "CollectivePermute"):
            slices = one.devices // mesh.members_of_block(one.axes, mesh.slices)
            iterations = (slices - 1) * count_passes(one.kind)
        return iterations * self.across_latency + one.slice_bytes / rate

    def link_bytes(self, kind: str, size: float, axes: Iterable[str], mesh: Mesh) -> float:
        """Estimate what passes over the busiest link, devices lying in the order of the mesh."""
        return self.region_of(axes, mesh, {}).link_bytes(kind, size)

    def target(self, mesh: Mesh) -> Target:
        """Return the slices that a mesh lies on."""
        if mesh.devices > MOST_CORES:
            raise NamedMeshError(
                f"the mesh has {mesh.devices:,} devices, and slices of TPU {self.generation} are "
                f"estimated up to {MOST_CORES:,} cores",
                f"mesh: {mesh}",
                fix="estimate a smaller mesh",
            )
        cores = GENERATIONS[self.generation].cores
        if self.shape is not None:
            target = Target("tpu", self.generation, self.shape, mesh.slices)
            if target.cores != mesh.devices:
                raise NamedMeshError(
                    f"{target} has {target.cores} cores and the mesh {mesh.devices} devices",
                    f"mesh: {mesh}",
                    fix=f"give the generation alone, 'tpu-{self.generation}', "
                    "or a slice of as many cores",
                )
            return target
        chips = max(1, -(-mesh.devices // mesh.slices // cores))
        return Target("tpu", self.generation, _compact(chips, self.dimensions), mesh.slices)

    @property
    def dimensions(self) -> int:
        """The dimensions of the network."""
        return GENERATIONS[self.generation].dimensions

    def region_of(self, axes: Iterable[str], mesh: Mesh, traffic: Traffic) -> Region:
        """Return where the devices along some axes lie on the torus of one slice."""
        target = self.target(mesh).one_slice
        mesh = mesh.one_block(mesh.slices)
        wide = [axis for axis, size in mesh.axes.items() if size > 1]
        within = frozenset(axes) & frozenset(wide)
        if len(wide) < 2:  # then it does not matter which device is where
            heaviest: tuple[tuple[tuple[str, ...], float], ...] = ()
        else:
            heaviest = _round_traffic(traffic)
        return _region_of(target, mesh, heaviest, within)


def _compact(chips: int, dimensions: int) -> tuple[int, ...]:
    """The sizes of a slice of so many chips that is nearest to a square or cube."""
    shape = [1] * dimensions
    factor, rest, factors = 2, chips, []
    while rest > 1:
        while rest % factor == 0:
            factors.append(factor)
            rest //= factor
        factor += 1
    for factor in reversed(factors):
        shape[shape.index(min(shape))] *= factor
    return tuple(sorted(shape))


def _round_traffic(traffic: Traffic) -> tuple[tuple[tuple[str, ...], float], ...]:
    """Traffic as shares of the heaviest in powers of two: similar plans share an assignment."""
    most = max(traffic.values(), default=0)
    if not most:
        return ()
    shares = {axes: 2.0 ** round(math.log2(sent / most)) for axes, sent in traffic.items() if sent}
    return tuple(sorted(shares.items()))


@lru_cache(maxsize=256)
def _positions(
    target: Target, mesh: Mesh, traffic: tuple[tuple[tuple[str, ...], float], ...]
) -> np.ndarray:
    """The coordinates of the device at each place of the mesh."""
    torus = Torus.of_target(target)
    assert torus is not None, "a TPU slice has a torus"
    order = mesh.device_assignment
    if order is None and traffic and len(torus.places) == mesh.devices:
        order = torus_assignment(mesh, torus, dict(traffic))
    places = torus.positions[: mesh.devices] if order is None else torus.positions[list(order)]
    return places.reshape(*mesh.axes.values(), -1)


@lru_cache(maxsize=1024)
def _region_of(
    target: Target,
    mesh: Mesh,
    traffic: tuple[tuple[tuple[str, ...], float], ...],
    axes: frozenset[str],
) -> Region:
    """The region of the group at the corner of the mesh."""
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
    present = min(GENERATIONS[target.generation].cores, mesh.devices)
    passing = _count_passing(target, mesh, grid, axes) if lines else 0
    return Region(tuple(lines), cores, max(1, present // cores), passing)


def _count_passing(target: Target, mesh: Mesh, grid: np.ndarray, axes: frozenset[str]) -> int:
    """Every device sends to the next of its group: how many messages share the busiest link."""
    inner = [i for i, axis in enumerate(mesh.axes) if axis in axes]
    outer = [i for i in range(len(mesh.axes)) if i not in inner]
    groups = grid.transpose(*outer, *inner, -1).reshape(-1, mesh.size(tuple(axes)), grid.shape[-1])
    loads: Counter[tuple] = Counter()
    for group in groups[..., :-1].tolist():
        for place, goal in itertools.pairwise([*group, group[0]]):
            loads.update(_find_links(place, goal, target))
    return max(loads.values(), default=0)


def _find_links(place: list[int], goal: list[int], target: Target) -> list[tuple]:
    """The links on the way between two chips, the first dimension first."""
    links, here = [], list(place)
    for i, (size, ring) in enumerate(zip(target.shape, target.rings, strict=True)):
        ahead = (goal[i] - here[i]) % size
        forward = ahead <= size - ahead if ring else goal[i] > here[i]
        while here[i] != goal[i]:
            links.append((i, tuple(here), forward))
            here[i] = (here[i] + (1 if forward else -1)) % size
    return links
