"""Running sums and products along a dimension."""

from __future__ import annotations

from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.context import Context
from namedmesh.ir.op import OneOfSeveral
from namedmesh.ir.operands import check_dtype_kind, check_has_dims
from namedmesh.ir.placement import Exchange, Placement, Shards
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.associative import associative_scan
from namedmesh.ops.constants import full
from namedmesh.ops.halo import align_rows, count_rows
from namedmesh.ops.slices import shift


class Cumulative(OneOfSeveral):
    """Running sums or products along a dimension."""

    by_name = True
    late_sums = False
    dim: Dimension
    exclusive: bool
    reverse: bool

    @property
    def linear_in(self) -> tuple[tuple[int, ...], ...]:
        return ((0,),) if self.function == "cumsum" else ()

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        tf, at = context.tf, self.inputs[0].shape.position(self.dim.name)
        # XLA adds up no small or unsigned integers; int32 holds their sums, modulo their width.
        small = x.dtype in (tf.int8, tf.uint8, tf.uint32)
        terms = tf.cast(x, tf.int32) if small else x
        terms = self._fill_padding(context, terms, at)
        size = context.size(self.dim)
        if not context.compiled or size <= 32:
            compute = tf.cumsum if self.function == "cumsum" else tf.math.cumprod
            total = compute(terms, at, exclusive=self.exclusive, reverse=self.reverse)
        else:
            # XLA's own cumulative sum takes size additions per element on some backends.
            total = self._double(tf, terms, at, size)
        if context.ways(self.dim) > 1:
            total = self._join(total, self._find_before(context, terms, at))
        return tf.cast(total, x.dtype)

    def _double(self, tf: Any, x: Any, at: int, size: int) -> Any:
        """Compute running sums or products in log2(size) shifted additions or products."""

        def shift(value: Any, by: int) -> Any:
            staying = slice(by, None) if self.reverse else slice(0, size - by)
            paddings = [[0, 0] for _ in range(value.shape.rank)]
            paddings[at] = [0, by] if self.reverse else [by, 0]
            moved = value[(*[slice(None)] * at, staying)]
            return tf.pad(moved, paddings, constant_values=self.neutral)

        total = shift(x, 1) if self.exclusive else x
        step = 1
        while step < size:
            total = self._join(total, shift(total, step))
            step *= 2
        return total

    def _join(self, first: Any, second: Any) -> Any:
        return first + second if self.function == "cumsum" else first * second

    @property
    def neutral(self) -> int:
        """The number that changes nothing."""
        return 0 if self.function == "cumsum" else 1

    def _find_before(self, context: Context, terms: Any, at: int) -> Any:
        """Add up, or multiply, all shards before a device's own."""
        tf, ways = context.tf, context.ways(self.dim)
        reduce = tf.reduce_sum if self.function == "cumsum" else tf.reduce_prod
        parts = context.gather(reduce(terms, at, keepdims=True), self.dim)
        numbers, own = tf.range(ways), context.position(self.dim)
        before = numbers > own if self.reverse else numbers < own
        chosen = align_rows(tf, before, 0, len(parts.shape))
        return reduce(tf.where(chosen, parts, tf.cast(self.neutral, parts.dtype)), 0)

    def _fill_padding(self, context: Context, terms: Any, at: int) -> Any:
        """Replace the zeros that pad the last shard by what changes nothing."""
        tf = context.tf
        padded = context.size(self.dim) * context.ways(self.dim)
        if not self.neutral or padded == self.dim.size:
            return terms
        exists = count_rows(context, self.dim) < self.dim.size
        exists = align_rows(tf, exists, at, len(terms.shape))
        return tf.where(exists, terms, tf.cast(self.neutral, terms.dtype))

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        if self.function == "cumsum":
            return [cumsum(dy, self.dim, self.exclusive, not self.reverse)]
        return [_cumprod_vjp(self, dy)]

    def flops(self) -> int:
        return self.inputs[0].shape.elements

    def placement(self) -> Placement:
        return Placement(exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        ways, x = shards.ways(self.dim), self.inputs[0]
        if 2 * ways > self.dim.size:
            return None
        others = shards.count_rest(x.shape, self.dim)
        dtype = "int32" if x.dtype in ("int8", "uint8", "uint32") else x.dtype
        return [Exchange("AllGather", self.dim.name, ways * others, dtype)]


def _cumprod_vjp(op: Cumulative, dy: Tensor) -> Tensor:
    """Differentiate running products without a division, which zeros would not allow."""
    # Each product is the one before times an element, y[i] = y[i - 1] x[i]. So the whole effect of
    # y[i] is its own cotangent plus x[i + 1] times the whole effect of y[i + 1]: a running sum
    # whose every step is multiplied, computed backwards.
    (x,), dim = op.inputs, op.dim
    back = -1 if not op.reverse else 1  # the neighbour that an element flows on to

    def follow(first: Any, second: Any) -> tuple[Tensor, Tensor]:
        return first[0] * second[0], first[1] * second[0] + second[1]

    before = _accumulate("cumprod", x, dim, True, op.reverse)
    own = shift(dy, dim, back) if op.exclusive else dy
    factors = shift(x, dim, back)
    _, whole = associative_scan(follow, (factors, own), dim, reverse=not op.reverse)
    return whole * before


def _accumulate(function: str, x: Tensor, dim: Dimension, exclusive: bool, reverse: bool) -> Tensor:
    """Record running sums or products."""
    check_has_dims(function, x, dim)
    check_dtype_kind(function, "number", x)
    if dim.size == 1:
        return full(x.shape, 0 if function == "cumsum" else 1, x.dtype) if exclusive else x
    return Cumulative((x,), function, dim, exclusive, reverse).output


def cumsum(x: Tensor, dim: Dimension, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Return running sums along a dimension; if it is split, the shards' sums are gathered.

    Args:
        x: A tensor of numbers.
        dim: The dimension.
        exclusive: Leave the element itself out of its sum.
        reverse: Sum from the end.

    Example:
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x: nm.cumsum(x, S), x=([S], [1, 2, 3]))
        array([1, 3, 6], dtype=int32)
    """
    return _accumulate("cumsum", x, dim, exclusive, reverse)


def cumprod(x: Tensor, dim: Dimension, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Return running products along a dimension, in the way of `nm.cumsum`.

    Args:
        x: A tensor of numbers.
        dim: The dimension.
        exclusive: Leave the element itself out of its product.
        reverse: Multiply from the end.

    Example:
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x: nm.cumprod(x, S), x=([S], [1, 2, 3]))
        array([1, 2, 6], dtype=int32)
    """
    return _accumulate("cumprod", x, dim, exclusive, reverse)
