"""Matching of planned with compiled collectives, in linear time, best evidence first."""

from __future__ import annotations

import itertools
import operator
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from namedmesh.audit.backend_rules import (
    ADDED,
    AFTER_LOOP,
    AXES_IN_ONE,
    CONCATENATED,
    EQUAL_ONCE,
    FUNCTIONS,
    IN_HALF,
    MOST_PADDING,
    NEEDLESS,
    ROUNDED,
    SCATTERED,
    SMALLER,
    TILED_SCATTER,
    UNROLLED,
    ZEROS,
    BackendRule,
    alter,
)
from namedmesh.audit.hlo.communication import CompiledCollective
from namedmesh.audit.hlo.groups import Pairs, reordering_pairs
from namedmesh.audit.hlo.module import Module
from namedmesh.audit.hlo.origins import list_makers
from namedmesh.dims.hop import Hop, list_groups
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.mistakes import Explained
from namedmesh.records.collective import KINDS, ORDERED, REDUCING, Collective, format_times

_SCOPE = "nm."  # what the names of ops have before them in the compiler's metadata
_BETWEEN_NAMES = re.compile(r"[;,:()\s]+")  # combined: (nm.einsum.9/Dot:nm.sum.7/Sum)


class Facts(NamedTuple):
    """The facts on which a planned and a compiled collective must agree."""

    kind: str
    dtype: str
    elements: int
    bytes: int
    times: int
    open_ended: bool
    reduction: str
    axes: tuple[str, ...]
    hop: Hop | None
    order: tuple[str, ...]
    receivers: tuple[str, ...]


_Key = TypeVar("_Key")
_GET_FACTS = operator.attrgetter(*Facts._fields)
# By op and facts: planned collectives by number, with the rules that lead to such facts.
_Forms = dict[tuple[str, Facts], deque[tuple[int, tuple[BackendRule, ...]]]]
# Of a collective: its axes, its hop, and how axes number devices.
_Devices = tuple[tuple[str, ...], Hop | None, tuple[str, ...], tuple[str, ...]]
_GET_DEVICES = operator.attrgetter("kind", "axes", "hop", "order", "receivers")


@dataclass(frozen=True)
class Difference:
    """A planned collective and what the compiler made of it, which no rule accepts."""

    planned: Collective
    compiled: CompiledCollective

    def __str__(self) -> str:
        plan, one = self.planned, self.compiled
        times = format_times(plan.times, plan.open_ended), format_times(one.times, one.open_ended)
        facts = (
            ("over", "+".join(plan.axes), "+".join(one.axes) if one.axes else "other groups"),
            ("of", f"{plan.elements} elements", f"{one.elements} elements"),
            ("in", plan.dtype, f"{one.sent} and then {one.dtype}" if one.sent else one.dtype),
            ("run", *times),
            ("by", plan.reduction or one.reduction, one.reduction),
        )
        changes = [f"{word} {new} for {old}" for word, old, new in facts if old != new]
        if not changes and plan.kind in ORDERED:
            changes = ["with devices in another order"]
        if not changes:  # a permutation along the same axes
            changes = ["between other devices"]
        return f"{plan.kind} of {plan.tensor} ({plan.op}): {', '.join(changes)}"


@dataclass
class Matching(Explained):
    """Planned and compiled collectives, matched; see `Audit` for the fields."""

    matched: list[tuple[Collective, CompiledCollective]] = field(default_factory=list)
    merged: list[Collective] = field(default_factory=list)
    helpers: list[CompiledCollective] = field(default_factory=list)
    unplanned: list[CompiledCollective] = field(default_factory=list)
    missing: list[Collective] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    by_shape: list[tuple[Collective, CompiledCollective]] = field(default_factory=list)
    rules: Counter[str] = field(default_factory=Counter)


