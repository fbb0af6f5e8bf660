"""Reductions over named dimensions: extrema, their indices, products, means, variances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.op import Number, OneOfSeveral, Op, PlacementRules
from namedmesh.ir.operands import check_dtype_kind, check_has_dims, check_int, check_tensor
from namedmesh.ir.placement import Exchange, Placement, Shards
from namedmesh.ir.tensor import Over, Tensor, label_as
from namedmesh.ops.broadcast import check_over, fold_sum, leave_out, sum, widen
from namedmesh.ops.elementwise import cast
from namedmesh.ops.halo import align_rows, count_rows
from namedmesh.ops.logic import equal
from namedmesh.ops.logic import where as choose
from namedmesh.ops.mathematics import maximum, sqrt, square
from namedmesh.ops.sorting import from_order_keys, order_keys

_REDUCTIONS = {"all": "and", "any": "or", "max": "max", "min": "min", "prod": "mul"}


class Reduce(OneOfSeveral):
    """The maximum, minimum or product over some dimensions, or whether any or all are true."""

    by_name = True
    over: tuple[Dimension, ...]

    @property
    def reduction(self) -> str:
        return _REDUCTIONS[self.function]

    def results(self) -> list[tuple[Shape, str]]:
        (x,) = self.inputs
        takes = "bool" if self.function in ("any", "all") else "number"
        check_dtype_kind(self.function, takes, x, source=self.source)
        return [(x.shape.without(*(dim.name for dim in self.over)), x.dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        at = [self.inputs[0].shape.position(dim.name) for dim in self.over]
        return getattr(context.tf, f"reduce_{self.function}")(x, at)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        (x,) = self.inputs
        if self.function in ("max", "min"):
            return [_share_winners(x, self.output, dy, self.over)]
        return [_prod_vjp(x, dy, self.over)]

    def find_number(self, known: Mapping[Tensor, Number]) -> Number | None:
        return None if self.function == "prod" else known.get(self.inputs[0])

    def fold(self, *arrays: Any) -> Any:
        return fold_sum(getattr(np, self.function), arrays[0], self.inputs[0].shape, self.over)

    @property
    def summed_in(self) -> str:
        return widen(self.output.dtype) if self.function == "prod" else self.output.dtype

    def flops(self) -> int:
        return self.inputs[0].shape.elements if self.inputs[0].floating else 0

    def placement(self) -> Placement:
        return Placement(reduced=[dim.name for dim in self.over])


class OrderKeys(Op):
    """Whole numbers that are ordered as floating point numbers are, or those numbers again."""

    kind = "order_keys"
    elementwise = True
    on_shards = True
    closed = True
    dtype: str
    nan_first: bool

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape, self.dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        if x.dtype.is_floating:
            return order_keys(context.tf, x, self.nan_first)
        return from_order_keys(context.tf, x, context.dtype(self.dtype), self.nan_first)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [None]


class Extremum(OneOfSeveral):
    """The largest or smallest number of a tensor, found by keys, with the derivative."""

    by_name = True
    elementwise = True
    passes_through = True
    over: tuple[Dimension, ...]

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context: Context, extremum: Any, *_: Any) -> Any:
        return context.tf.identity(extremum)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [None, _share_winners(self.inputs[1], self.output, dy, self.over)]

    def plan(self, rules: PlacementRules, times: int) -> None:
        rules.place_pass_through(self, times)


def _share_winners(x: Tensor, extremum: Tensor, dy: Tensor, over: Sequence[Dimension]) -> Tensor:
    """Share a cotangent equally between the elements that are the maximum or minimum."""
    winners = cast(equal(x, extremum), x.dtype)
    return winners * (dy / sum(winners, over=over))


def _prod_vjp(x: Tensor, dy: Tensor, over: Sequence[Dimension]) -> Tensor:
    """Multiply by the product of all other elements, right also where some are zero."""
    zero = equal(x, 0.0)
    zeros = sum(cast(zero, x.dtype), over=over)
    others = prod(choose(zero, 1.0, x), over=over)
    alone = choose(equal(zeros, 1.0), others, 0.0)
    share = choose(zero, alone, choose(equal(zeros, 0.0), others, 0.0) / choose(zero, 1.0, x))
    return dy * share


def check_float_over(what: str, x: Tensor, over: Over) -> tuple[Dimension, ...]:
    """Return the dimensions to reduce a floating point tensor over, or raise."""
    dims = check_over(what, x, over)
    check_dtype_kind(what, "float", x)
    return dims


def _reduce(function: str, x: Tensor, over: Over) -> Tensor:
    """Record a reduction; there is none over no dimensions."""
    dims = check_over(function, x, over)
    return Reduce((x,), function, dims).output if dims else x


def _find_extremum(function: str, x: Tensor, over: Over) -> Tensor:
    """Record a maximum or minimum that is nan where an element is, under every layout."""
    dims = check_over(function, x, over)
    if not dims or not x.floating:
        return _reduce(function, x, dims)
    # Backends drop nan when they reduce floating point numbers across devices; keys keep it.
    nan_first = function == "min"
    extremum = Reduce((order_by_keys(x, nan_first),), function, dims).output
    return Extremum((OrderKeys((extremum,), x.dtype, nan_first).output, x), function, dims).output


def leave_out_extreme(function: str, x: Tensor, where: Tensor | None) -> Tensor:
    """Replace masked elements by the number that never wins."""
    if where is None:
        return x
    if check_tensor(function, x).floating:
        least, most = -math.inf, math.inf
    else:
        check_dtype_kind(function, "number", x)
        least, most = int(np.iinfo(x.dtype).min), int(np.iinfo(x.dtype).max)
    return leave_out(function, x, where, least if function == "max" else most)


def count_where(x: Tensor, over: Sequence[Dimension], where: Tensor) -> Tensor:
    """Count the elements of some dimensions that a mask selects, in the dtype of a tensor."""
    times = math.prod(dim.size for dim in over if dim not in where.shape)
    own = [dim for dim in over if dim in where.shape]
    return cast(sum(cast(where, "float32"), own) * float(times), x.dtype)


def order_by_keys(x: Tensor, nan_first: bool) -> Tensor:
    """Return floating point numbers as whole ones of the same order, others as they are."""
    if not x.floating:
        return x
    return OrderKeys((x,), "int64" if x.dtype == "float64" else "int32", nan_first).output


def find_peak(x: Tensor, over: Sequence[Dimension]) -> Tensor:
    """Return a maximum for an exponential: nan may be lost, which the exponential restores."""
    return Reduce((x,), "max", tuple(over)).output if over else x


def mean(x: Tensor, over: Over = None, *, where: Tensor | None = None) -> Tensor:
    """Return the mean over dimensions; it communicates as `nm.sum` does, of float16 in float32.

    Args:
        x: A tensor; the mean of integers and bools is float32.
        over: One dimension or several; all of them by default.
        where: A bool tensor, broadcast by name: elements where it is False do not count.

    Example:
        >>> nm.evaluate(nm.mean, x=(nm.dims("model=3"), [1.0, 2.0, 3.0]))
        array(2., dtype=float32)
    """
    x = x if check_tensor("mean", x).floating else cast(x, "float32")
    dims = check_over("mean", x, over)
    if x.dtype == "float16":  # a sum of numbers that fit may not
        return cast(mean(cast(x, "float32"), dims, where=where), x.dtype)
    total = sum(x, dims, where=where)
    if where is None:
        return label_as("mean", total * (1.0 / Shape(dims).elements))
    return label_as("mean", total / count_where(x, dims, where))


def max(x: Tensor, over: Over = None, *, where: Tensor | None = None) -> Tensor:
    """Return the maximum over dimensions, nan where an element is; ties share the gradient.

    Over a split dimension this is an AllReduce, of floats as int32 (float64 as int64).

    Args:
        x: A tensor of numbers.
        over: One dimension or several; all of them by default.
        where: A bool tensor, broadcast by name: elements where it is False do not count.

    Example:
        >>> nm.evaluate(nm.max, x=(nm.dims("model=3"), [1, 2, 3]))
        array(3, dtype=int32)
    """
    return _find_extremum("max", leave_out_extreme("max", x, where), over)


def min(x: Tensor, over: Over = None, *, where: Tensor | None = None) -> Tensor:
    """Return the minimum over dimensions, in the way of `nm.max`.

    Args:
        x: A tensor of numbers.
        over: One dimension or several; all of them by default.
        where: A bool tensor, broadcast by name: elements where it is False do not count.

    Example:
        >>> nm.evaluate(nm.min, x=(nm.dims("model=3"), [1, 2, 3]))
        array(1, dtype=int32)
    """
    return _find_extremum("min", leave_out_extreme("min", x, where), over)


def prod(x: Tensor, over: Over = None, *, where: Tensor | None = None) -> Tensor:
    """Return the product over dimensions. Its gradient is right also where elements are zero.

    Args:
        x: A tensor of numbers.
        over: One dimension or several; all of them by default.
        where: A bool tensor, broadcast by name: elements where it is False do not count.

    Example:
        >>> nm.evaluate(nm.prod, x=(nm.dims("model=3"), [4, 5, 6]))
        array(120, dtype=int32)
    """
    return _reduce("prod", leave_out("prod", x, where, 1), over)


def any(x: Tensor, over: Over = None, *, where: Tensor | None = None) -> Tensor:
    """Return a bool tensor: whether any element is true, over dimensions.

    Args:
        x: A bool tensor.
        over: One dimension or several; all of them by default.
        where: A bool tensor, broadcast by name: elements where it is False do not count.

    Example:
        >>> nm.evaluate(lambda x: nm.any(x > 3), x=(nm.dims("model=3"), [4, 2, 3]))
        array(True)
    """
    return _reduce("any", leave_out("any", x, where, False), over)


def all(x: Tensor, over: Over = None, *, where: Tensor | None = None) -> Tensor:
    """Return a bool tensor: whether all elements are true, over dimensions.

    Args:
        x: A bool tensor.
        over: One dimension or several; all of them by default.
        where: A bool tensor, broadcast by name: elements where it is False do not count.

    Example:
        >>> nm.evaluate(lambda x: nm.all(x > 1), x=(nm.dims("model=3"), [4, 2, 3]))
        array(True)
    """
    return _reduce("all", leave_out("all", x, where, True), over)


class ArgReduce(OneOfSeveral):
    """The index of the largest or smallest element along a dimension, the first at ties."""

    by_name = True
    closed = True
    over: Dimension

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape.without(self.over.name), "int32")]

    def lower(self, context: Context, x: Any) -> Any:
        at = self.inputs[0].shape.position(self.over.name)
        if context.ways(self.over) == 1:
            return self._find(context.tf, x, at)
        return self._find_over_shards(context, x, at)

    def _find(self, tf: Any, x: Any, at: int) -> Any:
        """Find the index of the first extreme element."""
        return getattr(tf, self.function)(x, at, output_type=tf.int32)

    def _find_over_shards(self, context: Context, x: Any, at: int) -> Any:
        """Gather the extreme of every shard with its index, and choose among those."""
        tf, wide = context.tf, context.tf.as_dtype(_wide(self.inputs[0].dtype))
        largest = self.function == "argmax"
        # Zeros that pad the last shard must not win.
        numbers = align_rows(tf, count_rows(context, self.over), at, len(x.shape))
        least = wide.min if largest else wide.max
        keys = tf.where(numbers < self.over.size, tf.cast(x, wide), least)
        index = self._find(tf, keys, at) + context.position(self.over) * context.size(self.over)
        extreme = (tf.reduce_max if largest else tf.reduce_min)(keys, at)
        pairs = context.gather(tf.stack([extreme, tf.cast(index, wide)]), self.over)
        winner = self._find(tf, pairs[:, 0], 0)
        shards = align_rows(tf, tf.range(context.ways(self.over)), 0, len(pairs.shape) - 1)
        chosen = tf.where(shards == winner[None], pairs[:, 1], tf.zeros([], wide))
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


def _find_index(function: str, x: Tensor, over: Dimension, where: Tensor | None) -> Tensor:
    """Record the search for the first extreme element, of those that a mask selects."""
    check_has_dims(function, x, over)
    x = cast(x, "int32") if x.dtype == "bool" else x
    keys = order_by_keys(x, nan_first=function == "argmin")
    if where is None:
        return ArgReduce((keys,), function, over).output
    # Compared with the extreme, also masked elements may win: none of the others may be finite.
    extreme = max if function == "argmax" else min
    winners = equal(keys, extreme(keys, over, where=where)) & where
    return ArgReduce((cast(winners, "int32"),), "argmax", over).output


def argmax(x: Tensor, over: Dimension, *, where: Tensor | None = None) -> Tensor:
    """Return the int32 index of the largest element: the first at ties, the first nan of all.

    Over a split dimension every device searches its shard, and the winners are gathered.

    Args:
        x: A tensor of numbers, or of bools: the first that is true.
        over: The dimension.
        where: A bool tensor, broadcast by name: elements where it is False do not count.

    Example:
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.argmax(x, over=M), x=([B, M], [[1, 3, 2], [4, 4, 0]]))
        array([1, 0], dtype=int32)
    """
    return _find_index("argmax", x, over, where)


def argmin(x: Tensor, over: Dimension, *, where: Tensor | None = None) -> Tensor:
    """Return the int32 index of the smallest element, in the way of `nm.argmax`.

    Args:
        x: A tensor of numbers.
        over: The dimension.
        where: A bool tensor, broadcast by name: elements where it is False do not count.

    Example:
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.argmin(x, over=M), x=([B, M], [[1, 3, 2], [4, 0, 0]]))
        array([0, 1], dtype=int32)
    """
    return _find_index("argmin", x, over, where)


def var(
    x: Tensor, over: Over = None, *, correction: int = 0, where: Tensor | None = None
) -> Tensor:
    """Return the mean of squared distances from the mean; two AllReduces over a split dimension.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.
        correction: Subtracted from the number of elements: 1 for the unbiased variance of a sample.
        where: A bool tensor, broadcast by name: elements where it is False do not count.

    Example:
        >>> nm.evaluate(nm.var, x=(nm.dims("model=4"), [1.0, 2.0, 3.0, 4.0]))
        array(1.25, dtype=float32)
    """
    return label_as("var", _spread("var", x, over, correction, where))


def std(
    x: Tensor, over: Over = None, *, correction: int = 0, where: Tensor | None = None
) -> Tensor:
    """Return the square root of `nm.var`. Its gradient is infinite where all elements are equal.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.
        correction: As for `nm.var`.
        where: As for `nm.var`.

    Example:
        >>> nm.evaluate(nm.std, x=(nm.dims("model=2"), [1.0, 5.0]))
        array(2., dtype=float32)
    """
    return label_as("std", sqrt(_spread("std", x, over, correction, where)))


def _spread(what: str, x: Tensor, over: Over, correction: int, where: Tensor | None) -> Tensor:
    """Compute the variance, in the name of a function."""
    dims = check_float_over(what, x, over)
    if x.dtype == "float16":  # nor may a square
        return cast(_spread(what, cast(x, "float32"), dims, correction, where), x.dtype)
    count = Shape(dims).elements - check_int(what, "correction", correction, x)
    if count < 1:
        raise NamedMeshError(
            f"{what}: correction {correction} leaves nothing of {Shape(dims).elements} elements",
            str(x),
            fix="give a smaller correction, or more elements",
        )
    squares = sum(square(x - mean(x, dims, where=where)), dims, where=where)
    if where is None:
        return squares * (1.0 / count)
    return squares / maximum(count_where(x, dims, where) - float(correction), 0.0)
