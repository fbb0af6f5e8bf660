"""Where the largest and smallest elements along a dimension are."""

from __future__ import annotations

from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.context import Context
from namedmesh.ir.exchange import Exchange, Shards
from namedmesh.ir.op import Op
from namedmesh.ir.operands import check_dtype_kind, check_has_dims
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.elementwise import cast
from namedmesh.ops.logic import equal
from namedmesh.ops.reduce import max, min, order_by_keys


class ArgReduce(Op):
    """The index of the largest or smallest element along a dimension, the first at ties."""

    function: str
    over: Dimension

    @property
    def kind(self) -> str:
        return self.function

    @property
    def closed(self) -> bool:
        return True

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape.without(self.over.name), "int32")]

    def lower(self, context: Context, x: Any) -> Any:
        at = self.inputs[0].shape.position(self.over.name)
        if context.ways(self.over) == 1:
            return self._find(context.tf, x, at)
        return self._find_over_shards(context, x, at)

    def _find(self, tf: Any, x: Any, at: int) -> Any:
        """Find the index of the first extreme element."""
        compute = tf.argmax if self.function == "argmax" else tf.argmin
        return compute(x, at, output_type=tf.int32)

    def _find_over_shards(self, context: Context, x: Any, at: int) -> Any:
        """Find that of every shard, and gathers those, each with its index."""
        tf, size = context.tf, context.size(self.over)
        wide = tf.as_dtype(_wide(self.inputs[0].dtype))
        keys, start = tf.cast(x, wide), context.position(self.over) * size
        largest = self.function == "argmax"
        numbers = tf.reshape(start + tf.range(size), [size, *[1] * (len(x.shape) - at - 1)])
        keys = tf.where(numbers < self.over.size, keys, wide.min if largest else wide.max)
        index = self._find(tf, keys, at)
        extreme = (tf.reduce_max if largest else tf.reduce_min)(keys, at)
        found = context.gather(tf.stack([extreme, tf.cast(index + start, wide)]), self.over)
        winner = self._find(tf, found[:, 0], 0)
        ways = tf.reshape(tf.range(context.ways(self.over)), [-1, *[1] * len(winner.shape)])
        chosen = tf.where(ways == winner[None], found[:, 1], tf.zeros([], wide))
        return tf.cast(tf.reduce_sum(chosen, 0), tf.int32)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [None]

    def placement(self) -> Placement:
        return Placement(exchanged=[self.over.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        ways, x = shards.ways(self.over), self.inputs[0]
        if 4 * ways > self.over.size:
            return None
        others = shards.count(self.output.shape)
        return [Exchange("AllGather", self.over.name, 2 * ways * others, _wide(x.dtype))]


def _wide(dtype: str) -> str:
    """Return the dtype in which an element and its index are sent together."""
    return "int64" if dtype in ("int64", "uint32") else "int32"


def _find_where(function: str, keys: Tensor, over: Dimension, where: Tensor) -> Tensor:
    """Find the first of the elements that count and are extreme, also if none is finite."""
    extreme = max if function == "argmax" else min
    found = equal(keys, extreme(keys, over, where=where)) & where
    return ArgReduce((cast(found, "int32"),), "argmax", over).output


def argmax(x: Tensor, over: Dimension, *, where: Tensor | None = None) -> Tensor:
    """Find the index of the largest element along a dimension, the first of those that tie.

    Where there is a nan, the first one is found. Where the dimension is split, every device looks
    through its shard, and what they find is gathered. The result carries no gradient.

    Args:
        x: A tensor of numbers.
        over: The dimension.
        where: A bool tensor, by name: where it is False, an element does not count.

    Returns:
        An int32 tensor without the dimension.

    Raises:
        NamedMeshError: `x` does not have the dimension, or is bool.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.argmax(x, over=M), x=([B, M], [[1, 3, 2], [4, 4, 0]]))
        array([1, 0], dtype=int32)
    """
    check_has_dims("argmax", x, over)
    check_dtype_kind("argmax", "number", x)
    keys = order_by_keys(x, nan_first=False)
    if where is not None:
        return _find_where("argmax", keys, over, where)
    return ArgReduce((keys,), "argmax", over).output


def argmin(x: Tensor, over: Dimension, *, where: Tensor | None = None) -> Tensor:
    """Find the index of the smallest element along a dimension, the first of those that tie.

    Where there is a nan, the first one is found. Where the dimension is split, every device looks
    through its shard, and what they find is gathered. The result carries no gradient.

    Args:
        x: A tensor of numbers.
        over: The dimension.
        where: A bool tensor, by name: where it is False, an element does not count.

    Returns:
        An int32 tensor without the dimension.

    Raises:
        NamedMeshError: `x` does not have the dimension, or is bool.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.argmin(x, over=M), x=([B, M], [[1, 3, 2], [4, 0, 0]]))
        array([0, 1], dtype=int32)
    """
    check_has_dims("argmin", x, over)
    check_dtype_kind("argmin", "number", x)
    keys = order_by_keys(x, nan_first=True)
    if where is not None:
        return _find_where("argmin", keys, over, where)
    return ArgReduce((keys,), "argmin", over).output
