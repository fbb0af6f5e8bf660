"""Recipes: the elementwise ops that make a tensor, so that a shard of it can be made alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.op import Op, options_of
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current


@dataclass(frozen=True)
class Recipe:
    """Ops that make a tensor from leaves and treat every element along a dimension by itself."""

    dim: Dimension
    leaves: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    result: Tensor

    def make(self, leaves: Sequence[Tensor], dim: Dimension | None = None) -> Tensor:
        """Make the tensor again, or a shard of it."""
        dim = dim or self.dim
        made = dict(zip(self.leaves, leaves, strict=True))
        for op in self.ops:
            again = dataclasses.replace(
                op,
                inputs=tuple(made[tensor] for tensor in op.inputs),
                **{name: self._put(value, dim) for name, value in options_of(op).items()},
            )
            made[op.output] = again.output
        return made[self.result]

    def _put(self, value: Any, dim: Dimension) -> Any:
        """Return an option of an op with another dimension in the place of the recipe's."""
        if isinstance(value, Shape):
            return Shape([self._put(one, dim) for one in value])
        if isinstance(value, tuple):
            return tuple(self._put(one, dim) for one in value)
        return dim if value == self.dim else value


def find_recipe(tensor: Tensor, dim: Dimension) -> Recipe:
    """Find what a tensor is made of, as far as ops go that treat elements by themselves."""
    trace = current("a recipe")
    leaves: dict[Tensor, None] = {}
    ops: dict[Op, None] = {}

    def visit(one: Tensor) -> None:
        op = trace.find_maker(one) if one.shape.named(dim.name) else None
        # Ops that treat every element alone, on any device.
        alone = op is not None and op.elementwise and op.inherits_sharding and not op.manual
        if op is None or not (alone and op.inputs):
            leaves[one] = None
        elif op not in ops:
            for operand in op.inputs:
                visit(operand)
            ops[op] = None

    visit(tensor)
    return Recipe(dim, tuple(leaves), tuple(ops), tensor)
