"""Ops that order the elements along a dimension: sorting, the largest few."""

from __future__ import annotations

from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.exchange import Exchange, Shards
from namedmesh.ir.op import Op
from namedmesh.ir.operands import check_dimension, check_dtype_kind, check_has_dims
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.index import ScatterAdd
from namedmesh.ops.order_keys import from_order_keys, sort_keys, unsign_zero_and_nan
from namedmesh.ops.shape import name_apart, rename, transpose


class TopK(Op):
    """The largest elements along a dimension, in order, and their indices."""

    manual = True
    dim: Dimension
    k: Dimension

    def results(self) -> list[tuple[Shape, str]]:
        x = self.inputs[0]
        shape = x.shape.replace(self.dim.name, self.k)
        return [(shape, x.dtype), (shape, "int32")]

    def lower(self, context: Context, x: Any) -> Any:
        tf = context.tf
        at, rank = self.inputs[0].shape.position(self.dim.name), len(self.inputs[0].shape)
        last = [i for i in range(rank) if i != at] + [at]
        back = [*range(at), rank - 1, *range(at, rank - 1)]
        rows = tf.transpose(x, last)
        if context.ways(self.dim) == 1:
            values, indices = self._choose(context, rows)
        else:
            values, indices = self._choose_of_shards(context, rows)
        return tf.transpose(values, back), tf.transpose(indices, back)

    def _choose(self, context: Context, rows: Any) -> tuple[Any, Any]:
        """Choose along the last dimension."""
        tf = context.tf
        if context.compiled and rows.dtype.is_floating:
            # XLA has a fast way for floating point numbers, in which nan and zeros have signs.
            values, indices = tf.math.top_k(unsign_zero_and_nan(tf, rows), self.k.size)
            return values, indices
        _, indices = tf.math.top_k(sort_keys(tf, rows), self.k.size)
        return tf.gather(rows, indices, batch_dims=len(rows.shape) - 1), indices

    def _choose_of_shards(self, context: Context, rows: Any) -> tuple[Any, Any]:
        """Choose of every shard, and then of what was chosen, gathered with its indices."""
        tf, size, rank = context.tf, context.size(self.dim), len(rows.shape)
        keys, start = sort_keys(tf, rows), context.position(self.dim) * size
        there = start + tf.range(size) < self.dim.size
        keys, indices = tf.math.top_k(tf.where(there, keys, keys.dtype.min), self.k.size)
        found = tf.stack([keys, tf.cast(indices + start, keys.dtype)])
        found = context.gather(found, self.dim)  # shards, keys and indices, rows, chosen
        found = tf.transpose(found, [1, *range(2, rank + 1), 0, rank + 1])
        keys, indices = tf.unstack(tf.reshape(found, [2, *rows.shape[:-1], -1]))
        keys, chosen = tf.math.top_k(keys, self.k.size)
        if rows.dtype.is_floating:
            values = from_order_keys(tf, keys, rows.dtype)
        else:
            values = tf.cast(keys, rows.dtype)
        return values, tf.cast(tf.gather(indices, chosen, batch_dims=rank - 1), tf.int32)

    def vjp(self, dvalues: Tensor, dindices: Tensor) -> list[Tensor | None]:
        (x,) = self.inputs
        return [_scatter_back(dvalues, self.outputs[1], self.k, self.dim, x)]

    def placement(self) -> Placement:
        if self.k.name == self.dim.name:
            return Placement(whole=[self.dim.name])
        return Placement(whole=[self.k.name], exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        ways, x = shards.ways(self.dim), self.inputs[0]
        if 4 * ways * self.k.size > self.dim.size:
            return None
        others = shards.count_rest(x.shape, self.dim)
        dtype = "int64" if x.dtype in ("float64", "int64", "uint32") else "int32"
        return [Exchange("AllGather", self.dim.name, 2 * ways * self.k.size * others, dtype)]


def _scatter_back(
    dy: Tensor, indices: Tensor, along: Dimension, dim: Dimension, x: Tensor
) -> Tensor:
    """Put a cotangent back at its indices along a dimension of x, batched over all others."""
    if along.name == dim.name:
        hidden = name_apart(along, "sorted", dy, indices, x)
        dy, indices = rename(dy, along, hidden), rename(indices, along, hidden)
    return transpose(ScatterAdd((indices, dy), dim, x.shape).output, x.shape)


def top_k(x: Tensor, dim: Dimension, k: Dimension) -> tuple[Tensor, Tensor]:
    """Find the largest elements along a dimension, and their indices.

    Where the dimension is split, every device chooses of its shard, and what they choose is
    gathered.
    Of elements that tie, the first comes first; nan counts as the largest number. The gradient of
    the values goes to the elements that were chosen; the indices carry none.

    Args:
        x: A tensor of numbers.
        dim: The dimension.
        k: The dimension that takes its place, as large as the number of elements to find.

    Returns:
        The values, the largest first, and their int32 indices along `dim`.

    Raises:
        NamedMeshError: `x` does not have `dim`, is bool, or has `k` already, or `k` is larger than
            `dim`.

    Example:
        >>> import namedmesh as nm
        >>> S, K = nm.dims("seq=4 best=2")
        >>> values, indices = nm.evaluate(lambda x: nm.top_k(x, S, K), x=([S], [3, 9, 1, 7]))
        >>> values, indices
        (array([9, 7], dtype=int32), array([1, 3], dtype=int32))
    """
    check_has_dims("top_k", x, dim)
    check_dtype_kind("top_k", "number", x)
    if check_dimension("top_k", k, x).size > dim.size or (
        k.name != dim.name and x.shape.named(k.name)
    ):
        raise NamedMeshError(
            f"top_k: {k} cannot hold the largest of {dim}",
            str(x),
            fix=f"give a new dimension of size at most {dim.size}",
        )
    values, indices = TopK((x,), dim, k).outputs
    return values, indices
