"""Iterations of a loop that are written out: how many, and what each reads along its dimension."""

from __future__ import annotations

from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.format import format_value
from namedmesh.ir.op import Op
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.broadcast import broadcast
from namedmesh.ops.slices import pad


class Row(Op):
    """What a tensor has at one place along a dimension, that dimension removed."""

    rearranges = True
    dim: Dimension
    index: int

    @property
    def linear(self) -> str:
        return "together"

    def results(self) -> list[tuple[Shape, str]]:
        (x,) = self.inputs
        return [(x.shape.without(self.dim.name), x.dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        at = x.shape.rank - len(self.inputs[0].shape) + self.inputs[0].shape.position(self.dim.name)
        return x[(*[slice(None)] * at, self.index)]

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        one, (x,) = Dimension(self.dim.name, 1), self.inputs
        row = broadcast(dy, [one if dim == self.dim else dim for dim in x.shape])
        return [pad(row, one, self.index, self.dim.size - self.index - 1)]

    def placement(self) -> Placement:
        return Placement(whole=[self.dim.name])


def check_unroll(unroll: bool | int, over: Dimension) -> int:
    """Return how many iterations are written out one after the other, or raises."""
    if isinstance(unroll, bool):
        return over.size if unroll else 1
    divisors = [str(n) for n in range(2, over.size) if over.size % n == 0]
    if not isinstance(unroll, int):
        raise NamedMeshError(
            f"scan: unroll={format_value(unroll)} is neither a bool nor a number of iterations",
            fix=f"give True for all iterations of {over}, or a number that divides them",
        )
    if unroll < 1 or over.size % unroll:
        raise NamedMeshError(
            f"scan: unroll={format_value(unroll)} does not divide the {over.size} iterations "
            f"of {over}",
            fix=f"give True for all of them{', or ' if divisors else ''}{' or '.join(divisors)}",
        )
    return unroll
