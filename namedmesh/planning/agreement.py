"""Agreement: which dimension of an op each mesh axis shards, when its operands disagree."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from namedmesh.dims.sharding import Sharding
from namedmesh.ir.op import Op
from namedmesh.ir.placement import Placement, Shards
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.conflicts import (
    Claim,
    Conflict,
    Fix,
    LayoutConflict,
    describe_solution,
)
from namedmesh.planning.planner import LARGE, Axes, Planner

# What is left of claims that were given up, by dimension and axes.
Dropped = Mapping[tuple[str, tuple[str, ...]], tuple[str, ...]]


@dataclass(frozen=True)
class Agreement:
    """An op whose operands have to agree; target is where its first result is wanted."""

    planner: Planner
    op: Op
    asked: Placement
    target: Sharding | None

    def find_axes(self, places: Sequence[Sharding]) -> Axes:
        """Find the axes that each dimension of the op is sharded over."""
        planner, op = self.planner, self.op
        dropped: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}
        while True:
            axes, conflict = self.join_claims(places, dropped)
            if conflict is None:
                return axes
            # Users did not write derived ops, and cannot place their operands: no error.
            written = not op.derived and op.phase != "backward"
            # Operands that are too large to be whole both stay split, and shards of one go round.
            too_large = self.goes_round(conflict, places, LARGE)
            weaker = yield_claim(planner, op, conflict) if written and not too_large else None
            left: tuple[str, ...] = ()
            if weaker is None:
                if written and not self.goes_round(conflict, places):
                    self.note_conflict(conflict, places)
                weaker, kept, left = self.find_cheapest(conflict, places, dropped, written)
                if written:
                    planner.state.decide(describe_solution(op, weaker, kept), op.output)
            dropped[weaker.name, weaker.axes] = left

    def goes_round(
        self, conflict: Conflict, places: Sequence[Sharding], limit: int | None = None
    ) -> bool:
        """Return whether an op takes shards of either operand of a conflict one at a time."""
        sizes = [
            self.count_bytes(self.op.inputs[one.operand], places[one.operand])
            * self.planner.mesh.size(one.axes)
            for one in conflict.claims
        ]
        return self.planner.is_sliced(self.op, min(sizes), limit)

    def note_conflict(self, conflict: Conflict, places: Sequence[Sharding]) -> None:
        """Note a conflict for the end of this pass; raise where there is another pass anyway."""
        # Claims that yield later in this pass may end it too: no error until then.
        state, planner = self.planner.state, self.planner
        asks = not planner.take_cheapest and state.conflict is None
        if state.yielding or asks:
            fixes = [] if state.yielding else self.find_fixes(conflict, places)
            error = self.make_error(conflict, places, fixes)
            if state.yielding:
                raise error
            state.conflict = error
        state.solved.append(conflict.dims)

    def make_error(
        self, conflict: Conflict, places: Sequence[Sharding], fixes: Sequence[Fix]
    ) -> LayoutConflict:
        """Make the error for operands that disagree on the dimension of an axis, or on its axes."""
        op, planner, (one, two) = self.op, self.planner, conflict.claims
        theirs, mine = op.inputs[one.operand], op.inputs[two.operand]
        if one.name == two.name:
            axis, other = "+".join(one.axes), "+".join(two.axes)
            first = f"dimension {one.name} is sharded over mesh axis {axis!r} in {theirs.label}"
            second = f"over {other!r} in {mine.label}"
        else:
            first = f"mesh axis {conflict.axis!r} shards dimension {one.name} in {theirs.label}"
            second = f"dimension {two.name} in {mine.label}"
        return LayoutConflict(
            f"{op.kind}: {first} and {second}",
            f"{theirs.label}: {places[one.operand].text(theirs.shape)}",
            f"{mine.label}: {places[two.operand].text(mine.shape)}",
            f"layout: {planner.layout.text or 'empty'}",
            f"mesh: {planner.mesh}",
            source=op.source,
            fixes=fixes,
            dims=conflict.dims,
        )

    def join_claims(
        self, places: Sequence[Sharding], dropped: Dropped = MappingProxyType({})
    ) -> tuple[Axes, Conflict | None]:
        """Join the operands' shardings, the first come first; returns the first conflict too."""
        joined: Axes = {}
        owner: dict[str, Claim] = {}
        conflict = None
        order = list(range(len(places)))
        if self.target is not None:
            # An operand that is sharded as the result is wanted comes first, and so wins.
            near = self.target
            order.sort(key=lambda i: -sum(near.axes(name) == axes for name, axes in places[i].held))
        for i in order:
            for name, axes in places[i].held:
                while (name, axes) in dropped:
                    axes = dropped[name, axes]
                if not axes or name in self.asked.whole or not self.can_split(i, name, axes):
                    continue
                rivals = [axis for axis in axes if axis in owner and owner[axis].name != name]
                shorter, longer = sorted((joined.get(name, ()), axes), key=len)
                claim = Claim(name, axes, i)
                # Of one dimension, axes that continue the others' are no conflict.
                if not rivals and longer[: len(shorter)] == shorter:
                    joined[name] = longer
                    for axis in longer:
                        owner.setdefault(axis, claim)
                elif conflict is None:
                    other = owner[rivals[0] if rivals else joined[name][0]]
                    conflict = Conflict((other, claim), rivals[0] if rivals else axes[0])
        return joined, conflict

    def can_split(self, i: int, name: str, axes: Sequence[str]) -> bool:
        """Return whether the op can run so: some ops need sizes that divide evenly."""
        size = self.op.inputs[i].shape.size_of(name)
        degree = self.planner.mesh.size(axes)
        if self.exchanges(name, axes):
            return self.op.exchanges(Shards({name: degree})) is not None
        if name in self.asked.divisible:
            return self.divides(name, degree)
        return not self.op.manual or self.op.on_shards or size % degree == 0

    def divides(self, name: str, degree: int) -> bool:
        """Return whether devices divide both sizes of a dimension that may ask for that."""
        sizes = [dim.size for x in self.op.inputs for dim in x.shape if dim.name == name]
        return not any(size % degree for size in (*sizes, self.asked.divisible[name]))

    def exchanges(self, name: str, axes: Sequence[str]) -> bool:
        """Return whether the op sends what it needs of a dimension's other shards itself."""
        even = name in self.asked.divisible and self.divides(name, self.planner.mesh.size(axes))
        return name in self.asked.exchanged and not even

    def shard_constants(self, axes: Axes) -> None:
        """Shard constants over idle axes: as the result is wanted, or as the layout has it."""
        state = self.planner.state
        busy = {axis for used in axes.values() for axis in used}
        for i, tensor in enumerate(self.op.inputs):
            default = state.shardings.get(tensor, Sharding())
            for name in tensor.shape.names if tensor in state.constants else ():
                wanted = (self.target or default).axes(name) or default.axes(name)
                # What is added up or exchanged is made whole instead: nothing needs to be sent,
                # and of one number everywhere XLA would send nothing.
                asked = self.asked.whole | self.asked.reduced | self.asked.exchanged
                taken = name in axes or name in asked
                idle = wanted and not taken and not busy & {*wanted}
                if idle and self.can_split(i, name, wanted):
                    axes[name] = wanted
                    busy.update(wanted)

    def find_cheapest(
        self, conflict: Conflict, places: Sequence[Sharding], dropped: Dropped, written: bool
    ) -> tuple[Claim, Claim, tuple[str, ...]]:
        """Find the claim to give up so that the least is sent, the other one, and what is left."""
        first, second = conflict.claims
        one, other = (self.give_up(claim, places, dropped, written) for claim in (first, second))
        # Of equal prices the first claim, which is nearer to where the result is wanted, stays.
        return (first, second, one[2]) if one[:2] < other[:2] else (second, first, other[2])

    def give_up(
        self, claim: Claim, places: Sequence[Sharding], dropped: Dropped, written: bool
    ) -> tuple[int, int, tuple[str, ...]]:
        """Return what is sent if a claim is given up, and if none of its axes stay; what stays."""
        ways = []
        for count in range(1 if written else len(claim.axes)):
            left = claim.axes[:count]
            axes, _ = self.join_claims(places, {**dropped, (claim.name, claim.axes): left})
            ways.append((self.price(places, axes), left))
        sent, left = min(ways)
        return sent, ways[0][0], left

    def price(self, places: Sequence[Sharding], axes: Mapping[str, tuple[str, ...]]) -> int:
        """Return what a device sends so that operands agree, and to add up the result."""
        planner, state, sent = self.planner, self.planner.state, 0
        for tensor, place in zip(self.op.inputs, places, strict=True):
            if tensor not in state.constants and tensor not in state.accumulators:
                agreed = Sharding.of(axes).only(tensor.shape.names)
                sent += planner.price_moves(tensor, place, agreed)[0]
        summed = tuple(axis for name in self.asked.reduced for axis in axes.get(name, ()))
        for tensor in self.op.outputs if summed or self.target is not None else ():
            natural = Sharding.of(axes).only(tensor.shape.names)
            final = self.target if tensor is self.op.output else None
            if final is None:
                whole = frozenset(name for place in places for name in place.whole)
                layout = planner.layout_of(self.op)
                full, _ = planner.take_idle_axes(tensor, natural.mapping, whole, layout)
                final = Sharding.of(full)
            sent += planner.price_moves(tensor, natural.with_partial(summed), final)[0]
        return sent

    def find_fixes(self, conflict: Conflict, places: Sequence[Sharding]) -> list[Fix]:
        """Find everything to write that makes two claims agree, the cheapest first."""
        planner, fixes = self.planner, []
        for claim, other in (conflict.claims, reversed(conflict.claims)):
            tensor, place = self.op.inputs[claim.operand], places[claim.operand]
            moves = [("replicate", claim.name)]
            if other.name != claim.name and other.name in tensor.shape.names:
                moves.append(("reshard", other.name))
            for function, name in moves:
                take, give = ((), (name,)) if function == "replicate" else ((name,), ())
                moved = sharding_after_move(planner, tensor, place, take, give)
                sent, kinds = planner.price_moves(tensor, place, moved)
                more = self.price_after(conflict, places, claim, moved)
                if more is not None:
                    text = f"nm.{function}({tensor.label}, {name}) before it"
                    fixes.append(Fix(text, sent + more, kinds))
            if planner.uses.producers[tensor].given:
                held = {name: axes for name, axes in place.held if name != claim.name}
                kept = Sharding.of(held, place.whole | {claim.name})
                more = self.price_after(conflict, places, claim, kept)
                if more is not None:
                    text = f"whole=[{claim.name}] where {tensor.label} is declared"
                    memory = self.count_bytes(tensor, kept) - self.count_bytes(tensor, place)
                    fixes.append(Fix(text, more, (), memory))
        return sorted(fixes, key=lambda fix: (fix.wire_bytes + fix.memory, fix.wire_bytes))

    def count_bytes(self, tensor: Tensor, place: Sharding) -> int:
        """Return the bytes of a device's shard of a tensor."""
        return place.local_elements(tensor.shape, self.planner.mesh) * tensor.itemsize

    def price_after(
        self, conflict: Conflict, places: Sequence[Sharding], claim: Claim, place: Sharding
    ) -> int | None:
        """Price the op with one operand sharded otherwise; None if that leaves the conflict."""
        after = [place if i == claim.operand else other for i, other in enumerate(places)]
        axes, left = self.join_claims(after)
        stays = left is not None and (left.axis, left.dims) == (conflict.axis, conflict.dims)
        return None if stays else self.price(after, axes)


