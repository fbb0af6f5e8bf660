"""Ops along the order of one dimension, which some need whole and others may have split."""

from __future__ import annotations

import builtins
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.context import Context
from namedmesh.ir.exchange import Exchange, Shards
from namedmesh.ir.op import Op
from namedmesh.ir.placement import Placement
from namedmesh.ops.neighbours import Stretch, find_exchanges, read_rows


class Window(Op):
    """An op that needs one dimension whole and keeps the others."""

    rearranges = True
    dim: Dimension  # of the operand

    @property
    def at(self) -> int:
        """Where the dimension stands in the operand."""
        return self.inputs[0].shape.position(self.dim.name)

    def result_dim(self) -> Dimension:
        """Return the dimension as the result has it."""
        return self.dim

    def index(self, start: Any, stop: Any, stride: int = 1) -> tuple[builtins.slice, ...]:
        """Return the index of a part of the operand along the dimension."""
        return (*[builtins.slice(None)] * self.at, builtins.slice(start, stop, stride))

    def results(self) -> list[tuple[Shape, str]]:
        x = self.inputs[0]
        return [(x.shape.replace(self.dim.name, self.result_dim()), x.dtype)]

    def placement(self) -> Placement:
        return Placement(whole=[self.dim.name])


class SplitWindow(Window):
    """A window that may stay split: each device reads what it lacks of its neighbours' shards.

    Where that is no less than all of them, the dimension is gathered before.
    """

    def stretches(self, ways: int, shard: int, size: int) -> list[Stretch]:
        """Return the rows that each device reads for its shard of the result."""
        raise NotImplementedError

    def whole(self, context: Context, x: Any) -> Any:
        """Lower the op where the dimension is whole."""
        raise NotImplementedError

    def local(self, context: Context, x: Any) -> Any:
        """Make a device's shard of the result of the rows that it has read."""
        return x

    @property
    def fill(self) -> float:
        """What rows hold that do not exist."""
        return 0

    def lower(self, context: Context, x: Any) -> Any:
        ways = context.ways(self.dim)
        if ways == 1:
            return self.whole(context, x)
        stretches = self.stretches(ways, context.size(self.dim), context.size(self.result_dim()))
        sources = [(x, stretch) for stretch in stretches]
        return self.local(context, read_rows(context, sources, self.at, self.dim, self.fill))

    def placement(self) -> Placement:
        return Placement(exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        ways, shard = shards.ways(self.dim), shards.size(self.dim)
        if self.result_dim().size < ways:
            return None
        stretches = self.stretches(ways, shard, shards.size(self.result_dim()))
        return find_exchanges(self.inputs, shards, [(0, self.dim, one) for one in stretches])
