"""Sorting along a dimension, which may be split: shards are sorted, then merged two by two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.hop import Hop
from namedmesh.ir.context import Context
from namedmesh.ir.exchange import Exchange, Shards
from namedmesh.ir.op import Op
from namedmesh.ir.operands import check_dtype_kind, check_has_dims
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.constants import zeros
from namedmesh.ops.order_keys import sort_keys


class Sort(Op):
    """What is made of the order of a tensor's elements along a dimension.

    That is the elements in that order, their indices (`indexed`), or the elements of a second
    tensor. Where the dimension is split, every device sorts its shard, and pairs of devices merge
    theirs as a sorting network says: one keeps the smaller half, the other one the larger.
    """

    manual = True
    dim: Dimension
    descending: bool = False
    indexed: bool = False

    @property
    def kind(self) -> str:
        return "argsort" if self.indexed else "sort"

    def results(self) -> list[tuple[Shape, str]]:
        last = self.inputs[-1]
        return [(last.shape, "int32" if self.indexed else last.dtype)]

    def lower(self, context: Context, *values: Any) -> Any:
        tf, rank = context.tf, len(values[0].shape)
        at = self.inputs[0].shape.position(self.dim.name)
        last = [i for i in range(rank) if i != at] + [at]
        rows = [tf.transpose(value, last) for value in values]
        if self.indexed:
            start, size = context.position(self.dim), context.size(self.dim)
            rows.append(tf.broadcast_to(start * size + tf.range(size), rows[0].shape))
        rows = self._sort(tf, rows)
        if context.ways(self.dim) > 1:
            rows = self._merge_shards(context, rows)
        return tf.transpose(rows[-1], [*range(at), rank - 1, *range(at, rank - 1)])

    def _sort(self, tf: Any, rows: Sequence[Any], stable: bool = True) -> list[Any]:
        """Sort rows by the first of them; where that is not stable, at ties by the last one."""
        keys = sort_keys(tf, rows[0])
        if self.descending:  # TensorFlow's own descending order reverses ties under XLA
            keys = tf.bitwise.invert(keys)
        order = tf.argsort(keys, stable=True)
        if not stable:
            first = tf.argsort(rows[-1])
            order = tf.argsort(_take(tf, keys, first), stable=True)
            order = _take(tf, first, order)
        return [_take(tf, one, order) for one in rows]

    def _merge_shards(self, context: Context, rows: Sequence[Any]) -> list[Any]:
        """Merge sorted shards with those of other devices, round by round."""
        tf, ways, size = context.tf, context.ways(self.dim), context.size(self.dim)
        place = context.position(self.dim)
        for partners in list_rounds(ways):
            hop = Hop(sources=tuple(partners))
            others = [context.permute(one, self.dim, hop) for one in rows]
            partner = tf.gather(tf.constant(partners), place)
            lower = partner > place
            both = [
                tf.concat([tf.where(lower, mine, other), tf.where(lower, other, mine)], -1)
                for mine, other in zip(rows, others, strict=True)
            ]
            merged = self._sort(tf, both, stable=not self.indexed)
            rows = [
                tf.where(partner < 0, mine, tf.where(lower, one[..., :size], one[..., size:]))
                for mine, one in zip(rows, merged, strict=True)
            ]
        return list(rows)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        if self.indexed:
            return [None]
        x = self.inputs[0]
        indices = Sort((x,), self.dim, self.descending, indexed=True).output
        back = Sort((indices, dy), self.dim).output
        return [back] if len(self.inputs) == 1 else [None, back]

    def placement(self) -> Placement:
        return Placement(exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        ways, width = shards.ways(self.dim), sum(x.itemsize for x in self.inputs)
        sent = (width + 4 * self.indexed) * len(list_rounds(ways))
        if self.dim.size % ways or sends_more(sent, width * (ways - 1)):
            return None
        dtypes = [x.dtype for x in self.inputs] + ["int32"] * self.indexed
        count = shards.count(self.inputs[0].shape)
        return [
            Exchange(
                "CollectivePermute",
                self.dim.name,
                count,
                dtype,
                min(i, len(self.inputs) - 1),
                Hop(sources=tuple(partners)),
            )
            for partners in list_rounds(ways)
            for i, dtype in enumerate(dtypes)
        ]


def sends_more(sent: int, gathered: int) -> bool:
    """Return whether merging sends more bytes for each element than gathering."""
    return sent > gathered


def list_rounds(count: int) -> list[list[int]]:
    """List who compares with whom in a sorting network of Batcher's, round by round."""
    rounds = []
    top = 1 << max(count - 1, 1).bit_length() - 1
    step = top
    while step:
        width, rest, distance = top, 0, step
        while True:
            partners = [-1] * count
            for i in range(count - distance):
                if i & step == rest:
                    partners[i], partners[i + distance] = i + distance, i
            if max(partners) >= 0:
                rounds.append(partners)
            if width == step:
                break
            distance, width, rest = width - step, width // 2, step
        step //= 2
    return rounds


def _take(tf: Any, rows: Any, order: Any) -> Any:
    """Put the elements of rows into an order."""
    return tf.gather(rows, order, batch_dims=len(rows.shape) - 1)


def argsort(x: Tensor, dim: Dimension, descending: bool = False) -> Tensor:
    """Find the indices that sort a dimension; elements that tie keep their order.

    nan counts as the largest number, and -0.0 equals 0.0. Where the dimension is split over many
    devices, each sorts its shard, and pairs of them merge theirs; over few it is gathered first,
    which sends less. The result carries no gradient.

    Args:
        x: A tensor of numbers.
        dim: The dimension.
        descending: Whether the largest comes first.

    Returns:
        An int32 tensor of the shape of `x`.

    Raises:
        NamedMeshError: `x` does not have the dimension, or is bool.

    Example:
        >>> import namedmesh as nm
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x: nm.argsort(x, S), x=([S], [3, 1, 2]))
        array([1, 2, 0], dtype=int32)
    """
    _check("argsort", x, dim)
    if dim.size == 1:
        return zeros(x.shape, "int32")
    return Sort((x,), dim, descending, indexed=True).output


def sort(x: Tensor, dim: Dimension, descending: bool = False) -> Tensor:
    """Sort the elements along a dimension.

    Where the dimension is split, every device sorts its shard, and pairs of them merge theirs; it
    is gathered first where shards differ in size or that sends less. The gradient goes back to
    where each element came from.

    Args:
        x: A tensor of numbers.
        dim: The dimension.
        descending: Whether the largest comes first.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` does not have the dimension, or is bool.

    Example:
        >>> import namedmesh as nm
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x: nm.sort(x, S, descending=True), x=([S], [3, 1, 2]))
        array([3, 2, 1], dtype=int32)
    """
    _check("sort", x, dim)
    return x if dim.size == 1 else Sort((x,), dim, descending).output


def _check(what: str, x: Tensor, dim: Dimension) -> None:
    """Raise unless a tensor of numbers has a dimension."""
    check_has_dims(what, x, dim)
    check_dtype_kind(what, "number", x)
