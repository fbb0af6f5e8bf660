"""Ops that order the elements along a dimension: cumulative sums, sorting, the largest few."""

from __future__ import annotations

from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.exchange import Exchange, Pieces
from namedmesh.ir.op import Op
from namedmesh.ir.operands import check_dimension, check_dtype_kind, check_has_dims
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.constants import zeros
from namedmesh.ops.index import ScatterAdd, gather
from namedmesh.ops.order_keys import from_order_keys, order_keys, unsign_zero_and_nan
from namedmesh.ops.shape import name_apart, rename, transpose


class Cumsum(Op):
    """Running sums along a dimension."""

    dim: Dimension
    exclusive: bool
    reverse: bool

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        tf, at = context.tf, self.inputs[0].shape.position(self.dim.name)
        # XLA adds up no small or unsigned integers; int32 holds their sums, modulo their width.
        small = x.dtype in (tf.int8, tf.uint8, tf.uint32)
        terms = tf.cast(x, tf.int32) if small else x
        size = context.size(self.dim)
        if not context.compiled or size <= 32:
            total = tf.cumsum(terms, at, exclusive=self.exclusive, reverse=self.reverse)
        else:
            total = _doubling_cumsum(tf, terms, at, size, self.exclusive, self.reverse)
        if context.ways(self.dim) > 1:
            total = total + self._sum_before(context, terms, at)
        return tf.cast(total, x.dtype)

    def _sum_before(self, context: Context, terms: Any, at: int) -> Any:
        """Adds up all pieces before a device's own."""
        tf, ways = context.tf, context.ways(self.dim)
        sums = context.gather(tf.reduce_sum(terms, at, keepdims=True), self.dim)
        numbers, own = tf.range(ways), context.position(self.dim)
        before = numbers > own if self.reverse else numbers < own
        chosen = tf.reshape(before, [ways, *[1] * len(terms.shape)])
        return tf.reduce_sum(tf.where(chosen, sums, tf.zeros([], sums.dtype)), 0)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [cumsum(dy, self.dim, self.exclusive, not self.reverse)]

    def flops(self) -> int:
        return self.inputs[0].shape.elements

    def placement(self) -> Placement:
        return Placement(exchanged=[self.dim.name])

    def exchanges(self, pieces: Pieces) -> list[Exchange] | None:
        ways, x = pieces.ways(self.dim), self.inputs[0]
        if 2 * ways > self.dim.size:
            return None
        others = pieces.count_rest(x.shape, self.dim)
        dtype = "int32" if x.dtype in ("int8", "uint8", "uint32") else x.dtype
        return [Exchange("AllGather", self.dim.name, ways * others, dtype)]


def _doubling_cumsum(tf: Any, x: Any, at: int, size: int, exclusive: bool, reverse: bool) -> Any:
    """Takes running sums in log2(size) shifted additions.

    XLA's own cumulative sum takes size additions per element on some backends.
    """

    def shift(value: Any, by: int) -> Any:
        staying = slice(by, None) if reverse else slice(0, size - by)
        paddings = [[0, 0] for _ in range(value.shape.rank)]
        paddings[at] = [0, by] if reverse else [by, 0]
        return tf.pad(value[(*[slice(None)] * at, staying)], paddings)

    total = shift(x, 1) if exclusive else x
    step = 1
    while step < size:
        total = total + shift(total, step)
        step *= 2
    return total


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
            values, indices = self._choose_of_pieces(context, rows)
        return tf.transpose(values, back), tf.transpose(indices, back)

    def _choose(self, context: Context, rows: Any) -> tuple[Any, Any]:
        """Chooses along the last dimension."""
        tf = context.tf
        if context.compiled and rows.dtype.is_floating:
            # XLA has a fast way for floating point numbers, in which nan and zeros have signs.
            values, indices = tf.math.top_k(unsign_zero_and_nan(tf, rows), self.k.size)
            return values, indices
        _, indices = tf.math.top_k(_sort_keys(tf, rows), self.k.size)
        return tf.gather(rows, indices, batch_dims=len(rows.shape) - 1), indices

    def _choose_of_pieces(self, context: Context, rows: Any) -> tuple[Any, Any]:
        """Chooses of every piece, and then of what was chosen, gathered with its indices."""
        tf, size, rank = context.tf, context.size(self.dim), len(rows.shape)
        keys, start = _sort_keys(tf, rows), context.position(self.dim) * size
        there = start + tf.range(size) < self.dim.size
        keys, indices = tf.math.top_k(tf.where(there, keys, keys.dtype.min), self.k.size)
        found = tf.stack([keys, tf.cast(indices + start, keys.dtype)])
        found = context.gather(found, self.dim)  # pieces, keys and indices, rows, chosen
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

    def exchanges(self, pieces: Pieces) -> list[Exchange] | None:
        ways, x = pieces.ways(self.dim), self.inputs[0]
        if 4 * ways * self.k.size > self.dim.size:
            return None
        others = pieces.count_rest(x.shape, self.dim)
        dtype = "int64" if x.dtype in ("float64", "int64", "uint32") else "int32"
        return [Exchange("AllGather", self.dim.name, 2 * ways * self.k.size * others, dtype)]


