"""Partial sums inside a manual region: its gradients are added up after it.

That is right only if the ops in between are linear in the sum: derivative rules are, a backward
function of the user's own need not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.ir.op import Body, LoopSpec, Op

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
        if op.bodies:
            return self.follow(op.bodies[0], parts)
        part = self.combine(op, parts)
        over = op.placement().reduced & self.summed
        # Partial results of a manual op are added up; of others, only sums are known to be sums.
        if over and not (op.sums or op.manual):
            raise self.error(op, over)
        if part is not None:
            part |= over
        repeated = {name for x in op.outputs for name in x.shape.names if name in (part or ())}
        if repeated:
            raise self.error(op, repeated)
        return [part] * len(op.outputs)

    def follow_loop(self, op: Op, loop: LoopSpec, parts: Sequence[Part]) -> list[Part]:
        """Follow the iterations of a loop until what is carried no longer changes."""
        carried, rest = list(parts[: loop.carries]), parts[loop.carries :]
        tests = 0 if loop.test is None else len(loop.test.captures)
        while True:
            if loop.test is not None:
                self.follow(loop.test, [*carried, *rest[:tests]])
            results = self.follow(loop.body, [*carried, *rest[tests:]])
            pairs = zip(carried, results, strict=False)
            following = [self.join(op, pair) for pair in pairs]
            if following == carried:
                return results
            carried = following

    def follow_branches(self, op: Op, parts: Sequence[Part]) -> list[Part]:
        """Follow all branches of a choice, whose results must be alike."""
        results, start = [], 1  # the first operand is the condition
        for body in op.bodies:
            stop = start + len(body.captures)
            results.append(self.follow(body, parts[start:stop]))
            start = stop
        return [self.join(op, several) for several in zip(*results, strict=True)]

    def combine(self, op: Op, parts: Sequence[Part]) -> Part:
        """Return what an op makes of its operands, of which it may reduce some."""
        if any(all(parts[i] is None for i in group) for group in op.linear_in):
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
            fix=_FIX,
        )
