"""Ops that pass results on as they are, and differ from them in their derivative alone."""

from __future__ import annotations

from typing import Any

from namedmesh.dims.dimension import Shape
from namedmesh.ir.context import Context
from namedmesh.ir.op import Op, PlacementRules


class PassThrough(Op):
    """The first operands passed on as they are; the others are what the derivative reads."""

    elementwise = True
    passes_through = True
    count: int  # how many operands are passed on

    @property
    def repeatable(self) -> bool:
        return True

    def results(self) -> list[tuple[Shape, str]]:
        return [(x.shape, x.dtype) for x in self.inputs[: self.count]]

    def lower(self, context: Context, *values: Any) -> Any:
        return [context.tf.identity(value) for value in values[: self.count]]

    def plan(self, rules: PlacementRules, times: int) -> None:
        rules.place_pass_through(self, times)
