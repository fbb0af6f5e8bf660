"""Space: every mesh and layout that a search considers, as arrays of bounds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby, permutations
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.search.bounds import Bounds
from namedmesh.search.facts import ProgramFacts
from namedmesh.search.roles import Roles, RoleSet, choose_roles, factorise

TOGETHER = 256  # layouts whose bounds are computed at once
RESTING_DIMS = 2  # how many dimensions are tried for parameters at rest
NO_BLOCKS: Mapping[str, int] = MappingProxyType({})  # of devices on one host


@dataclass(frozen=True)
class Family:
    """Layouts that differ in the sizes of their axes alone.

    Attributes:
        variant: The number of the program.
        roles: The dimensions of each axis, and the names of pinned ones.
        rest: The dimensions of each axis for parameters at rest.
    """

    variant: int
    roles: RoleSet
    rest: Roles


@dataclass(frozen=True)
class Space:
    """Every candidate: a family and the sizes of its axes.

    Attributes:
        families: The families.
        sizes: The choices of sizes, by the number of axes.
        family: The number of each candidate's family.
        choice: The number of each candidate's choice of sizes.
        least_seconds: The floor of each candidate's time.
        least_bytes: The floor of each candidate's memory.
        seconds: An estimate of each candidate's time.
        uneven: How many were left out because a size does not divide.
    """

    families: tuple[Family, ...]
    sizes: dict[int, list[tuple[int, ...]]]
    family: NDArray[np.int64]
    choice: NDArray[np.int64]
    least_seconds: NDArray[np.float64]
    least_bytes: NDArray[np.float64]
    seconds: NDArray[np.float64]
    uneven: int

    def sizes_of(self, candidate: int) -> tuple[int, ...]:
        """The sizes of a candidate's axes."""
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
    """Enumerates meshes, layouts and layouts at rest for every variant of a program."""
    sizes = {
        count: [
            some
            for some in factorise(devices, count)
            if any(find_fitting_orders(some, range(count), blocks))
        ]
        for count in range(1, most_axes + 1)
    }
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
                bound = bounds.of(
                    [one.roles.roles for one in some], [one.rest for one in some], table
                )
                even = np.stack([divides_evenly(facts, one, table) for one in some])
                uneven += int((~even).sum())
                family, choice = np.nonzero(even)
                rows.append(
                    (
                        family + len(families),
                        choice,
                        bound.least_seconds[even],
                        bound.least_bytes[even],
                        bound.seconds[even],
                    )
                )
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
    family, choice, least_seconds, least_bytes, seconds = map(
        np.concatenate, zip(*rows, strict=True)
    )
    return Space(
        tuple(families), sizes, family, choice, least_seconds, least_bytes, seconds, uneven
    )


def _has_twins(roles: RoleSet, rest: Roles) -> bool:
    """Whether two axes in use alike are alike at rest too, and so one, or the other way round."""
    free = [
        (use, at) for name, use, at in zip(roles.names, roles.roles, rest, strict=True) if not name
    ]
    return any(one == other and not at < more for (one, at), (other, more) in combinations(free, 2))


def choose_rest(facts: ProgramFacts, use: Roles, devices: int) -> Iterator[Roles]:
    """Yield where parameters may rest: as in use, or split along one more dimension.

    Axes that split most of what a device would hold in use already are left alone.
    """
    yield use
    size = sum(one.bytes for one in facts.parameters)
    open_axes = []
    for i, role in enumerate(use):
        whole = sum(one.bytes for one in facts.parameters if not one.dims & role)
        if whole > (size - whole) / devices:
            open_axes.append(i)
    for name in facts.resting[:RESTING_DIMS]:
        for count in range(1, len(open_axes) + 1):
            for chosen in combinations(open_axes, count):
                if all(name not in use[i] for i in chosen):
                    yield tuple(
                        role | {name} if i in chosen else role for i, role in enumerate(use)
                    )


def divides_evenly(
    facts: ProgramFacts, family: Family, sizes: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Whether every dimension divides into its shards, for each choice of sizes."""
    even = np.ones(len(sizes), bool)
    for roles in {family.roles.roles, family.rest}:
        for name in frozenset[str]().union(*roles):
            held = [i for i, role in enumerate(roles) if name in role]
            even &= facts.sizes.get(name, 1) % sizes[:, held].prod(1) == 0
    return even
