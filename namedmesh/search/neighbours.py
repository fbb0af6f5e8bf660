"""Neighbours: candidates that differ from another in one choice, whatever the estimates say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations

from namedmesh.dims.layout import Layout
from namedmesh.search.facts import ProgramFacts, Role
from namedmesh.search.roles import IDLE, RoleSet
from namedmesh.search.space import Family, Space, Splits, find_divisors


@dataclass(frozen=True)
class Axis:
    """One axis of a mesh: what it splits in use and at rest, and its size."""

    name: str  # empty unless it is pinned
    use: Role
    rest: Role
    size: int

    def with_dims(self, drop: Role, add: Role) -> Axis:
        """Return the axis with some dimensions for others, in use and at rest."""
        return replace(self, use=self.use - drop | add, rest=self.rest - drop | add)


def find_neighbours(
    facts: ProgramFacts, space: Space, candidate: int, pin: Layout, most_axes: int
) -> Iterator[tuple[Family, tuple[int, ...]]]:
    """Yield the families and sizes that differ from a candidate's in one choice."""
    family = space.families[space.family[candidate]]
    columns = (family.roles.names, family.roles.roles, family.rest, space.sizes_of(candidate))
    axes = [Axis(*one) for one in zip(*columns, strict=True)]
    dims = [name for name in (*facts.dims, *facts.looped) if name not in pin.rules]
    several = [
        *_change_dims(axes, dims),
        *_change_rest(axes, facts.resting),
        *_change_sizes(axes),
        *(_split_axes(axes, dims, facts.resting) if len(axes) < most_axes else ()),
    ]
    splits = cache(lambda sizes: Splits(facts, [sizes], pin))
    for some in several:
        use, rest = tuple(one.use for one in some), tuple(one.rest for one in some)
        names, sizes = tuple(one.name for one in some), tuple(one.size for one in some)
        new = Family(family.variant, RoleSet(names, use), rest, family.first)
        in_blocks = sizes in space.sizes.get(len(sizes), ())  # of hosts
        if in_blocks and splits(sizes).of(new, Counter()).fits.all():
            yield new, sizes
            # Of dimensions that share an axis, the layout's first has it.
            shared = [role for role in use if len(role) > 1 and role not in family.roles.roles]
            for name in sorted(frozenset().union(*shared)):
                yield replace(new, first=name), sizes
    sizes = space.sizes_of(candidate)
    for role in family.roles.roles:
        for name in sorted(role) if len(role) > 1 else ():
            yield replace(family, first=name), sizes
    for order in permutations(range(len(axes))) if len(axes) > 1 else ():
        yield replace(family, order=order), sizes


def find_siblings(
    programs: Sequence[ProgramFacts], space: Space, candidate: int, pin: Layout
) -> Iterator[tuple[Family, tuple[int, ...]]]:
    """Yield a candidate's mesh and layout for what else the program may be made with."""
    family, sizes = space.families[space.family[candidate]], space.sizes_of(candidate)
    for number, facts in enumerate(programs):
        dims = frozenset((*facts.dims, *facts.looped))
        use, rest = (
            tuple(role & dims for role in roles) for roles in (family.roles.roles, family.rest)
        )
        new = replace(family, variant=number, roles=RoleSet(family.roles.names, use), rest=rest)
        if number != family.variant and Splits(facts, [sizes], pin).of(new, Counter()).fits.all():
            yield new, sizes


def _change_dims(axes: Sequence[Axis], dims: Sequence[str]) -> Iterator[list[Axis]]:
    """Add a dimension to an axis, take one away, or exchange two."""
    for i, axis in enumerate(axes):
        held = [frozenset({name}) for name in dims if name in axis.use]
        others = [frozenset({name}) for name in dims if name not in axis.use]
        for drop in (IDLE, *held):
            for add in (IDLE, *others):
                if drop or add:
                    changed = axis.with_dims(drop, add)
                    yield [*axes[:i], changed, *axes[i + 1 :]]
                    # Where the added one has another axis, it may move instead.
                    for j, other in enumerate(axes):
                        if j != i and add and add <= other.use:
                            moved = list(axes)
                            moved[i], moved[j] = changed, other.with_dims(add, drop)
                            yield moved


def _change_rest(axes: Sequence[Axis], resting: Sequence[str]) -> Iterator[list[Axis]]:
    """Split parameters at rest along one more dimension of an axis, or along one less."""
    for i, axis in enumerate(axes):
        for name in resting:
            if name not in axis.use:
                changed = replace(axis, rest=axis.rest ^ {name})
                yield [*axes[:i], changed, *axes[i + 1 :]]


def _change_sizes(axes: Sequence[Axis]) -> Iterator[list[Axis]]:
    """Give a factor of one axis to another; an axis of one device goes."""
    for i, giver in enumerate(axes):
        for j, taker in enumerate(axes):
            for factor in (*find_divisors(giver.size), giver.size) if i != j else ():
                if factor < giver.size or not giver.name:
                    some = list(axes)
                    some[i] = replace(giver, size=giver.size // factor)
                    some[j] = replace(taker, size=taker.size * factor)
                    yield [one for one in some if one.size > 1]


def _split_axes(
    axes: Sequence[Axis], dims: Sequence[str], resting: Sequence[str]
) -> Iterator[list[Axis]]:
    """Make two axes of one: part of it idle, with another dimension, or otherwise at rest."""
    for i, axis in enumerate(axes):
        for factor in find_divisors(axis.size):
            kept = replace(axis, size=axis.size // factor)
            part = Axis("", axis.use, axis.rest, factor)
            parts = [replace(part, use=IDLE, rest=IDLE)]
            parts += [replace(part, rest=part.rest ^ {name}) for name in resting[:2]]
            roles = (frozenset({name}) for name in dims if name not in axis.use)
            parts += [replace(part, use=role, rest=role) for role in roles]
            for new in parts:
                yield [*axes[:i], kept, new, *axes[i + 1 :]]
