"""Candidate: one mesh, layout and program that a search can plan."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from namedmesh.choice.facts import ProgramFacts
from namedmesh.choice.roles import Roles
from namedmesh.choice.space import Family
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh

# Axes are called so, the one with the least traffic first.
LETTERS = (*"xyzuvw", *(letter for letter in string.ascii_lowercase if letter not in "xyzuvw"))


@dataclass(frozen=True)
class Candidate:
    """What a search plans.

    Attributes:
        variant: The number of the program.
        mesh: The devices.
        layout: Which dimensions lie on which axes.
        params: The same for parameters at rest, where it differs.
    """

    variant: int
    mesh: Mesh
    layout: Layout
    params: Layout | None

    @property
    def key(self) -> str:
        """One line that tells it from every other candidate of the same search."""
        axes = " ".join(f"{name}={size}" for name, size in self.mesh.axes.items())
        params = "as in use" if self.params is None else self.params.text
        return f"{self.variant} | {axes} | {self.layout.text} | {params}"


def make_candidate(
    facts: ProgramFacts, family: Family, sizes: Sequence[int], pin: Layout
) -> Candidate:
    """Makes the candidate of a family for some sizes.

    The axis with the most traffic comes last: neighbours have the fastest links.

    Args:
        facts: The facts of the program.
        family: The roles of the axes.
        sizes: Their sizes.
        pin: The part of the layout that stays.

    Returns:
        The candidate.
    """
    traffic = _find_traffic(facts, family.roles.roles, family.rest, sizes)
    order = sorted(range(len(sizes)), key=lambda i: (traffic[i], i))
    letters = iter([letter for letter in LETTERS if letter not in family.roles.names])
    names = {i: family.roles.names[i] or next(letters) for i in order}
    mesh = Mesh(None, **{names[i]: sizes[i] for i in order})
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
    """Dimensions in the order of a layout: those of the fewest parameters first.

    Of two that want one axis of a parameter, the first has it: `hidden`, say, and not `model`,
    which all parameters and the inputs have.
    """
    given = {name for tensor in facts.program.inputs.values() for name in tensor.shape.names}
    ranks = {
        name: (sum(one.bytes for one in facts.parameters if name in one.dims), name in given)
        for name in facts.program.dims
    }
    return sorted(ranks, key=ranks.__getitem__)


def _map_dims(
    dims: Iterable[str], roles: Roles, order: Sequence[int], names: dict[int, str]
) -> dict[str, tuple[str, ...]]:
    """The axes of every dimension that some axis splits."""
    axes = {name: tuple(names[i] for i in order if name in roles[i]) for name in dims}
    return {name: held for name, held in axes.items() if held}


def _find_traffic(
    facts: ProgramFacts, use: Roles, rest: Roles, sizes: Sequence[int]
) -> list[float]:
    """About what one device sends along each axis."""
    traffic = [0.0] * len(sizes)

    def send(size: float, split: Iterable[int], along: Iterable[int]) -> None:
        for i in split:
            size /= sizes[i]
        for i in along:
            traffic[i] += size

    def hit(roles: Roles, dims: frozenset[str]) -> set[int]:
        return {i for i, role in enumerate(roles) if role & dims}

    for one in facts.sums:
        kept = hit(use, one.kept)
        send((1 if one.gradient else 2) * one.bytes, kept, hit(use, one.summed) - kept)
    for one in facts.moves:
        moved = hit(use, one.taken) & hit(use, one.dims - one.taken)
        send(one.bytes, hit(use, one.dims), moved)
    for one in facts.parameters:
        used = hit(use, one.dims)
        send(2 * one.bytes, used, hit(rest, one.dims) - used)
    return traffic
