"""Candidates: the mesh, layout and layout at rest of a family of axes."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.hardware.hardware import Hardware
from namedmesh.records.collective import count_passes
from namedmesh.search.bounds import make_probe
from namedmesh.search.facts import ProgramFacts, Roles
from namedmesh.search.space import NO_BLOCKS, Family, find_fitting_orders, name_axes

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
    order: Sequence[int] = family.order
    if not order:
        sent = [*_list_sent(facts, family.roles.roles, family.rest, sizes)]
        order = _order_axes(sent, sizes, blocks, hardware)
    letters = iter([letter for letter in LETTERS if letter not in family.roles.names])
    names = {i: family.roles.names[i] or next(letters) for i in order}
    mesh = Mesh(None, **{names[i]: sizes[i] for i in order}, **blocks)
    dims = sorted(facts.ranked, key=lambda name: name != family.first)
    used = _map_dims(dims, family.roles.roles, order, names)
    layout = Layout({**used, **pin.rules}, slices=pin.slices)
    if family.rest == family.roles.roles:
        return Candidate(family.variant, mesh, layout, None)
    at_rest = facts.program.resting_dims
    names_at_rest = [name for name in dims if name in at_rest]
    resting = _map_dims(names_at_rest, family.rest, order, names)
    # Of two dimensions that want one axis the first has it: those in use keep theirs.
    rules = dict(sorted(resting.items(), key=lambda rule: rule[1] != layout.axes(rule[0])))
    return Candidate(family.variant, mesh, layout, Layout(rules))


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