def _scatter_back(
    dy: Tensor, indices: Tensor, along: Dimension, dim: Dimension, x: Tensor
) -> Tensor:
    """Puts a cotangent back at its indices along a dimension of x, batched over all others."""
    if along.name == dim.name:
        hidden = name_apart(along, "sorted", dy, indices, x)
        dy, indices = rename(dy, along, hidden), rename(indices, along, hidden)
    return transpose(ScatterAdd((indices, dy), dim, x.shape).output, x.shape)


class Argsort(Op):
    """The order that sorts a dimension; equal elements keep theirs."""

    manual = True
    dim: Dimension
    descending: bool

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape, "int32")]

    def lower(self, context: Context, x: Any) -> Any:
        tf = context.tf
        keys = _sort_keys(tf, x)
        if self.descending:  # TensorFlow's own descending order reverses ties under XLA
            keys = tf.bitwise.invert(keys)
        indices = tf.argsort(keys, self.inputs[0].shape.position(self.dim.name), stable=True)
        return tf.clip_by_value(indices, 0, self.dim.size - 1)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [None]

    def placement(self) -> Placement:
        return Placement(whole=[self.dim.name])


def _sort_keys(tf: Any, x: Any) -> Any:
    """Converts values to int32 or int64 of the same order, which every backend sorts alike."""
    keys = order_keys(tf, x)
    return tf.cast(keys, tf.int64 if keys.dtype in (tf.int64, tf.uint32) else tf.int32)


def cumsum(x: Tensor, dim: Dimension, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Takes running sums along a dimension.

    Where the dimension is split, every device adds the sums of the pieces before its own, which are
    gathered.

    Args:
        x: A tensor of numbers.
        dim: The dimension.
        exclusive: Whether to leave the element itself out of its sum.
        reverse: Whether to sum from the end.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` does not have the dimension, or is bool.

    Example:
        >>> import namedmesh as nm
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x: nm.cumsum(x, S), x=([S], [1, 2, 3]))
        array([1, 3, 6], dtype=int32)
    """
    check_has_dims("cumsum", x, dim)
    check_dtype_kind("cumsum", "number", x)
    if dim.size == 1:
        return zeros(x.shape, x.dtype) if exclusive else x
    return Cumsum((x,), dim, exclusive, reverse).output


def top_k(x: Tensor, dim: Dimension, k: Dimension) -> tuple[Tensor, Tensor]:
    """Finds the largest elements along a dimension, and their indices.

    Where the dimension is split, every device chooses of its piece, and what they choose is
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


def argsort(x: Tensor, dim: Dimension, descending: bool = False) -> Tensor:
    """Finds the indices that sort a dimension; elements that tie keep their order.

    nan counts as the largest number, and -0.0 equals 0.0. The dimension must be whole: where it is
    split, it is gathered first. The result carries no gradient.

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
    return _find_order("argsort", x, dim, descending)


def _find_order(what: str, x: Tensor, dim: Dimension, descending: bool) -> Tensor:
    """Finds the indices that sort a dimension; what names the caller in errors."""
    check_has_dims(what, x, dim)
    check_dtype_kind(what, "number", x)
    if dim.size == 1:
        return zeros(x.shape, "int32")
    return Argsort((x,), dim, descending).output


def sort(x: Tensor, dim: Dimension, descending: bool = False) -> Tensor:
    """Sorts the elements along a dimension.

    Where the dimension is split, it is gathered to find the order, and an AllReduce joins what
    each device has of the result. The gradient goes back to where each element came from.

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
    indices = _find_order("sort", x, dim, descending)
    if dim.size == 1:
        return x
    hidden = name_apart(dim, "sorted", x)
    ordered = gather(x, rename(indices, dim, hidden), dim)
    return transpose(rename(ordered, hidden, dim), x.shape)