def sharding_after_move(
    planner: Planner, tensor: Tensor, place: Sharding, take: Collection[str], give: Collection[str]
) -> Sharding:
    """Return the sharding after `take` took the axes of the layout and `give` became whole."""
    taken = {
        name: planner.layout_axes(planner.layout, name)
        for name in take
        if tensor.shape.size_of(name) > 1
    }
    wanted = {axis for axes in taken.values() for axis in axes}
    held = {
        name: tuple(axis for axis in axes if axis not in wanted)
        for name, axes in place.held
        if name not in give
    }
    held |= taken
    whole = (place.whole - {*take}) | {*give}
    if give:  # nor does a dimension that was whole take the axes that became idle
        whole |= {name for name in tensor.shape.names if not held.get(name)}
    return Sharding.of(held, whole)


class Strength(enum.IntEnum):
    """Why an axis shards a dimension, the weakest reason first."""

    FREED = 0  # the axis was idle, and the layout maps the dimension to it
    DECLARED = 1  # an input or a parameter, sharded by the layout
    COMPUTED = 2  # computed of such
    STATED = 3  # the program states it (`nm.reshard` and its like)


def yield_claim(planner: Planner, op: Op, conflict: Conflict) -> Claim | None:
    """Return the claim that yields, if one is weak enough; the next pass does not make it."""
    # An axis that became idle on the way yields to any other claim. Where inputs and parameters
    # meet, the dimension that the layout has first keeps the axis, and so it is where an input
    # meets what was computed. A parameter does not yield there: tokens on their way to sharded
    # weights are what `nm.reshard` is for. All else is a conflict, which the user decides.
    order = list(planner.layout.rules)

    def rank(one: tuple[Claim, Strength, list[Tensor]]) -> tuple[bool, int]:
        claim, strength, _ = one
        late = order.index(claim.name) if claim.name in order else len(order)
        return strength == Strength.FREED, late

    traced = [
        (claim, *trace_claim(planner, op.inputs[claim.operand], claim, conflict.axis))
        for claim in conflict.claims
    ]
    (kept, reason, _), (claim, strength, path) = sorted(traced, key=rank)
    yields_to = {Strength.DECLARED}
    if path[-1] in {*planner.program.inputs.values()}:
        yields_to.add(Strength.COMPUTED)
    yields = strength == Strength.FREED or (strength == Strength.DECLARED and reason in yields_to)
    if not yields or (path[-1], claim.name, conflict.axis) in planner.yielded:
        return None
    # What inherits the axis on the way here would take it itself in the next pass, as an idle one.
    for tensor in path:
        planner.state.yielding[tensor, claim.name, conflict.axis] = kept.name
    return claim


