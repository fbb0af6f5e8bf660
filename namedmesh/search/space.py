"""Space: every mesh and layout that a search considers, as arrays of bounds."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby, permutations
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.search.bounds import Bounds
from namedmesh.search.facts import ProgramFacts, Roles
from namedmesh.search.roles import RoleSet, choose_roles


def factorise(devices: int, axes: int) -> list[tuple[int, ...]]:
    """Return every way to write a number as a product of so many ordered factors above one."""
    if axes == 0:
        return [()] if devices == 1 else []
    if axes == 1:
        return [(devices,)] if devices > 1 else []
    return [
        (first, *rest)
        for first in find_divisors(devices)
        for rest in factorise(devices // first, axes - 1)
    ]


def find_divisors(number: int) -> list[int]:
    """Return the divisors of a number between one and itself, the smallest first."""
    small = [one for one in range(2, math.isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


TOGETHER = 256  # layouts whose bounds are computed at once
RESTING_DIMS = 2  # how many dimensions are tried for parameters at rest
NO_BLOCKS: Mapping[str, int] = MappingProxyType({})  # of devices on one host
TOO_SMALL = "twice as many shards as {name} has elements ({size:,}), or more"
Variant = tuple[ProgramFacts, Bounds]  # of a program that some choices make


@dataclass(frozen=True)
class Family:
    """Layouts that differ only in the sizes of their axes."""

    variant: int  # the number of the program
    roles: RoleSet
    rest: Roles  # the dimensions of each axis for parameters at rest
    first: str = ""  # the dimension that its layouts have first, if not the usual one
    order: tuple[int, ...] = ()  # of the axes in its meshes, if not by traffic


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
    too_small: Mapping[str, int]  # left out because a dimension is too small, by its sentence

    def sizes_of(self, candidate: int) -> tuple[int, ...]:
        """Return the sizes of a candidate's axes."""
        family = self.families[self.family[candidate]]
        return self.sizes[len(family.rest)][self.choice[candidate]]

    def shards_of(self, candidate: int) -> Counter[str]:
        """Return the shards of each dimension that a candidate splits, in use or at rest."""
        family, shards = self.families[self.family[candidate]], Counter[str]()
        axes = zip(family.roles.roles, family.rest, self.sizes_of(candidate), strict=True)
        for use, rest, size in axes:
            shards |= {name: size * max(shards[name], 1) for name in use | rest}
        return shards

    def extend(
        self, found: Iterable[tuple[Family, tuple[int, ...]]], variant: Variant, pin: Layout
    ) -> Space:
        """Return the space with more candidates of one program, each of a family of its own."""
        facts, bounds = variant
        by_sizes: dict[tuple[int, ...], list[Family]] = {}
        for family, sizes in found:
            by_sizes.setdefault(sizes, []).append(family)
        families = list(self.families)
        rows = [(self.family, self.choice, self.least_seconds, self.least_bytes, self.seconds)]
        for sizes, some in by_sizes.items():
            uses, rests = [one.roles.roles for one in some], [one.rest for one in some]
            bound = bounds.of(uses, rests, np.array([sizes], np.float64))
            splits = Splits(facts, [sizes], pin)
            padding = np.array([splits.of(one, Counter()).padding[0] for one in some])
            numbers = np.arange(len(families), len(families) + len(some))
            choices = np.full(len(some), self.sizes[len(sizes)].index(sizes))
            figures = bound.least_seconds[:, 0], bound.least_bytes[:, 0], bound.seconds[:, 0]
            rows.append((numbers, choices, *figures[:2], figures[2] * padding))
            families += some
        columns = map(np.concatenate, zip(*rows, strict=True))
        return Space(tuple(families), self.sizes, *columns, too_small=self.too_small)


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
    variants: Sequence[Variant],
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
    too_small = Counter[str]()
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
            splits = Splits(facts, sizes[count], pin)
            for start in range(0, len(members), TOGETHER):
                some = members[start : start + TOGETHER]
                uses, rests = [one.roles.roles for one in some], [one.rest for one in some]
                bound = bounds.of(uses, rests, table)
                found = [splits.of(one, too_small) for one in some]
                fits = np.stack([one.fits for one in found])
                seconds = bound.seconds * np.stack([one.padding for one in found])
                family, choice = np.nonzero(fits)
                figures = (bound.least_seconds, bound.least_bytes, seconds)
                rows.append((family + len(families), choice, *(one[fits] for one in figures)))
                families += some
    if not any(role for family in families for role in family.roles.roles):
        facts = variants[0][0]
        listed = ", ".join(f"{name}={size}" for name, size in facts.largest.items())
        raise NamedMeshError(
            f"search: no dimension of {facts.program.name} can be split over {devices:,} devices",
            f"dimensions: {listed or 'none'}",
            fix="give the program a dimension of more than one element on which it spends time or "
            "memory, or pin less",
        )
    columns = map(np.concatenate, zip(*rows, strict=True))
    return Space(tuple(families), sizes, *columns, too_small=too_small)


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


class Splits:
    """The shards of dimensions in meshes with some sizes of axes."""

    def __init__(self, facts: ProgramFacts, sizes: Sequence[tuple[int, ...]], pin: Layout):
        self._facts, self._pin = facts, pin
        self._sizes = np.array(sizes, np.int64)
        self._known: dict[tuple[str, tuple[int, ...]], Split | None] = {}

    def of(self, family: Family, too_small: Counter[str]) -> Split:
        """Return what becomes of a family's dimensions; count those that are too small."""
        fits, padding = np.ones(len(self._sizes), bool), np.ones(len(self._sizes))
        for roles in {family.roles.roles, family.rest}:
            held: dict[str, list[int]] = {}
            for i, role in enumerate(roles):
                for name in role:
                    held.setdefault(name, []).append(i)
            for name in sorted(held):
                one = self._split(name, tuple(held[name]))
                if one is None:
                    continue
                if one.small:
                    too_small[one.small] += int((fits & ~one.fits).sum())
                    fits &= one.fits
                padding = np.maximum(padding, one.padding)
        return Split(fits, padding)

    def _split(self, name: str, axes: tuple[int, ...]) -> Split | None:
        """Return what becomes of a dimension over some axes; None where it always divides."""
        if (name, axes) not in self._known:
            shards, size = self._sizes[:, axes].prod(1), self._facts.sizes[name]
            # One shard each of 6 stages on 8 devices is better than two on 4. What is pinned is the
            # user's choice: it is padded, whatever its size.
            largest = self._facts.largest[name]
            fits = (shards < 2 * largest) | (name in self._pin.rules)
            small = "" if fits.all() else TOO_SMALL.format(name=name, size=largest)
            padding = -(-size // shards) * shards / size
            divides = not small and bool((padding == 1).all())
            self._known[name, axes] = None if divides else Split(fits, padding, small)
        return self._known[name, axes]


@dataclass(frozen=True)
class Split:
    """For each choice of sizes: whether there are enough elements, and padding."""

    fits: NDArray[np.bool_]
    padding: NDArray[np.float64]  # the padded size to the size, at most
    small: str = ""  # the sentence where there are more shards