def match_collectives(
    planned: Sequence[Collective],
    compiled: Sequence[CompiledCollective],
    mesh: Mesh,
    rules: Sequence[BackendRule],
    ops: Iterable[str] = (),
    orders: Iterable[tuple[str, ...]] = (),
) -> Matching:
    """Match each compiled collective with a planned one, best evidence first."""
    matcher = _Matcher(planned, compiled, mesh, ops, orders)
    if ROUNDED in rules:
        matcher.widen_rounded()
    matcher.match_named()
    # First those whose parts are all planned, since a whole may be as large as another tensor.
    for certain in (True, False):
        if CONCATENATED in rules and matcher.take_apart(certain):
            matcher.match_named()
        matcher.match_by_shape()
        matcher.match_altered(rules)
    if AXES_IN_ONE in rules:
        matcher.match_axes_in_one()
    if ADDED in rules:
        matcher.match_added()
    if TILED_SCATTER in rules:
        matcher.match_tiled_scatters()
    if SMALLER in rules:
        matcher.match_smaller()
    if AFTER_LOOP in rules:
        matcher.match_loop_sums()
    if SCATTERED in rules:
        matcher.match_scattered_sums()
    # What is a term of a sum is not sent alone; what has another op's name may be a sum of terms.
    if ADDED in rules:
        matcher.merge_terms()
    matcher.match_renamed(rules)
    if ADDED in rules:
        matcher.merge_terms()
    if UNROLLED in rules:
        for accepted in ((), rules):
            matcher.match_unrolled(accepted)
    if EQUAL_ONCE in rules:
        matcher.merge_equal_permutes()
    matcher.match_differences()
    return matcher.finish()


