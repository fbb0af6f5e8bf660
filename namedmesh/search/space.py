"""Space: every mesh and layout that a search considers, as arrays of bounds."""

from __future__ import annotations

import contextlib
import math
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, groupby, permutations, product
from types import MappingProxyType

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.hardware import Hardware
from namedmesh.records.collective import count_passes
from namedmesh.search.bounds import Bounds, make_probe
from namedmesh.search.facts import ProgramFacts, Role, Roles

MOST_ROLES = 24


@dataclass(frozen=True)
class RoleSet:
    """The dimensions of each axis of a mesh whose sizes are open."""

    names: tuple[str, ...]  # of pinned axes; empty for others
    roles: Roles


def find_roles(facts: ProgramFacts, dims: Iterable[str]) -> list[Role]:
    """Find sets of dimensions that may share an axis, maximal ones and those of most work first."""
    order = {name: i for i, name in enumerate(dims)}
    graph = nx.Graph(pair for pair in combinations(order, 2) if frozenset(pair) in facts.sharing)
    graph.add_nodes_from(order)
    largest = {frozenset(clique) for clique in nx.find_cliques(graph)}
    every = {frozenset(clique) for clique in nx.enumerate_all_cliques(graph)}

    def rank(role: Role) -> tuple[bool, float, list[int]]:
        return role not in largest, -covered_work(facts, role), sorted(order[n] for n in role)

    return sorted(every, key=rank)[:MOST_ROLES]


def covered_work(facts: ProgramFacts, role: Role) -> float:
    """Return the share of the work that an axis with this role splits."""
    total = sum(one.seconds for one in facts.work)
    return sum(one.seconds for one in facts.work if one.dims & role) / (total or 1.0)


def choose_roles(facts: ProgramFacts, pin: Layout, most_axes: int) -> Iterator[RoleSet]:
    """Yield the roles of up to so many axes, pinned axes in all of them."""
    # Two axes may have the same role, since parameters at rest may use one of them differently.
    free = find_roles(facts, [name for name in facts.dims if name not in pin.rules])
    pinned: dict[str, Role] = {}
    for name, axes in pin.rules.items():
        for axis in axes:
            pinned[axis] = pinned.get(axis, frozenset()) | {name}
    options = [_extend(facts, core, free) for core in pinned.values()]
    for roles in product(*options):
        for count in range(max(0, most_axes - len(pinned)) + 1):
            for more in combinations_with_replacement(free, count):
                if roles or more:
                    yield RoleSet((*pinned, *("" for _ in more)), (*roles, *more))


def _extend(facts: ProgramFacts, core: Role, free: Sequence[Role]) -> list[Role]:
    """Return the roles of a pinned axis: its dimensions, and others that may share it."""
    return [core] + [
        core | role
        for role in free
        if all(frozenset(pair) in facts.sharing for pair in product(core, role))
    ]