def trace_claim(
    planner: Planner, tensor: Tensor, claim: Claim, axis: str
) -> tuple[Strength, list[Tensor]]:
    """Follow a claim back to the tensor in which the axis first shards the dimension."""
    state, uses = planner.state, planner.uses
    declared, path = Strength.DECLARED, list[Tensor]()
    while True:
        path.append(tensor)
        binder, producer = uses.binders.get(tensor), uses.producers[tensor]
        if tensor in state.resting or (binder is None and producer.given):
            return declared, path
        before = None
        if binder is not None:
            before = _find_operand(binder, tensor)
        elif producer.inherits_sharding:
            sharded = (x for x in producer.inputs if x in state.shardings)
            candidates = (x for x in sharded if x not in state.constants)
            holds = (x for x in candidates if axis in state.shardings[x].axes(claim.name))
            before = next(holds, None)
            if before is None:
                return Strength.FREED, path
            if not producer.same_value:
                declared = Strength.COMPUTED
        if before is None:
            return Strength.STATED, path
        if axis not in state.shardings[before].axes(claim.name):
            return Strength.FREED, [*path, before]
        tensor = before


def _find_operand(op: Op, argument: Tensor) -> Tensor | None:
    """Return what a loop along a dimension gives its body for an argument."""
    if op.loop is None or op.loop.over is None:
        return None
    pairs = zip(op.loop.body.arguments, op.inputs, strict=True)
    return next(outer for inner, outer in pairs if inner is argument)
