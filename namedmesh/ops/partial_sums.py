"""Partial sums inside a manual region: its gradients are added up after it.

That is right only if the ops in between are linear in the sum: derivative rules are, a backward
function of the user's own need not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.ir.op import Body, LoopSpec, Op
from namedmesh.ir.tensor import Tensor

Part = frozenset[str] | None  # the dimensions that a value is a partial sum over; None for zeros
FULL: Part = frozenset()


def check_partial_sums(body: Body, summed: frozenset[str]) -> None:
    """Raise unless every result of a region is a partial sum over dimensions, linear in it."""
    results = _Region(summed).follow(body, [FULL] * len(body.arguments))
    for tensor, part in zip(body.outputs, results, strict=True):
        if part is not None and part != summed:
            names = name_all("dimension", sorted(summed - part))
            raise NamedMeshError(
                f"manual: the gradient {tensor.label} is no sum over {names}, "
                "over which the region is split",
                str(tensor),
                fix=_FIX,
                source=tensor.source,
            )


_FIX = (
    "call the function that has a derivative of its own (nm.custom_vjp) before the region, "
    "and pass its result in"
)


class _Region:
    """Follows partial sums over some dimensions through the ops of a region."""

    def __init__(self, summed: frozenset[str]):
        self.summed = summed

    def follow(self, body: Body, arguments: Sequence[Part]) -> list[Part]:
        """Return what each result of a body is a partial sum over."""
        parts = dict(zip(body.arguments, arguments, strict=True))
        for op in body.ops:
            if not op.given:
                values = [parts[tensor] for tensor in op.inputs]
                parts.update(zip(op.outputs, self.follow_op(op, values), strict=True))
        return [parts[tensor] for tensor in body.outputs]

    def follow_op(self, op: Op, parts: Sequence[Part]) -> list[Part]:
        """Return what each result of an op is a partial sum over, or raise."""
        if op.zero:
            return [None] * len(op.outputs)
        if op.passes_through:
            return list(parts[: len(op.outputs)])
        if op.loop is not None:
            return self.follow_loop(op, op.loop, parts)
        if op.branches:
            return self.follow_branches(op, parts)
        if op.bodies and op.applies_body:
            return self.follow(op.bodies[0], parts)
        part = self.combine(op, parts)
        over = op.placement().reduced & self.summed
        # Partial results on shards are added up; of other ops, only sums are known to be sums.
        if over and not (op.sums or op.manual or op.on_shards):
            raise op.error(
                f"reduces over {name_all('dimension', sorted(over))}, of which each device has "
                "a part in the region, and not by a sum",
                *map(str, op.inputs),
                fix=f"{_FIX}; an op of your own that adds up declares sums",
            )
        return [None if part is None else self.part_of(op, x, part, over) for x in op.outputs]

    def part_of(self, op: Op, result: Tensor, part: frozenset[str], over: frozenset[str]) -> Part:
        """Return what a result is a partial sum over: as operands are, and by what is reduced."""
        names = frozenset(result.shape.names)
        # A sum over a dimension has no further elements along it to combine with.
        if part & (names | over):
            raise self.error(op, part & (names | over))
        part |= over - names
        if part and result.dtype == "bool":
            raise self.error(op, part)
        return part

    def follow_loop(self, op: Op, loop: LoopSpec, parts: Sequence[Part]) -> list[Part]:
        """Follow the iterations of a loop until what is carried no longer changes."""
        carried, rest = list(parts[: loop.carries]), parts[loop.carries :]
        tests = 0 if loop.test is None else len(loop.test.captures)
        while True:
            if loop.test is not None:
                self.check_whole(op, self.follow(loop.test, [*carried, *rest[:tests]]))
            results = self.follow(loop.body, [*carried, *rest[tests:]])
            pairs = zip(carried, results, strict=False)
            following = [self.join(op, pair) for pair in pairs]
            if following == carried:  # also what no iteration at all would leave
                return [*carried, *results[loop.carries :]]
            carried = following

    def follow_branches(self, op: Op, parts: Sequence[Part]) -> list[Part]:
        """Follow all branches of a choice, whose results must be alike."""
        self.check_whole(op, parts[:1])  # the condition
        results, start = [], 1
        for body in op.bodies:
            stop = start + len(body.captures)
            results.append(self.follow(body, parts[start:stop]))
            start = stop
        return [self.join(op, several) for several in zip(*results, strict=True)]

    def check_whole(self, op: Op, parts: Sequence[Part]) -> None:
        """Raise if what decides about a branch or a loop is a partial sum."""
        for part in parts:
            if part:
                raise self.error(op, part)

    def combine(self, op: Op, parts: Sequence[Part]) -> Part:
        """Return what an op makes of its operands, of which it may reduce some."""
        if any(group and all(parts[i] is None for i in group) for group in op.linear_in):
            return None
        partial = {i for i, part in enumerate(parts) if part}
        if not partial:
            return FULL
        for group in op.linear_in:
            if partial.issubset(group):
                return self.join(op, [parts[i] for i in group])
        raise self.error(op, parts[min(partial)] or ())

    def join(self, op: Op, parts: Sequence[Part]) -> Part:
        """Return what a sum or a choice is: zeros fit everything, other operands are alike."""
        kinds = {part for part in parts if part is not None}
        if len(kinds) > 1:
            raise self.error(op, frozenset().union(*kinds))
        return kinds.pop() if kinds else None

    def error(self, op: Op, names: Iterable[str]) -> NamedMeshError:
        """Make the error for an op that is not linear in a partial sum."""
        dims = name_all("dimension", sorted(names))
        return op.error(
            f"is not linear in a sum over {dims}, of which each device has a part in the region",
            *map(str, op.inputs),
            fix=_FIX if op.linear_in else f"{_FIX}; a linear op of your own declares linear_in",
        )
