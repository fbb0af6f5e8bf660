"""Space: every mesh and layout that a search considers, as arrays of bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

import numpy as np
from numpy.typing import NDArray

from namedmesh.choice.bounds import Bounds
from namedmesh.choice.facts import ProgramFacts
from namedmesh.choice.roles import Roles, RoleSet, choose_roles, factorise
from namedmesh.dims.layout import Layout

TOGETHER = 256  # layouts whose bounds are computed at once
RESTING_DIMS = 2  # how many dimensions are tried for parameters at rest


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


def enumerate_space(
    variants: Sequence[tuple[ProgramFacts, Bounds]], devices: int, pin: Layout, most_axes: int
) -> Space:
    """Enumerates meshes, layouts and layouts at rest for every variant of a program.

    Args:
        variants: The facts and bounds of each.
        devices: How many devices a mesh has.
        pin: The part of the layout that stays.
        most_axes: How many axes a mesh may have.

    Returns:
        The space.
    """
    counts = range(1, most_axes + 1)
    sizes = {count: factorise(devices, count) for count in counts}
    families: list[Family] = []
    rows: list[tuple[NDArray, ...]] = []
    uneven = 0
    for number, (facts, bounds) in enumerate(variants):
        every = [
            Family(number, roles, rest)
            for roles in choose_roles(facts, pin, most_axes)
            if sizes[len(roles.roles)]
            for rest in choose_rest(facts, roles.roles)
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
    family, choice, least_seconds, least_bytes, seconds = map(
        np.concatenate, zip(*rows, strict=True)
    )
    return Space(
        tuple(families), sizes, family, choice, least_seconds, least_bytes, seconds, uneven
    )


def choose_rest(facts: ProgramFacts, use: Roles) -> Iterator[Roles]:
    """Yields where parameters may rest: as in use, or split along one more dimension.

    Axes that split most parameters in use already are left alone.
    """
    yield use
    size = sum(one.bytes for one in facts.parameters)
    open_axes = [
        i
        for i, role in enumerate(use)
        if sum(one.bytes for one in facts.parameters if one.dims & role) < size / 2
    ]
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
    """Whether every dimension divides into its pieces, for each choice of sizes."""
    even = np.ones(len(sizes), bool)
    for roles in {family.roles.roles, family.rest}:
        for name in frozenset[str]().union(*roles):
            held = [i for i, role in enumerate(roles) if name in role]
            even &= facts.sizes.get(name, 1) % sizes[:, held].prod(1) == 0
    return even
