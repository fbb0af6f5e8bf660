"""Ops that send whole shards of a dimension between devices: swaps and permutations."""

from __future__ import annotations

from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.hop import Hop
from namedmesh.ir.context import Context
from namedmesh.ir.op import Op
from namedmesh.ir.placement import Exchange, Placement, Shards
from namedmesh.ir.tensor import Tensor


class Swap(Op):
    """Two dimensions of one size in each other's places; an AllToAll if the first is sharded."""

    linear_in = ((0,),)
    by_name = True
    late_sums = False
    dim: Dimension
    other: Dimension

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        shape = self.inputs[0].shape
        at, beside = shape.position(self.dim.name), shape.position(self.other.name)
        if context.ways(self.dim) > 1:
            x = context.all_to_all(x, self.dim, beside, at)
        order = list(range(len(shape)))
        order[at], order[beside] = beside, at
        return context.tf.transpose(x, order)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [Swap((dy,), self.dim, self.other).output]

    def placement(self) -> Placement:
        return Placement(whole=[self.other.name], exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        if self.dim.size % shards.ways(self.dim):
            return None
        x = self.inputs[0]
        return [Exchange("AllToAll", self.dim.name, shards.count(x.shape), x.dtype)]


class Permute(Op):
    """Every position along a dimension has what another one had, or zeros (source -1)."""

    linear_in = ((0,),)
    by_name = True
    late_sums = False
    dim: Dimension
    sources: tuple[int, ...]

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        if context.ways(self.dim) > 1:
            return context.permute(x, self.dim, Hop(sources=self.sources))
        tf, at = context.tf, self.inputs[0].shape.position(self.dim.name)
        rows = tf.unstack(x, axis=at)
        nothing = tf.zeros_like(rows[0])
        return tf.stack([rows[i] if i >= 0 else nothing for i in self.sources], axis=at)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        back = [-1] * self.dim.size
        for receiver, sender in enumerate(self.sources):
            if sender >= 0:
                back[sender] = receiver
        return [Permute((dy,), self.dim, tuple(back)).output]

    def placement(self) -> Placement:
        return Placement(exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        if shards.ways(self.dim) != self.dim.size:
            return None
        x = self.inputs[0]
        count = shards.count_rest(x.shape, self.dim)
        hop = Hop(sources=self.sources)
        return [Exchange("CollectivePermute", self.dim.name, count, x.dtype, hop=hop)]
