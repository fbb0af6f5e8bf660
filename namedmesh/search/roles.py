"""Roles: the sets of dimensions that one mesh axis may split."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, product

import networkx as nx

from namedmesh.dims.layout import Layout
from namedmesh.search.facts import ProgramFacts

MOST_ROLES = 24

Role = frozenset[str]  # the dimensions that one axis splits
Roles = tuple[Role, ...]  # those of each axis of a mesh


@dataclass(frozen=True)
class RoleSet:
    """The dimensions of each axis of a mesh whose sizes are open.

    Attributes:
        names: The axis's name where it is pinned; empty for others.
        roles: The dimensions on each axis.
    """

    names: tuple[str, ...]
    roles: Roles


def find_roles(facts: ProgramFacts, dims: Iterable[str]) -> list[Role]:
    """Find sets of dimensions that may share an axis.

    Where there are too many, those that nothing can be added to come first, then those that split
    most of the work.
    """
    order = {name: i for i, name in enumerate(dims)}
    graph = nx.Graph()
    graph.add_nodes_from(order)
    graph.add_edges_from(
        pair for pair in combinations(order, 2) if frozenset(pair) in facts.sharing
    )
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
    """Yield the roles of up to so many axes, pinned axes in all of them.

    Two axes may have the same role: parameters may rest along one of them in another way.
    """
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
    """What a pinned axis may split: the pinned dimensions, and others that may share it."""
    fitting = (
        role
        for role in free
        if all(frozenset((one, other)) in facts.sharing for one in core for other in role)
    )
    return [core, *(core | role for role in fitting)]


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
    """The divisors of a number between one and itself, the smallest first."""
    small = [one for one in range(2, math.isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})
