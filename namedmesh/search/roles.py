"""Roles: sets of dimensions that one axis of a mesh splits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, islice, product

import networkx as nx

from namedmesh.dims.layout import Layout
from namedmesh.search.facts import ProgramFacts, Role, Roles

MOST_ROLES = 23  # and that of an idle axis
MOST_CLIQUES = 1000  # of which roles are chosen: there may be exponentially many
IDLE: Role = frozenset()  # of an axis that splits nothing, as where all dimensions are small


@dataclass(frozen=True)
class RoleSet:
    """The dimensions of each axis of a mesh whose sizes are open."""

    names: tuple[str, ...]  # of pinned axes; empty for others
    roles: Roles


def find_roles(facts: ProgramFacts, dims: Iterable[str]) -> list[Role]:
    """Find sets of dimensions that may share an axis, the most useful ones first."""
    order = {name: i for i, name in enumerate(dims)}
    graph = nx.Graph(pair for pair in combinations(order, 2) if frozenset(pair) in facts.sharing)
    graph.add_nodes_from(order)

    def rank(role: Role) -> tuple[float, list[int]]:
        return -covered_work(facts, role), sorted(order[name] for name in role)

    # A large axis can only split large dimensions: a set that has a small one besides would not do,
    # so that the largest sets are found among the dimensions of each size and above.
    largest: set[Role] = set()
    for least in sorted({facts.largest[name] for name in order}):
        wide = graph.subgraph([name for name in order if facts.largest[name] >= least])
        cliques = sorted(map(frozenset, islice(nx.find_cliques(wide), MOST_CLIQUES)), key=rank)
        largest.update(cliques[: MOST_ROLES // 2])
    groups = [
        sorted(largest, key=rank)[: MOST_ROLES // 2],
        sorted((frozenset([name]) for name in order), key=rank),
        sorted((role - {name} for role in largest for name in role), key=rank),
        sorted(map(frozenset, islice(nx.enumerate_all_cliques(graph), MOST_CLIQUES)), key=rank),
    ]
    found = dict.fromkeys(role for group in groups for role in group if role)
    return list(found)[:MOST_ROLES]


def covered_work(facts: ProgramFacts, role: Role) -> float:
    """Return the share of the work that an axis with this role splits."""
    total = sum(one.seconds for one in facts.work)
    return sum(one.seconds for one in facts.work if one.dims & role) / (total or 1.0)


def choose_roles(facts: ProgramFacts, pin: Layout, most_axes: int) -> Iterator[RoleSet]:
    """Yield the roles of up to so many axes, pinned axes in all of them."""
    # Two axes may have the same role, since parameters at rest may use one of them differently.
    free = find_roles(facts, [name for name in facts.dims if name not in pin.rules])
    pinned: dict[str, Role] = dict.fromkeys(facts.axes, IDLE)
    for name, axes in pin.rules.items():
        for axis in axes:
            pinned[axis] = pinned.get(axis, frozenset()) | {name}
    options = [_extend(facts, core, free) for core in pinned.values()]
    for roles in product(*options):
        for count in range(max(0, most_axes - len(pinned)) + 1):
            for more in combinations_with_replacement([*free, IDLE], count):
                if roles or more:
                    yield RoleSet((*pinned, *("" for _ in more)), (*roles, *more))


def _extend(facts: ProgramFacts, core: Role, free: Sequence[Role]) -> list[Role]:
    """Return the roles of a pinned axis: its dimensions, and others that may share it."""
    return [core] + [
        core | role
        for role in free
        if all(frozenset(pair) in facts.sharing for pair in product(core, role))
    ]
