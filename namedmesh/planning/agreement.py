"""Agreement: which dimension of an op's operands holds each mesh axis, where they do not say alike.

Two operands that want one axis for two dimensions are a conflict. It is an error that lists every
way out with its price, the cheapest first; `conflicts="cheapest"` takes the cheapest instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from namedmesh.dims.sharding import Sharding
from namedmesh.ir.exchange import Shards
from namedmesh.ir.op import Op
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.claims import yield_claim
from namedmesh.planning.conflicts import Claim, Conflict, Fix, Solution, conflict_error
from namedmesh.planning.planner import Planner
from namedmesh.planning.transfers import place_after_move, price_transfers

Claims = dict[str, tuple[str, ...]]  # the axes that each dimension of an op holds


@dataclass(frozen=True)
class Agreement:
    """An op whose operands have to agree on the holder of each axis."""

    planner: Planner
    op: Op
    asked: Placement
    target: Sharding | None

    def find_claims(self, places: Sequence[Sharding]) -> Claims:
        """Find the axes that each dimension of the op holds."""
        given_up: set[tuple[str, tuple[str, ...]]] = set()
        while True:
            claims, conflict = self.join_claims(places, given_up)
            if conflict is None:
                return claims
            if self.op.derived or self.op.phase == "backward":
                given_up.add(self.find_cheapest(conflict, places, given_up).claim)
                continue
            weaker = yield_claim(self.planner, self.op, conflict)
            if weaker is not None:
                given_up.add((weaker.name, weaker.axes))
                continue
            if not self.planner.take_cheapest:
                raise conflict_error(
                    self.planner, self.op, places, conflict, self.fix(conflict, places)
                )
            solution = self.find_cheapest(conflict, places, given_up)
            given_up.add(solution.claim)
            self.planner.plan.decisions[solution.describe(self.op)].append(self.op.output.label)

    def join_claims(
        self, places: Sequence[Sharding], given_up: Collection[tuple[str, tuple[str, ...]]] = ()
    ) -> tuple[Claims, Conflict | None]:
        """Join what the operands claim, the first come first; returns the first conflict too."""
        claims: Claims = {}
        owner: dict[str, Claim] = {}
        conflict = None
        order = list(range(len(places)))
        if self.target is not None:
            near = self.target
            order.sort(key=lambda i: -sum(near.axes(name) == axes for name, axes in places[i].held))
        for i in order:
            for name, axes in places[i].held:
                if name in self.asked.whole or not self.can_split(i, name, axes):
                    continue
                if (name, axes) in given_up:
                    continue
                rivals = [axis for axis in axes if axis in owner and owner[axis].name != name]
                shorter, longer = sorted((claims.get(name, ()), axes), key=len)
                claim = Claim(name, axes, i)
                if not rivals and longer[: len(shorter)] == shorter:
                    claims[name] = longer
                    for axis in longer:
                        owner.setdefault(axis, claim)
                elif conflict is None:
                    other = owner[rivals[0] if rivals else claims[name][0]]
                    conflict = Conflict(other, claim, rivals[0] if rivals else axes[0])
        return claims, conflict

    def can_split(self, i: int, name: str, axes: Sequence[str]) -> bool:
        """Return whether an op can run split that way: some need sizes that divide evenly."""
        size = self.op.inputs[i].shape.size_of(name)
        ways = self.planner.mesh.size(axes)
        if name in self.asked.exchanged:
            return self.op.exchanges(Shards({name: ways})) is not None
        if name in self.asked.divisible:
            return size % ways == 0 and self.asked.divisible[name] % ways == 0
        return not self.op.manual or size % ways == 0

    def claim_for_free(self, claims: Claims) -> None:
        """Claims idle axes for what is made of constants: where the result is wanted, or is due."""
        planner = self.planner
        busy = {axis for axes in claims.values() for axis in axes}
        for i, tensor in enumerate(self.op.inputs):
            if tensor not in planner.plan.free:
                continue
            for dim in tensor.shape:
                name, place = dim.name, self.target or planner.plan.shardings[tensor]
                axes = place.axes(name) or planner.plan.shardings[tensor].axes(name)
                taken = name in claims or name in self.asked.whole or name in self.asked.reduced
                if not axes or taken or busy & {*axes}:
                    continue
                if self.can_split(i, name, axes):
                    claims[name] = axes
                    busy.update(axes)

    def find_cheapest(
        self,
        conflict: Conflict,
        places: Sequence[Sharding],
        given_up: Collection[tuple[str, tuple[str, ...]]],
    ) -> Solution:
        """Find which of the two claims to give up, so that the least is sent."""
        solutions = []
        for claim, other in (conflict.claims, reversed(conflict.claims)):
            left = {*given_up, (claim.name, claim.axes)}
            claims, _ = self.join_claims(places, left)
            solutions.append(Solution(claim, other, self.price(places, claims)))
        # Of equal prices the first claim, which is nearer to where the result is wanted, stays.
        return min(reversed(solutions), key=lambda one: one.wire_bytes)

    def price(self, places: Sequence[Sharding], claims: Mapping[str, tuple[str, ...]]) -> int:
        """What a device sends to bring the operands where they agree, and to add up the result."""
        planner, sent = self.planner, 0
        for tensor, place in zip(self.op.inputs, places, strict=True):
            if tensor not in planner.plan.free and tensor not in planner.open:
                agreed = Sharding.of(claims).only(tensor.shape.names)
                sent += price_transfers(planner.mesh, tensor, place, agreed)[0]
        summed = tuple(axis for name in self.asked.reduced for axis in claims.get(name, ()))
        for tensor in self.op.outputs if summed or self.target is not None else ():
            natural = Sharding.of(claims).only(tensor.shape.names)
            final = self.target if tensor is self.op.output else None
            if final is None:
                whole = frozenset(name for place in places for name in place.whole)
                due, _ = planner.give_due_axes(
                    tensor, natural.mapping, whole, planner.layout_of(self.op)
                )
                final = Sharding.of(due)
            parts = natural.with_partial(summed)
            sent += price_transfers(planner.mesh, tensor, parts, final)[0]
        return sent

    def fix(self, conflict: Conflict, places: Sequence[Sharding]) -> list[Fix]:
        """Find everything to write that makes the two claims agree, the cheapest first."""
        fixes = []
        for claim, other in (conflict.claims, reversed(conflict.claims)):
            tensor, place = self.op.inputs[claim.operand], places[claim.operand]
            words = [("replicate", claim.name)]
            if other.name != claim.name and other.name in tensor.shape.names:
                words.append(("reshard", other.name))
            for word, name in words:
                take, give = ((), (name,)) if word == "replicate" else ((name,), ())
                moved = place_after_move(self.planner, tensor, place, take, give)
                sent, kinds = price_transfers(self.planner.mesh, tensor, place, moved)
                more = self.price_after(conflict, places, claim, moved)
                if more is not None:
                    text = f"nm.{word}({tensor.label}, {name}) before it"
                    fixes.append(Fix(text, sent + more, kinds))
            if self.planner.plan.producers[tensor].given:
                held = {name: axes for name, axes in place.held if name != claim.name}
                kept = Sharding.of(held, place.whole | {claim.name})
                more = self.price_after(conflict, places, claim, kept)
                if more is not None:
                    text = f"whole=[{claim.name}] where {tensor.label} is declared"
                    memory = self.count_bytes(tensor, kept) - self.count_bytes(tensor, place)
                    fixes.append(Fix(text, more, (), memory))
        return sorted(fixes, key=lambda fix: (fix.wire_bytes + fix.memory, fix.wire_bytes))

    def count_bytes(self, tensor: Tensor, place: Sharding) -> int:
        """What a device's shard of a tensor takes."""
        return place.local_elements(tensor.shape, self.planner.mesh) * tensor.itemsize

    def price_after(
        self, conflict: Conflict, places: Sequence[Sharding], claim: Claim, place: Sharding
    ) -> int | None:
        """Price the op with one operand elsewhere; None if that leaves the conflict."""
        after = [place if i == claim.operand else other for i, other in enumerate(places)]
        claims, left = self.join_claims(after)
        if left is not None and left.about == conflict.about:
            return None
        return self.price(after, claims)
