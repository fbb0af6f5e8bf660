"""Rows: what one turn of a loop that is written out reads along its dimension."""

from __future__ import annotations

from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.context import Context
from namedmesh.ir.op import Op
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.broadcast import broadcast
from namedmesh.ops.windows import pad


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
