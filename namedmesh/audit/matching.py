"""Matching planned with compiled collectives, in time linear in their number."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from namedmesh.audit.backend_rules import (
    AXES_IN_ONE,
    EQUAL_ONCE,
    MOST_PADDING,
    TILED_SCATTER,
    BackendRule,
    alter,
)
from namedmesh.audit.hlo.communication import CompiledCollective
from namedmesh.audit.hlo.mesh_axes import Pairs, reordering_pairs
from namedmesh.dims.hop import Hop
from namedmesh.dims.mesh import Mesh
from namedmesh.records.collective import Collective

_SCOPE = "nm."  # what the names of ops have before them in the compiler's metadata
_BETWEEN_NAMES = re.compile(r"[;,:()\s]+")  # combined: (nm.einsum.9/Dot:nm.sum.7/Sum)


class Facts(NamedTuple):
    """Everything in which a planned and a compiled collective must agree."""

    kind: str
    axes: tuple[str, ...]
    dtype: str
    elements: int
    bytes: int
    times: int
    open_ended: bool
    hop: Hop | None


@dataclass
class Matching:
    """Who matches whom, and by what evidence.

    Attributes:
        matched: Planned collectives, each with the one the compiler made for it.
        merged: Planned collectives that were made as a part of a matched one.
        helpers: Compiled collectives that complete a matched one, by a rule of the backend.
        by_shape: Those of `matched` that no metadata connects: they agree in everything else.
        differing: Collectives of one op and kind that do not agree.
        unplanned: Compiled collectives that are left.
        missing: Planned collectives that are left.
        rules: How often each rule of the backend was used.
    """

    matched: list[tuple[Collective, CompiledCollective]] = field(default_factory=list)
    merged: list[Collective] = field(default_factory=list)
    helpers: list[CompiledCollective] = field(default_factory=list)
    by_shape: list[tuple[Collective, CompiledCollective]] = field(default_factory=list)
    differing: list[tuple[Collective, CompiledCollective]] = field(default_factory=list)
    unplanned: list[CompiledCollective] = field(default_factory=list)
    missing: list[Collective] = field(default_factory=list)
    rules: Counter[str] = field(default_factory=Counter)


def match_collectives(
    planned: Sequence[Collective],
    compiled: Sequence[CompiledCollective],
    mesh: Mesh,
    rules: Sequence[BackendRule],
) -> Matching:
    """Match each compiled collective with a planned one, best evidence first."""
    matcher = _Matcher(planned, compiled, mesh)
    matcher.match_named()
    matcher.match_by_shape()
    matcher.match_altered(rules)
    if AXES_IN_ONE in rules:
        matcher.match_axes_in_one()
    if TILED_SCATTER in rules:
        matcher.match_tiled_scatters()
    if EQUAL_ONCE in rules:
        matcher.merge_equal_permutes()
    matcher.match_differing()
    return matcher.finish()


class _Matcher:
    """The state of a matching: which planned and which compiled collectives are still open."""

    def __init__(
        self, planned: Sequence[Collective], compiled: Sequence[CompiledCollective], mesh: Mesh
    ) -> None:
        self.mesh = mesh
        self.plans = dict(enumerate(planned))
        self.ones = dict(enumerate(compiled))
        self.result = Matching()
        self.names: dict[str, tuple[str, ...]] = {}  # by metadata, which repeats
        self.planned_ops = {name for plan in planned for name in (plan.op, plan.producer) if name}
        self.permuted: dict[tuple[str, ...], None] = {}  # axes that are put in another order
        self.hops: dict[Pairs | None, list[tuple[tuple[str, ...], Hop]]] = {}
        for plan in {plan for plan in planned if plan.kind == "CollectivePermute"}:
            if plan.hop is None:
                self.permuted[plan.axes] = None
            else:
                pairs = frozenset(pair for pair in plan.hop.pairs(mesh) if pair[0] != pair[1])
                if (plan.axes, plan.hop) not in self.hops.setdefault(pairs, []):
                    self.hops[pairs].append((plan.axes, plan.hop))
        self.reordered: dict[Pairs, list[tuple[str, ...]]] = {}
        self.times_per_iteration = {max(plan.times, 1) for plan in planned if plan.open_ended}

    def take(self, plan: int, one: int) -> tuple[Collective, CompiledCollective]:
        """Take a planned and a compiled collective out of those that are open."""
        return self.plans.pop(plan), self.ones.pop(one)

    def facts_of(self, one: CompiledCollective) -> Iterator[Facts]:
        """What a planned collective must be to agree with a compiled one."""
        facts = (one.dtype, one.elements, one.bytes)
        ways = [(axes, None) for axes in self.possible_axes(one)]
        for axes, hop in [*ways, *self.hops.get(one.pairs, ())]:
            yield Facts(one.kind, axes, *facts, one.times, one.open_ended, hop)
            if not one.open_ended:
                # The compiler may know how often a loop runs whose length the plan does not know.
                for times in self.times_per_iteration:
                    if one.times % times == 0:
                        yield Facts(one.kind, axes, *facts, times, True, hop)

    def possible_axes(self, one: CompiledCollective) -> list[tuple[str, ...]]:
        """The axes that a plan may have for a compiled collective.

        A permutation's pairs must be those of a new order of the axes that the plan names; not all
        of these axes need to move.
        """
        if one.pairs is None:
            return [] if one.axes is None else [one.axes]
        if one.pairs not in self.reordered:
            self.reordered[one.pairs] = [
                axes for axes in self.permuted if one.pairs in reordering_pairs(axes, self.mesh)
            ]
        return self.reordered[one.pairs]

    def ops_of(self, one: CompiledCollective) -> tuple[str, ...]:
        """The planned ops that the metadata of a compiled collective names, the innermost first."""
        if one.op_name not in self.names:
            self.names[one.op_name] = tuple(
                name for name in _names_in(one.op_name) if name in self.planned_ops
            )
        return self.names[one.op_name]

    def match_named(self) -> None:
        """Match those that agree in everything, where metadata names the op."""
        open_plans: dict[tuple[str, Facts], deque[int]] = {}
        for i, plan in self.plans.items():
            open_plans.setdefault((plan.op, _facts(plan)), deque()).append(i)
        # Of several that one instruction makes, the metadata of each names all: they come last.
        for j, one in sorted(self.ones.items(), key=lambda item: item[1].combined):
            keys = ((op, facts) for op in self.ops_of(one) for facts in self.facts_of(one))
            queue = next((open_plans[key] for key in keys if open_plans.get(key)), None)
            if queue:
                self.result.matched.append(self.take(queue.popleft(), j))

    def match_by_shape(self) -> None:
        """Match those that agree in everything but have no metadata to connect them.

        Metadata that names another op speaks against a match, unless several tensors share it. A
        tensor that has no collective yet goes before the second of another.
        """
        first: dict[Facts, deque[int]] = {}
        later: dict[Facts, deque[int]] = {}
        seen = {(_facts(plan), plan.tensor) for plan, _ in self.result.matched}
        for i, plan in self.plans.items():
            key = (_facts(plan), plan.tensor)
            (later if key in seen else first).setdefault(key[0], deque()).append(i)
            seen.add(key)
        for j, one in list(self.ones.items()):
            if _SCOPE in one.op_name and not one.combined:
                continue
            queues = (part.get(facts) for facts in self.facts_of(one) for part in (first, later))
            queue = next((queue for queue in queues if queue), None)
            if queue:
                pair = self.take(queue.popleft(), j)
                self.result.matched.append(pair)
                self.result.by_shape.append(pair)

    def match_altered(self, rules: Sequence[BackendRule]) -> None:
        """Match what a backend may make of a planned collective, where metadata names the op.

        Of several tensors that one instruction communicates, metadata names one at most.
        """
        forms: dict[tuple[str, Facts], deque[tuple[int, tuple[BackendRule, ...]]]] = {}
        for i, plan in self.plans.items():
            for form, used in alter(plan, rules):
                forms.setdefault((form.op, _facts(form)), deque()).append((i, used))
                forms.setdefault(("", _facts(form)), deque()).append((i, used))
        for named in (True, False):
            for j, one in list(self.ones.items()):
                ops = self.ops_of(one) if named else ("",) * one.combined
                for key in ((op, facts) for op in ops for facts in self.facts_of(one)):
                    queue = forms.get(key, deque())
                    while queue and queue[0][0] not in self.plans:
                        queue.popleft()
                    if queue:
                        i, used = queue.popleft()
                        pair = self.take(i, j)
                        self.result.matched.append(pair)
                        self.result.by_shape += [] if named else [pair]
                        self.result.rules.update(rule.name for rule in used)
                        break

    def match_axes_in_one(self) -> None:
        """Match an AllReduce over several axes with planned ones of its op, each over some."""
        parts: dict[tuple[str, str, Facts], list[int]] = {}
        for i, plan in self.plans.items():
            if plan.kind == "AllReduce":
                key = (plan.op, plan.tensor, _facts(replace(plan, axes=())))
                parts.setdefault(key, []).append(i)
        by_op: dict[tuple[str, Facts], list[list[int]]] = {}
        for (op, _, facts), numbers in parts.items():
            by_op.setdefault((op, facts), []).append(numbers)
        for j, one in list(self.ones.items()):
            for facts in self.facts_of(one):
                keys = ((op, facts._replace(axes=())) for op in self.ops_of(one))
                groups = [numbers for key in keys for numbers in by_op.get(key, ())]
                chosen = next(filter(None, (self.cover(g, facts.axes) for g in groups)), None)
                if chosen:
                    plans = [self.plans.pop(i) for i in chosen]
                    self.result.matched.append(
                        (replace(plans[0], axes=facts.axes, devices=one.devices), self.ones.pop(j))
                    )
                    self.result.merged += plans[1:]
                    self.result.rules[AXES_IN_ONE.name] += 1

    def cover(self, numbers: Sequence[int], axes: tuple[str, ...]) -> list[int]:
        """Open planned collectives whose axes, each once, are all of some axes; [] if none."""
        chosen: list[int] = []
        covered: set[str] = set()
        for i in numbers:
            if i in self.plans and {*self.plans[i].axes} <= {*axes} - covered:
                chosen.append(i)
                covered |= {*self.plans[i].axes}
        return chosen if len(chosen) > 1 and covered == {*axes} else []

    def match_tiled_scatters(self) -> None:
        """Match ReduceScatters of somewhat more, and what completes them."""
        open_plans: dict[tuple[str, Facts], deque[int]] = {}
        for i, plan in self.plans.items():
            if plan.kind == "ReduceScatter":
                key = plan.op, _facts(replace(plan, elements=0, bytes=0))
                open_plans.setdefault(key, deque()).append(i)
        completing: dict[tuple[str, int], deque[int]] = {}
        for j, one in self.ones.items():
            if one.completes:
                completing.setdefault((one.op_name, one.times), deque()).append(j)
        for j, one in list(self.ones.items()):
            for op, facts in (
                (op, facts) for op in self.ops_of(one) for facts in self.facts_of(one)
            ):
                queue = open_plans.get((op, facts._replace(elements=0, bytes=0)))
                planned = self.plans[queue[0]].elements if queue else 0
                if not queue or not planned < one.elements <= MOST_PADDING * planned:
                    continue
                self.result.matched.append(self.take(queue.popleft(), j))
                self.result.rules[TILED_SCATTER.name] += 1
                rest = completing.get((one.op_name, one.times), deque())
                if rest and self.completes(self.ones[rest[0]], one, planned):
                    self.result.helpers.append(self.ones.pop(rest.popleft()))
                break

    def completes(self, rest: CompiledCollective, one: CompiledCollective, planned: int) -> bool:
        """Whether a CollectivePermute sends no more than a padded ReduceScatter has in excess."""
        same = (rest.axes, rest.dtype) == (one.axes, one.dtype)
        return same and rest.elements <= one.elements - planned

    def merge_equal_permutes(self) -> None:
        """Take out what sends the same rows of a tensor as a collective that was made."""
        made = {(plan.tensor, _facts(plan)) for plan, _ in self.result.matched if plan.hop}
        for i, plan in list(self.plans.items()):
            if (plan.tensor, _facts(plan)) in made:
                self.result.merged.append(self.plans.pop(i))
                self.result.rules[EQUAL_ONCE.name] += 1

    def match_differing(self) -> None:
        """Pair what is left of one op and kind: it was made, but not as planned."""
        open_plans: dict[tuple[str, str], deque[int]] = {}
        for i, plan in self.plans.items():
            open_plans.setdefault((plan.op, plan.kind), deque()).append(i)
        for j, one in list(self.ones.items()):
            queues = (open_plans.get((op, one.kind)) for op in self.ops_of(one))
            queue = next((queue for queue in queues if queue), None)
            if queue:
                self.result.differing.append(self.take(queue.popleft(), j))

    def finish(self) -> Matching:
        """Return the matching, with what is left."""
        self.result.missing = list(self.plans.values())
        self.result.unplanned = list(self.ones.values())
        return self.result


def _facts(plan: Collective) -> Facts:
    """In what a compiled collective must agree with a planned one."""
    return Facts(
        plan.kind,
        plan.axes,
        plan.dtype,
        plan.elements,
        plan.bytes,
        plan.times,
        plan.open_ended,
        plan.hop,
    )


def _names_in(op_name: str) -> Iterator[str]:
    """Every name of an op that metadata may have: scopes such as nm.einsum.3, the innermost first.

    The names of a variable's initialisation have slashes themselves, so each scope is tried with
    the words after it too.
    """
    for text in _BETWEEN_NAMES.split(op_name):
        words = text.split("/")
        for i in reversed(range(len(words))):
            if words[i].startswith(_SCOPE):
                name = words[i].removeprefix(_SCOPE)
                yield name
                for word in words[i + 1 : i + 9]:
                    name = f"{name}/{word}"
                    yield name
