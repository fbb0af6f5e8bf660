"""A roll by a number that is known only when the step runs."""

from __future__ import annotations

from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.ir.context import Context
from namedmesh.ir.exchange import Exchange, Shards
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.along import Window
from namedmesh.ops.arithmetic import negative
from namedmesh.ops.neighbours import Stretch, find_exchanges, read_rows


class TracedRoll(Window):
    """The elements moved on by as many places as a tensor says; at the end they enter at the start.

    Where the dimension is split, it is rolled by 1, 2, 4 ... places, each taken or left by a binary
    digit of the number: rows that are known while planning are exchanged.
    """

    @property
    def kind(self) -> str:
        return "roll"

    @property
    def distances(self) -> list[int]:
        """Powers of two below the size."""
        return [1 << digit for digit in range((self.dim.size - 1).bit_length())]

    def lower(self, context: Context, x: Any, by: Any) -> Any:
        tf = context.tf
        by = tf.math.floormod(by, self.dim.size)
        if context.ways(self.dim) == 1:
            return tf.roll(x, by, self.at)
        ways, shard = context.ways(self.dim), context.size(self.dim)
        for distance in self.distances:
            sources = [(x, one) for one in roll_stretches(self.dim, ways, shard, distance)]
            moved = read_rows(context, sources, self.at, self.dim, 0)
            x = tf.where(tf.bitwise.bitwise_and(by, distance) > 0, moved, x)
        return x

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [TracedRoll((dy, negative(self.inputs[1])), self.dim).output, None]

    def placement(self) -> Placement:
        return Placement(exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        ways, shard = shards.ways(self.dim), shards.size(self.dim)
        found: list[Exchange] = []
        for distance in self.distances:
            stretches = roll_stretches(self.dim, ways, shard, distance)
            more = find_exchanges(self.inputs, shards, [(0, self.dim, one) for one in stretches])
            if more is None:
                return None
            found += more
        others = shards.count_rest(self.inputs[0].shape, self.dim)
        gathered = self.dim.size * others * (ways - 1) / ways
        return found if sum(one.elements for one in found) < gathered else None


def roll_stretches(dim: Dimension, ways: int, shard: int, by: int) -> list[Stretch]:
    """Return the rows that each device reads when a dimension rolls."""
    if dim.size == ways * shard:
        return [Stretch(shard, -by, shard, dim.size, cyclic=True)]
    return [
        Stretch(shard, -by, shard, dim.size),
        Stretch(shard, dim.size - by, shard, dim.size),
    ]