def factorise(devices: int, axes: int) -> list[tuple[int, ...]]:
    """Return every way to write a number as a product of so many ordered factors above one."""
    if axes == 0:
        return [()] if devices == 1 else []
    if axes == 1:
        return [(devices,)] if devices > 1 else []
    return [
        (first, *rest)
        for first in _find_divisors(devices)
        for rest in factorise(devices // first, axes - 1)
    ]


def _find_divisors(number: int) -> list[int]:
    """Return the divisors of a number between one and itself, the smallest first."""
    small = [one for one in range(2, math.isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


TOGETHER = 256  # layouts whose bounds are computed at once
RESTING_DIMS = 2  # how many dimensions are tried for parameters at rest
NO_BLOCKS: Mapping[str, int] = MappingProxyType({})  # of devices on one host


@dataclass(frozen=True)
class Family:
    """Layouts that differ only in the sizes of their axes."""

    variant: int  # the number of the program
    roles: RoleSet
    rest: Roles  # the dimensions of each axis for parameters at rest


@dataclass(frozen=True)
class Space:
    """Every candidate: a family and the sizes of its axes."""

    families: tuple[Family, ...]
    sizes: dict[int, list[tuple[int, ...]]]  # the choices of sizes, by the number of axes
    # Of each candidate: its family, its choice of sizes, lower bounds, and an estimate of its time.
    family: NDArray[np.int64]
    choice: NDArray[np.int64]
    least_seconds: NDArray[np.float64]
    least_bytes: NDArray[np.float64]
    seconds: NDArray[np.float64]
    uneven: int  # how many were left out because a size does not divide

    def sizes_of(self, candidate: int) -> tuple[int, ...]:
        """Return the sizes of a candidate's axes."""
        family = self.families[self.family[candidate]]
        return self.sizes[len(family.rest)][self.choice[candidate]]


def name_axes(sizes: Sequence[int], order: Sequence[int], blocks: Mapping[str, int]) -> Mesh:
    """Make a mesh of axes that are called by their numbers."""
    return Mesh(None, **{f"axis{i}": sizes[i] for i in order}, **blocks)


def find_fitting_orders(
    sizes: Sequence[int], order: Sequence[int], blocks: Mapping[str, int]
) -> Iterator[list[int]]:
    """Yield the orders of axes in which hosts and slices are equal blocks of the mesh."""
    for some in permutations(order):
        with contextlib.suppress(NamedMeshError):
            name_axes(sizes, some, blocks)
            yield list(some)


def enumerate_space(
    variants: Sequence[tuple[ProgramFacts, Bounds]],
    devices: int,
    pin: Layout,
    most_axes: int,
    blocks: Mapping[str, int] = NO_BLOCKS,
) -> Space:
    """Enumerate meshes, layouts and layouts at rest for every variant of a program."""
    sizes = {}
    for count in range(1, most_axes + 1):
        every = factorise(devices, count)
        sizes[count] = [one for one in every if any(find_fitting_orders(one, range(count), blocks))]
    families: list[Family] = []
    rows: list[tuple[NDArray, ...]] = []
    uneven = 0
    for number, (facts, bounds) in enumerate(variants):
        every = [
            Family(number, roles, rest)
            for roles in choose_roles(facts, pin, most_axes)
            if sizes[len(roles.roles)]
            for rest in choose_rest(facts, roles.roles, devices)
            if not _has_twins(roles, rest)
        ]
        every.sort(key=lambda family: len(family.rest))
        for count, group in groupby(every, key=lambda family: len(family.rest)):
            members, table = list(group), np.array(sizes[count], np.float64)
            for start in range(0, len(members), TOGETHER):
                some = members[start : start + TOGETHER]
                uses, rests = [one.roles.roles for one in some], [one.rest for one in some]
                bound = bounds.of(uses, rests, table)
                even = np.stack([divides_evenly(facts, one, table) for one in some])
                uneven += int((~even).sum())
                family, choice = np.nonzero(even)
                figures = (bound.least_seconds, bound.least_bytes, bound.seconds)
                found = (figure[even] for figure in figures)
                rows.append((family + len(families), choice, *found))
                families += some
    if not rows:
        program = variants[0][0].program
        sizes = ", ".join(f"{name}={several[-1]}" for name, several in program.dims.items())
        raise NamedMeshError(
            f"search: no dimension of {program.name} can be split over {devices:,} devices",
            f"dimensions: {sizes or 'none'}",
            fix="give a number of devices that has a factor in common with a dimension on which "
            "the program spends time or memory, or pin less",
        )
    columns = map(np.concatenate, zip(*rows, strict=True))
    return Space(tuple(families), sizes, *columns, uneven=uneven)


def _has_twins(roles: RoleSet, rest: Roles) -> bool:
    """Return True if two axes are interchangeable in both layouts, and not in order."""
    every = zip(roles.names, roles.roles, rest, strict=True)
    free = [(use, at) for name, use, at in every if not name]
    return any(one == other and not at < more for (one, at), (other, more) in combinations(free, 2))


def choose_rest(facts: ProgramFacts, use: Roles, devices: int) -> Iterator[Roles]:
    """Yield layouts of parameters at rest: as in use, or split along one more dimension."""
    yield use
    # Axes that already split most of what a device would hold in use are left alone.
    size = sum(one.bytes for one in facts.parameters)
    wholes = [sum(one.bytes for one in facts.parameters if not one.dims & role) for role in use]
    open_axes = [i for i, whole in enumerate(wholes) if whole > (size - whole) / devices]
    for name in facts.resting[:RESTING_DIMS]:
        for count in range(1, len(open_axes) + 1):
            for chosen in combinations(open_axes, count):
                if all(name not in use[i] for i in chosen):
                    more = {i: use[i] | {name} for i in chosen}
                    yield tuple(more.get(i, role) for i, role in enumerate(use))


def divides_evenly(
    facts: ProgramFacts, family: Family, sizes: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return, for each choice of sizes, whether every dimension divides into its shards."""
    even = np.ones(len(sizes), bool)
    for roles in {family.roles.roles, family.rest}:
        for name in frozenset[str]().union(*roles):
            held = [i for i, role in enumerate(roles) if name in role]
            even &= facts.sizes.get(name, 1) % sizes[:, held].prod(1) == 0
    return even


# Axes are called so, the one with the least traffic first.
LETTERS = (*"xyzuvw", *(letter for letter in string.ascii_lowercase if letter not in "xyzuvw"))


@dataclass(frozen=True)
class Candidate:
    """One mesh, layout and program that a search can plan."""

    variant: int
    mesh: Mesh
    layout: Layout
    params: Layout | None  # None if parameters at rest have the layout too

    @property
    def key(self) -> str:
        """One line that tells it from every other candidate of the same search."""
        axes = " ".join(f"{name}={size}" for name, size in self.mesh.to_json().items())
        params = "as in use" if self.params is None else self.params.text
        return f"{self.variant} | {axes} | {self.layout.text} | {params}"


def make_candidate(
    facts: ProgramFacts,
    family: Family,
    sizes: Sequence[int],
    pin: Layout,
    blocks: Mapping[str, int] = NO_BLOCKS,
    hardware: Hardware | None = None,
) -> Candidate:
    """Make the candidate of a family for some sizes."""
    # The axis with the most traffic comes last: neighbours have the fastest links. The first axes
    # go across hosts: where there are several, those for which that takes least time.
    sent = [*_list_sent(facts, family.roles.roles, family.rest, sizes)]
    order = _order_axes(sent, sizes, blocks, hardware)
    letters = iter([letter for letter in LETTERS if letter not in family.roles.names])
    names = {i: family.roles.names[i] or next(letters) for i in order}
    mesh = Mesh(None, **{names[i]: sizes[i] for i in order}, **blocks)
    used = _map_dims(_rank_dims(facts), family.roles.roles, order, names)
    layout = Layout({**used, **pin.rules})
    if family.rest == family.roles.roles:
        return Candidate(family.variant, mesh, layout, None)
    names_at_rest = [name for name in _rank_dims(facts) if name in facts.program.resting_dims]
    resting = _map_dims(names_at_rest, family.rest, order, names)
    # Of two dimensions that want one axis the first has it: those in use keep theirs.
    rules = dict(sorted(resting.items(), key=lambda rule: rule[1] != layout.axes(rule[0])))
    return Candidate(family.variant, mesh, layout, Layout(rules))


def _rank_dims(facts: ProgramFacts) -> list[str]:
    """Return dimensions in the order of a layout: those of the fewest parameters first."""
    # If two dimensions of a parameter are mapped to one axis, the first gets it: `hidden`, say,
    # and not `model`, which all parameters and the inputs have.
    given = {name for tensor in facts.program.inputs.values() for name in tensor.shape.names}
    ranks = {
        name: (sum(one.bytes for one in facts.parameters if name in one.dims), name in given)
        for name in facts.program.dims
    }
    return sorted(ranks, key=ranks.__getitem__)


def _map_dims(
    dims: Iterable[str], roles: Roles, order: Sequence[int], names: dict[int, str]
) -> dict[str, tuple[str, ...]]:
    """Return the axes of every dimension that some axis splits."""
    axes = {name: tuple(names[i] for i in order if name in roles[i]) for name in dims}
    return {name: held for name, held in axes.items() if held}


@dataclass(frozen=True)
class Sent:
    """An estimate of the bytes that one device sends along some axes, in so many collectives."""

    kind: str
    bytes: float
    along: frozenset[int]
    count: int


def _list_sent(
    facts: ProgramFacts, use: Roles, rest: Roles, sizes: Sequence[int]
) -> Iterator[Sent]:
    """Estimate what one device sends: sums, moves, and parameters that are gathered."""

    def hit(roles: Roles, dims: frozenset[str]) -> frozenset[int]:
        return frozenset(i for i, role in enumerate(roles) if role & dims)

    def divide(size: float, split: Iterable[int]) -> float:
        return size / math.prod(sizes[i] for i in split)

    for one in facts.sums:
        kept = hit(use, one.kept)
        kind, along = "ReduceScatter" if one.gradient else "AllReduce", hit(use, one.summed) - kept
        yield Sent(kind, divide(one.bytes, kept), along, one.count)
    for one in facts.moves:
        moved = hit(use, one.taken) & hit(use, one.dims - one.taken)
        yield Sent("AllToAll", divide(one.bytes, hit(use, one.dims)), moved, one.count)
    for one in facts.parameters:
        used = hit(use, one.dims)
        yield Sent("AllGather", 2 * divide(one.bytes, used), hit(rest, one.dims) - used, 2)


def _order_axes(
    sent: Sequence[Sent], sizes: Sequence[int], blocks: Mapping[str, int], hardware: Hardware | None
) -> list[int]:
    """Order axes by traffic, the heaviest last; across hosts, by the time it takes."""
    traffic = [0.0] * len(sizes)
    for one in sent:
        for i in one.along:
            traffic[i] += count_passes(one.kind) * one.bytes
    order = sorted(range(len(sizes)), key=lambda i: (traffic[i], i))
    if not blocks or hardware is None:
        return order
    network = hardware.network

    def seconds(order: Sequence[int]) -> float:
        mesh, total = name_axes(sizes, order, blocks), 0.0
        for one in sent:
            axes = tuple(f"axis{i}" for i in order if i in one.along)
            if axes:
                probe = make_probe(one.kind, int(one.bytes / one.count), axes, mesh)
                total += one.count * network.seconds(probe, mesh, {})
        return total

    return min(find_fitting_orders(sizes, order, blocks), key=seconds, default=order)
