"""Partial sums inside a manual region: what may be done to them before they are added up.

The derivative of a region sums over split dimensions, so each device has a part of the sum, and the
parts are added up after the region. That is right only if the ops in between are linear in the sum:
the derivative rules of ops are, a backward function of the user's own need not be.
"""

from __future__ import annotations

from collections.abc import Sequence

from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.ir.literal import Fill
from namedmesh.ir.op import Body, Op
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.control import Cond, While
from namedmesh.ops.custom import CustomVjp
from namedmesh.ops.einsum import Einsum
from namedmesh.ops.elementwise import Elementwise
from namedmesh.ops.join import Concat
from namedmesh.ops.reduce import ArgReduce, Extremum, OrderKeys, Reduce
from namedmesh.ops.scan import Scan
from namedmesh.ops.sorting import Sort, TopK

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
        """Return what each result of an op is a partial sum over, or raises."""
        if isinstance(op, Fill):
            return [None if op.value == 0 else FULL]
        if isinstance(op, Scan):
            return self.follow_loop(op, list(parts))
        if isinstance(op, Cond):
            count = len(op.yes.captures)
            yes = self.follow(op.yes, parts[1 : 1 + count])
            no = self.follow(op.no, parts[1 + count :])
            return [self.join(op, pair) for pair in zip(yes, no, strict=True)]
        if isinstance(op, CustomVjp):
            return list(parts[: op.count])
        if op.bodies and not isinstance(op, While):
            return self.follow(op.bodies[0], parts)
        part = self.combine(op, parts)
        over = op.placement().reduced & self.summed
        if over and isinstance(op, Reduce):
            raise self.error(op, over)
        if part is not None:
            part |= over
        repeated = {name for x in op.outputs for name in x.shape.names if name in (part or ())}
        if repeated:
            raise self.error(op, repeated)
        return [part if tensor.floating else FULL for tensor in op.outputs]

    def follow_loop(self, loop: Scan, parts: list[Part]) -> list[Part]:
        """Follow the iterations of a loop until what is carried no longer changes."""
        while True:
            results = self.follow(loop.body, parts)
            carried = [
                self.join(loop, pair) for pair in zip(parts[: loop.carries], results, strict=False)
            ]
            if carried == parts[: loop.carries]:
                return results
            parts[: loop.carries] = carried

    def combine(self, op: Op, parts: Sequence[Part]) -> Part:
        """Return what an op that reduces nothing makes of its operands."""
        partial = [part for part in parts if part]
        if isinstance(op, (ArgReduce, Extremum, OrderKeys, Reduce, Sort, TopK, While)):
            if partial:
                raise self.error(op, partial[0])
            return FULL
        if isinstance(op, Einsum):
            return self.multiply(op, parts)
        if isinstance(op, Concat):
            return self.join(op, parts)
        if isinstance(op, Elementwise):
            return self.combine_elements(op, parts)
        floating = [p for p, tensor in zip(parts, op.inputs, strict=True) if tensor.floating]
        if floating and all(part is None for part in floating):
            return None
        return frozenset().union(*partial)

    def combine_elements(self, op: Elementwise, parts: Sequence[Part]) -> Part:
        """Return what an elementwise function makes of its operands."""
        function = op.function
        if function == "negative":
            return parts[0]
        if function in ("add", "subtract"):
            return self.join(op, parts)
        if function == "multiply":
            return self.multiply(op, parts)
        if function == "divide" and not parts[1]:
            return parts[0]
        if function == "where" and not parts[0]:
            return self.join(op, parts[1:])
        for part in parts:
            if part:
                raise self.error(op, part)
        return FULL

    def multiply(self, op: Op, parts: Sequence[Part]) -> Part:
        """Return what a product is: of two partial sums at most one may be a factor."""
        if any(part is None for part in parts):
            return None
        partial = [part for part in parts if part]
        if len(partial) > 1:
            raise self.error(op, partial[0])
        return partial[0] if partial else FULL

    def join(self, op: Op, parts: Sequence[Part]) -> Part:
        """Return what a sum or a choice is: zeros fit everything, other operands are alike."""
        kinds = {part for part in parts if part is not None}
        if len(kinds) > 1:
            raise self.error(op, frozenset().union(*kinds))
        return kinds.pop() if kinds else None

    def error(self, op: Op, names: Sequence[str] | frozenset[str] | set[str]) -> NamedMeshError:
        """Make the error for an op that is not linear in a partial sum."""
        dims = name_all("dimension", sorted(names))
        tensors: Sequence[Tensor] = op.inputs
        return op.error(
            f"is not linear in a sum over {dims}, of which each device has a part in the region",
            *map(str, tensors),
            fix=_FIX,
        )