class _Matcher:
    """The planned and compiled collectives that are not matched yet."""

    def __init__(
        self,
        planned: Sequence[Collective],
        compiled: Sequence[CompiledCollective],
        mesh: Mesh,
        ops: Iterable[str],
        orders: Iterable[tuple[str, ...]],
    ) -> None:
        self.mesh = mesh
        self.orders = {*orders, *(plan.order for plan in planned)}  # of the shards of dimensions
        self.plans = dict(enumerate(planned))
        # What is made again goes last: whichever is planned is what it is a copy of.
        self.ones = dict(enumerate(sorted(compiled, key=lambda one: one.again)))
        self.most = len(compiled)  # the number of compiled ones so far
        self.result = Matching()
        self.names: dict[str, tuple[str, ...]] = {}  # planned ops by metadata, which repeats
        self.planned_ops = {name for plan in planned for name in (plan.op, plan.producer) if name}
        self.known_ops = self.planned_ops | {*ops}
        # The devices of planned collectives: by the axes of groups, and by senders and receivers.
        self.groups: dict[tuple[str, ...], list[_Devices]] = {}
        self.permutes: dict[Pairs, list[_Devices]] = {}
        for kind, *devices in dict.fromkeys(map(_GET_DEVICES, planned)):
            if kind in ORDERED:
                self.groups.setdefault(devices[0], []).append(tuple(devices))
            elif kind == "CollectivePermute":
                _, hop, order, receivers = devices
                pairs = find_pairs(hop, order, receivers, mesh)
                self.permutes.setdefault(pairs, []).append(tuple(devices))
        self.times_per_iteration = {max(plan.times, 1) for plan in planned if plan.open_ended}

    def take(self, plan: int, one: int) -> tuple[Collective, CompiledCollective]:
        """Take a planned and a compiled collective out of those that are not matched."""
        return self.plans.pop(plan), self.ones.pop(one)

    def index_plans(
        self, keys: Callable[[Collective], Iterable[_Key]], kinds: Sequence[str] = KINDS
    ) -> dict[_Key, deque[int]]:
        """List the planned collectives of some kinds that are not matched yet, by their keys."""
        index: dict[_Key, deque[int]] = {}
        for i, plan in self.plans.items():
            for key in keys(plan) if plan.kind in kinds else ():
                index.setdefault(key, deque()).append(i)
        return index

    def first(self, queue: deque[int] | None) -> int | None:
        """Return the first planned collective of a queue that is not matched yet."""
        while queue and queue[0] not in self.plans:
            queue.popleft()
        return queue[0] if queue else None

    def facts_of(self, one: CompiledCollective) -> Iterator[Facts]:
        """Yield the facts that a planned collective may have to agree with a compiled one."""
        if one.sent:
            return
        size = (one.dtype, one.elements, one.bytes)
        # An op of a user's does not say how it reduces.
        reductions = (one.reduction, "") if one.reduction else ("",)
        for reduction, devices in itertools.product(reductions, self.devices_of(one)):
            yield Facts(one.kind, *size, one.times, one.open_ended, reduction, *devices)
            if not one.open_ended:
                # The compiler may know the length of a loop that the plan does not know.
                for times in self.times_per_iteration:
                    if one.times % times == 0:
                        yield Facts(one.kind, *size, times, True, reduction, *devices)

    def devices_of(self, one: CompiledCollective) -> Iterable[_Devices]:
        """Return the devices of a compiled collective, as plans may have them."""
        if one.pairs is not None:
            return self.permutes.get(one.pairs, ())
        if one.axes is None:
            return ()
        if one.kind in ORDERED and not one.order:  # a slice decides who keeps what
            return self.groups.get(one.axes, [(one.axes, None, (), ())])
        return [(one.axes, None, order, ()) for order in dict.fromkeys((one.order, ()))]

    def ops_of(self, one: CompiledCollective) -> tuple[str, ...]:
        """Return the planned ops that a collective's metadata names, the innermost first."""
        key = " ".join((one.op_name, *one.terms))
        if key not in self.names:
            # A name that no op of the program has rules a match out, whatever makes the tensor;
            # what makes the terms of a sum counts where the sum is not named after a planned op.
            texts = (one.op_name, " ".join(one.terms)) if self.may_be_planned(one) else ()
            found = (
                [name for name in names_in(text) if name in self.planned_ops] for text in texts
            )
            self.names[key] = tuple(next(filter(None, found), ()))
        return self.names[key]

    def widen_rounded(self) -> None:
        """Take the sums whose results are rounded as the float32 that they add up."""
        for j, one in self.ones.items():
            for dtype, _ in one.growths if one.kind in REDUCING else ():
                self.ones[j] = replace(one, dtype=dtype)
                self.result.rules[ROUNDED.name] += 1

    def match_named(self) -> None:
        """Match collectives that agree on all facts, where metadata names the op."""
        open_plans = self.index_plans(lambda plan: [(plan.op, _facts(plan))])
        # A combined instruction's metadata names all of its ops: leave the certain ones to others.
        for j, one in sorted(self.ones.items(), key=lambda item: item[1].combined):
            keys = ((op, facts) for op in self.ops_of(one) for facts in self.facts_of(one))
            queue = next((open_plans[key] for key in keys if open_plans.get(key)), None)
            if queue:
                self.result.matched.append(self.take(queue.popleft(), j))

    def match_by_shape(self) -> None:
        """Match collectives that agree on all facts but have no metadata to connect them."""
        # Metadata that names another op is for later, unless several tensors share it. A
        # tensor without a collective so far goes before one that has a collective already.
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
        """Match what a backend may make of a planned collective, where metadata names the op."""
        forms = self.list_forms(rules)
        for j, one in list(self.ones.items()):
            self.match_form(j, forms, self.ops_of(one))
        # Of a combined instruction's tensors, metadata names one at most.
        for j, one in list(self.ones.items()):
            if one.combined:
                self.match_form(j, forms, ("",))

    def match_renamed(self, rules: Sequence[BackendRule]) -> None:
        """Match what moves as planned, but under the name of another op of the program."""
        # Compilers merge equal ops, and move collectives to other ops, whose names they then have.
        # What is planned exactly so goes before what a backend may make of something else.
        renamed = [j for j, one in self.ones.items() if self.is_of_program(one)]
        # What has no name may be rounded, as an AllToAll over a part of several slices.
        unnamed = [j for j, one in self.ones.items() if _SCOPE not in one.op_name]
        rounded = [rule for rule in rules if rule is IN_HALF]
        zeros = [rule for rule in rules if rule is ZEROS]
        spread = [j for j in unnamed if zeros and self.ones[j].spreads]
        choices = ((), renamed), (rules, renamed), (rounded, unnamed), (zeros, spread)
        for accepted, numbers in choices:
            forms = self.list_forms(accepted)
            for j in numbers:
                if j in self.ones:
                    self.match_form(j, forms, ("",))

    def is_of_program(self, one: CompiledCollective) -> bool:
        """Return whether metadata names an op of the program."""
        return any(name in self.known_ops for name in names_in(one.op_name))

    def may_be_renamed(self, one: CompiledCollective) -> bool:
        """Return whether metadata may name an op of the program other than its own."""
        return one.combined or self.is_of_program(one)

    def may_be_planned(self, one: CompiledCollective) -> bool:
        """Return whether metadata names an op of the program, or none."""
        return _SCOPE not in one.op_name or self.is_of_program(one)

    def ops_or_any(self, one: CompiledCollective) -> tuple[str, ...]:
        """Return the planned ops of a collective, then "" for any where it may be another's."""
        shared = one.combined or self.may_be_planned(one)
        return (*dict.fromkeys(self.ops_of(one)), *[""] * shared)

    def list_forms(self, rules: Sequence[BackendRule]) -> _Forms:
        """List what may be made of each planned collective, by op, and for any op."""
        forms: _Forms = {}
        for i, plan in self.plans.items():
            for form, used in alter(plan, rules) if rules else [(plan, ())]:
                for op in (form.op, ""):
                    forms.setdefault((op, _facts(form)), deque()).append((i, used))
        return forms

    def match_form(
        self, j: int, forms: _Forms, ops: Iterable[str], as_if: CompiledCollective | None = None
    ) -> None:
        """Match a compiled collective with a form of a planned one, if there is one left."""
        for key in itertools.product(ops, self.facts_of(as_if or self.ones[j])):
            queue = forms.get(key, deque())
            while queue and queue[0][0] not in self.plans:
                queue.popleft()
            if queue:
                i, used = queue.popleft()
                pair = self.take(i, j)
                self.result.matched.append(pair)
                self.result.by_shape += [] if key[0] else [pair]
                self.result.rules.update(rule.name for rule in used)
                return

    def match_axes_in_one(self) -> None:
        """Match an AllReduce over several axes with planned ones of its op over some of them."""
        parts = self.index_plans(
            lambda plan: [(plan.op, plan.tensor, _facts(plan)._replace(axes=()))], ["AllReduce"]
        )
        # Metadata names the op and not the tensor, of which an op may have several.
        by_op: dict[tuple[str, Facts], list[deque[int]]] = {}
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

    def cover(self, numbers: Iterable[int], axes: tuple[str, ...]) -> list[int]:
        """Choose planned collectives whose axes make up these axes, each once; [] if none do."""
        chosen: list[int] = []
        covered: set[str] = set()
        for i in numbers:
            if i in self.plans and {*self.plans[i].axes} <= {*axes} - covered:
                chosen.append(i)
                covered |= {*self.plans[i].axes}
        return chosen if len(chosen) > 1 and covered == {*axes} else []

    def match_added(self) -> None:
        """Match an AllReduce of a sum with the planned ones of its terms."""
        terms = self.index_plans(lambda plan: [(plan.tensor, _facts(plan))], ["AllReduce"])
        groups = [(facts, numbers) for (_, facts), numbers in terms.items() if len(numbers) > 1]
        for (facts, numbers), (j, one) in itertools.product(groups, list(self.ones.items())):
            wider = facts._replace(dtype=one.dtype, bytes=one.bytes)
            if (
                j in self.ones
                and wider in self.facts_of(one)
                and one.bytes <= facts.bytes * len(numbers)
                and one.dtype in (facts.dtype, "float32")
                and {*numbers} <= {*self.plans}
                and self.adds(one, [self.plans[i].op for i in numbers])
            ):
                first, *rest = [self.plans.pop(i) for i in numbers]
                self.result.matched.append((first, self.ones.pop(j)))
                self.result.merged += rest
                self.result.rules[ADDED.name] += 1

    def adds(self, one: CompiledCollective, ops: Sequence[str]) -> bool:
        """Check that a sum is named after one of these ops, or adds as many nameless terms."""
        named = self.ops_of(one)
        nameless = not named and self.may_be_planned(one)
        return bool({*ops} & {*named}) or (nameless and len(one.terms) == len(ops))

    def merge_terms(self) -> None:
        """Merge planned AllReduces with a matched one of the sum that they are terms of."""
        open_plans = self.index_plans(lambda plan: [(plan.op, _facts(plan)._replace(axes=()))])
        alike = {(plan.op, _facts(plan)) for plan, _ in self.result.matched}
        for plan, one in list(self.result.matched):
            terms = [name for term in one.terms for name in {*names_in(term)} & self.planned_ops]
            if plan.op in terms:
                terms.remove(plan.op)
            facts = _facts(plan)
            for op in terms:
                numbers = open_plans.get((op, facts._replace(axes=())), ())
                chosen = [i for i in numbers if i in self.plans and self.plans[i].axes == plan.axes]
                chosen = chosen[:1] or self.cover(numbers, plan.axes)
                if not chosen and (op, facts) in alike:
                    # Equal ops are made once, under the name of one that has its own collective.
                    chosen = [i for i, other in self.plans.items() if _facts(other) == facts][:1]
                self.result.merged += [self.plans.pop(i) for i in chosen]
                self.result.rules[ADDED.name] += len(chosen)

    def match_loop_sums(self) -> None:
        """Match an AllReduce after a loop with the planned one of each iteration."""
        forms = self.list_forms(())
        for j, one in list(self.ones.items()):
            if one.loop_sum is not None and self.may_be_planned(one):
                iterations, stacked, made_by = one.loop_sum
                elements = one.elements // (iterations or 1) if stacked else one.elements
                each = replace(one, elements=elements, times=one.times * iterations)
                ops = [op for op in names_in(" ".join(made_by)) if op in self.planned_ops]
                self.match_form(j, forms, ops, each)
                self.result.rules[AFTER_LOOP.name] += j not in self.ones

    def match_scattered_sums(self) -> None:
        """Match a ReduceScatter over some axes, and an AllReduce of shards, with one AllReduce."""
        open_plans = self.index_plans(
            lambda plan: [(op, _facts(plan)._replace(axes=())) for op in (plan.op, "")],
            ["AllReduce"],
        )
        for j, one in [item for item in self.ones.items() if item[1].kind == "ReduceScatter"]:
            made_by = (maker.op_name for maker in list_makers(one.tensor))
            known = any(_SCOPE in name for name in (one.op_name, *made_by))
            ops = self.ops_or_any(one) if known and self.numbers_shards(one) else ()
            for op, facts in itertools.product(ops, self.facts_of(one)):
                sums = facts._replace(kind="AllReduce", axes=(), order=())
                numbers = [i for i in open_plans.get((op, sums), ()) if i in self.plans]
                covering = [i for i in numbers if {*facts.axes} <= {*self.plans[i].axes}]
                if not covering:
                    continue
                i = min(covering, key=lambda i: len(self.plans[i].axes))
                shard = replace(one, elements=one.elements // one.devices)
                others = {*self.plans[i].axes} - {*facts.axes}
                rest = self.find_alike("AllReduce", others, shard, one) if others else []
                if rest or not others:
                    self.result.matched.append(self.take(i, j))
                    # It may be gathered again, where a slice is not all that is read.
                    whole = replace(one, reduction="")
                    gathers = self.find_alike("AllGather", {*facts.axes}, whole, one)
                    self.result.helpers += [self.ones.pop(k) for k in (*rest[:1], *gathers[:1])]
                    self.result.rules[SCATTERED.name] += 1
                    break

    def numbers_shards(self, one: CompiledCollective) -> bool:
        """Check that a scatter's devices are in the order of some dimension's shards."""
        axes = {*one.order}
        orders = {tuple(axis for axis in order if axis in axes) for order in self.orders}
        return one.order in ({order for order in orders if {*order} == axes} or {one.axes})

    def find_alike(
        self, kind: str, axes: set[str], like: CompiledCollective, of: CompiledCollective
    ) -> list[int]:
        """Find collectives of a kind and axes that send what one makes as another does."""
        facts = operator.attrgetter("elements", "dtype", "times", "open_ended", "reduction")
        return [
            j
            for j, one in self.ones.items()
            if one.kind == kind
            and {*(one.axes or ())} == axes
            and len({one.order, of.order} - {()}) <= 1
            and facts(one) == facts(like)
            and any(maker.name == of.name for maker in list_makers(one.tensor))
        ]

    def match_smaller(self) -> None:
        """Match what is sent as fewer bytes, which the code casts or broadcasts as planned."""
        forms = self.list_forms(())
        for j, one in list(self.ones.items()):
            self.match_grown(j, forms, self.ops_or_any(one))
        # Of two that send alike, the one that the code casts may have the name of the other.
        for at, (plan, other) in enumerate(list(self.result.matched) if self.ones else ()):
            alike = (j for j, one in self.ones.items() if _facts(plan) in {*self.facts_of(one)})
            j = next(alike, None) if other.growths else None
            if j is not None:
                one, self.ones[j] = self.ones[j], other
                self.match_grown(j, forms, self.ops_of(one))
                if j in self.ones:
                    self.ones[j] = one
                else:
                    self.result.matched[at] = (plan, one)

    def match_grown(self, j: int, forms: _Forms, ops: Iterable[str]) -> None:
        """Match a compiled collective with a form of the dtype and size that the code makes."""
        one = self.ones[j]
        for dtype, factor in one.growths:
            planned = replace(one, dtype=dtype, elements=one.elements * factor)
            if j in self.ones and planned.bytes > one.bytes:
                self.match_form(j, forms, ops, planned)
        self.result.rules[SMALLER.name] += j not in self.ones

    def match_tiled_scatters(self) -> None:
        """Match ReduceScatters of padded shards, and the CollectivePermutes that complete them."""
        open_plans = self.index_plans(lambda plan: [(plan.op, _facts(plan))])
        completing: dict[str, list[int]] = {}
        for j, one in self.ones.items():
            completing.setdefault(one.completes, []).append(j)
        for j, one in [(j, one) for j, one in self.ones.items() if one.padding]:
            planned = replace(one, elements=one.padding[0])
            for op, facts in itertools.product(self.ops_of(one), self.facts_of(planned)):
                i, rest = self.first(open_plans.get((op, facts))), completing.get(one.name, [])
                if i is None or one.elements > MOST_PADDING * planned.elements:
                    continue
                if self.completes([self.ones[k] for k in rest], one, facts.order or facts.axes):
                    self.result.matched.append(self.take(i, j))
                    self.result.helpers += map(self.ones.pop, rest)
                    self.result.rules[TILED_SCATTER.name] += 1
                    break

    def completes(
        self, rest: Sequence[CompiledCollective], one: CompiledCollective, order: tuple[str, ...]
    ) -> bool:
        """Check that CollectivePermutes send just what padded shards have of the next devices."""
        shard, left = one.elements // one.devices, one.elements - one.padding[1]
        left = left // one.devices * (one.devices - 1)  # the padding of all shards before the last
        groups, expected = list_groups(order, self.mesh), set()
        for hop in range(1, -(-left // shard) + 1):
            ends = (part.ravel().tolist() for part in (groups[:, :-hop], groups[:, hop:]))
            size = min(shard, left - (hop - 1) * shard)
            expected.add((frozenset(zip(*ends, strict=True)), size, one.dtype, one.times))
        made = [(other.pairs, other.elements, other.dtype, other.times) for other in rest]
        return {*made} == expected and len(made) == len(expected)

    def take_apart(self, certain: bool) -> bool:
        """Replace collectives of concatenated tensors by one for each; return if there are any."""
        sizes = {plan.elements for plan in self.plans.values()}
        joined = [
            j
            for j, one in self.ones.items()
            if one.parts
            and self.may_be_planned(one)
            and (not certain or {part.elements for part in one.parts} <= sizes)
        ]
        for j in joined:
            parts = self.ones.pop(j).parts
            self.ones.update(enumerate(parts, self.most))
            self.most += len(parts)
            self.result.rules[CONCATENATED.name] += 1
        return bool(joined)

    def match_unrolled(self, rules: Sequence[BackendRule]) -> None:
        """Match copies of a collective, in any form of it, which together run as often as it."""
        copies: dict[tuple[str, Facts], list[int]] = {}
        for j, one in self.ones.items():
            for key in itertools.product(self.ops_or_any(one), self.facts_of(one)):
                copies.setdefault((key[0], key[1]._replace(times=0)), []).append(j)
        plans = self.index_plans(
            lambda plan: [(op, _facts(plan)._replace(times=0)) for op in (plan.op, "")]
        )
        # All that are named after one op, then, of any op, all that send alike.
        for key in sorted(plans, key=lambda key: not key[0]):
            ours = [i for i in plans[key] if i in self.plans]
            theirs = dict[int, tuple[BackendRule, ...]]()
            theirs |= {j: () for j in copies.get(key, ()) if j in self.ones}
            for form, used in [one for i in ours for one in alter(self.plans[i], rules)]:
                like = form.op if key[0] else "", _facts(form)._replace(times=0)
                alike = bool(key[0]) or (form.kind in REDUCING) == (key[1].kind in REDUCING)
                for j in copies.get(like, ()):
                    if j in self.ones and (alike or self.may_be_renamed(self.ones[j])):
                        theirs.setdefault(j, used)
            self.match_copies(ours, theirs, certain=bool(key[0]))
        # Gathers and sums of equal sizes may be made alike: as many as are planned of both.
        forms: dict[Facts, dict[int, tuple[BackendRule, ...]]] = {}
        for i, plan in self.plans.items():
            for form, used in alter(plan, rules):
                forms.setdefault(_facts(form)._replace(times=0), {}).setdefault(i, used)
        for facts, used_by in forms.items():
            ours = [i for i in used_by if i in self.plans]
            used = tuple(rule for i in ours for rule in used_by[i])
            theirs = [j for j in copies.get(("", facts), ()) if j in self.ones]
            theirs = [j for j in theirs if self.may_be_renamed(self.ones[j])]
            self.match_copies(ours, {j: used if j == theirs[0] else () for j in theirs})

    def match_copies(
        self,
        ours: Sequence[int],
        theirs: Mapping[int, tuple[BackendRule, ...]],
        certain: bool = False,
    ) -> None:
        """Match planned collectives with compiled ones that together run as often, if they do."""
        planned = sum(self.plans[i].times for i in ours)
        if not planned or planned != sum(self.ones[j].times for j in theirs):
            return
        pairs = [self.take(i, j) for i, j in zip(ours, theirs, strict=False)]
        self.result.matched += pairs
        self.result.by_shape += [] if certain else pairs
        self.result.merged += [self.plans.pop(i) for i in ours[len(pairs) :]]
        self.result.helpers += [self.ones.pop(j) for j in theirs if j in self.ones]
        self.result.rules[UNROLLED.name] += len(ours)
        self.result.rules.update(rule.name for used in theirs.values() for rule in used)

    def merge_equal_permutes(self) -> None:
        """Merge planned collectives that send the same rows of a tensor as a matched one."""
        sent = {(plan.tensor, _facts(plan)) for plan, _ in self.result.matched if plan.hop}
        for i, plan in list(self.plans.items()):
            if (plan.tensor, _facts(plan)) in sent:
                self.result.merged.append(self.plans.pop(i))
                self.result.rules[EQUAL_ONCE.name] += 1

    def match_differences(self) -> None:
        """Pair the rest by op and kind: made, but not as planned."""
        open_plans = self.index_plans(lambda plan: [(plan.op, plan.kind)])
        for j, one in list(self.ones.items()):
            queues = (open_plans.get((op, one.kind)) for op in self.ops_of(one))
            queue = next(filter(None, queues), None)
            if queue:
                self.result.differences.append(Difference(*self.take(queue.popleft(), j)))

    def finish(self) -> Matching:
        """Return the matching, with the rest as missing and unplanned."""
        self.result.rules += Counter()  # without those of no use
        self.result.missing = list(self.plans.values())
        self.result.unplanned = list(self.ones.values())
        return self.result


def merge_needless(result: Matching, module: Module) -> None:
    """Merge what was not made where the code that is left of its op shows that none is needed."""
    # By op: the elements of its constants, and those that the rest reads or makes.
    sizes = {plan.op: (set[int](), set[int]()) for plan in result.missing}
    for computation, one in module.instructions() if sizes else ():
        for op in sizes.keys() & {*names_in(one.op_name)}:
            read = {part.opcode for part in computation if part.name in one.operands}
            fills = one.opcode == "constant" or (one.opcode == "broadcast" and read == {"constant"})
            types = (one.type, *computation.operand_types(one))[: 1 if fills else None]
            sizes[op][not fills].update(array.elements for type in types for array in type.arrays)
    for plan in list(result.missing):
        constants, others = sizes[plan.op]
        calls = plan.kind == "AllGather" and plan.op.partition(".")[0] in FUNCTIONS
        in_shards = calls and plan.elements // plan.devices in others
        if (in_shards and max(others) < plan.elements) or (
            not others and plan.elements > 1 and plan.elements in constants
        ):
            result.missing.remove(plan)
            result.merged.append(plan)
            result.rules[NEEDLESS.name] += 1


def find_pairs(
    hop: Hop | None, order: tuple[str, ...], receivers: tuple[str, ...], mesh: Mesh
) -> Pairs:
    """Find the senders and receivers of a planned CollectivePermute."""
    if hop is None:
        return reordering_pairs(order, receivers, mesh)
    return frozenset(pair for pair in hop.pairs(mesh) if pair[0] != pair[1])


def _facts(plan: Collective) -> Facts:
    """Return the facts of a planned collective."""
    return Facts(*_GET_FACTS(plan))


def names_in(op_name: str) -> Iterator[str]:
    """Yield every op that metadata may name, from scopes like nm.einsum.3, innermost first."""
    # Names of a variable's initialisation have slashes themselves, so each scope is tried with the
    # words after it too.
    for text in _BETWEEN_NAMES.split(op_name):
        words = text.split("/")
        for i in reversed(range(len(words))):
            if words[i].startswith(_SCOPE):
                name = words[i].removeprefix(_SCOPE)
                yield name
                for word in words[i + 1 : i + 9]:
                    name = f"{name}/{word}"
                    yield name
