"""Reductions over named dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.context import Context
from namedmesh.ir.op import Op, PlacementRules
from namedmesh.ir.operands import check_dtype_kind, check_tensor
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.broadcast import check_over, leave_out, sum
from namedmesh.ops.elementwise import cast
from namedmesh.ops.logic import equal
from namedmesh.ops.logic import where as choose
from namedmesh.ops.order_keys import from_order_keys, order_keys


class Reduce(Op):
    """The maximum, minimum or product over some dimensions, or whether any or all are true."""

    function: str
    over: tuple[Dimension, ...]

    @property
    def kind(self) -> str:
        return self.function

    def results(self) -> list[tuple[Shape, str]]:
        (x,) = self.inputs
        check_dtype_kind(
            self.function,
            "bool" if self.function in ("any", "all") else "number",
            x,
            source=self.source,
        )
        return [(x.shape.without(*(dim.name for dim in self.over)), x.dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        at = [self.inputs[0].shape.position(dim.name) for dim in self.over]
        return getattr(context.tf, f"reduce_{self.function}")(x, at)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        (x,) = self.inputs
        if self.function in ("max", "min"):
            return [_share_winners(x, self.output, dy, self.over)]
        return [_prod_vjp(x, dy, self.over)]

    def flops(self) -> int:
        return self.inputs[0].shape.elements if self.inputs[0].floating else 0

    def placement(self) -> Placement:
        return Placement(reduced=[dim.name for dim in self.over])


class OrderKeys(Op):
    """Whole numbers that are ordered as floating point numbers are, or those numbers again."""

    elementwise = True
    on_shards = True
    dtype: str
    nan_first: bool

    @property
    def kind(self) -> str:
        return "order_keys"

    @property
    def closed(self) -> bool:
        return True

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape, self.dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        if x.dtype.is_floating:
            return order_keys(context.tf, x, self.nan_first)
        return from_order_keys(context.tf, x, context.dtype(self.dtype), self.nan_first)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [None]


class Extremum(Op):
    """The largest or smallest number of a tensor, found by keys, with the derivative."""

    elementwise = True
    passes_through = True
    function: str
    over: tuple[Dimension, ...]

    @property
    def kind(self) -> str:
        return self.function

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context: Context, extremum: Any, x: Any) -> Any:
        return context.tf.identity(extremum)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [None, _share_winners(self.inputs[1], self.output, dy, self.over)]

    def plan(self, rules: PlacementRules, times: int) -> None:
        rules.place_pass_through(self, times)


def _share_winners(x: Tensor, extremum: Tensor, dy: Tensor, over: Sequence[Dimension]) -> Tensor:
    """Shares a cotangent equally between the elements that are the maximum or minimum."""
    winners = cast(equal(x, extremum), x.dtype)
    return winners * (dy / sum(winners, over=over))


def _prod_vjp(x: Tensor, dy: Tensor, over: Sequence[Dimension]) -> Tensor:
    """Multiply by the product of all other elements, which is right also where some are zero."""
    zero = equal(x, 0.0)
    zeros = sum(cast(zero, x.dtype), over=over)
    others = prod(choose(zero, 1.0, x), over=over)
    alone = choose(equal(zeros, 1.0), others, 0.0)
    share = choose(zero, alone, choose(equal(zeros, 0.0), others, 0.0) / choose(zero, 1.0, x))
    return dy * share


def check_float_over(
    what: str, x: Tensor, over: Dimension | Sequence[Dimension] | None
) -> tuple[Dimension, ...]:
    """Return the dimensions to reduce a floating point tensor over, or raises."""
    dims = check_over(what, x, over)
    check_dtype_kind(what, "float", x)
    return dims


def _reduce(function: str, x: Tensor, over: Dimension | Sequence[Dimension] | None) -> Tensor:
    """Record a reduction; there is none over no dimensions."""
    dims = check_over(function, x, over)
    return Reduce((x,), function, dims).output if dims else x


def _find_extremum(
    function: str, x: Tensor, over: Dimension | Sequence[Dimension] | None
) -> Tensor:
    """Record a maximum or minimum that is nan where an element is, under every layout.

    Backends drop nan when they reduce floating point numbers across devices.
    """
    dims = check_over(function, x, over)
    if not dims or not x.floating:
        return _reduce(function, x, dims)
    nan_first = function == "min"
    extremum = Reduce((order_by_keys(x, nan_first),), function, dims).output
    return Extremum((OrderKeys((extremum,), x.dtype, nan_first).output, x), function, dims).output


def leave_out_extreme(function: str, x: Tensor, where: Tensor | None) -> Tensor:
    """Put the number that never wins in place of the elements that do not count."""
    if where is None:
        return x
    largest = function == "max"
    if check_tensor(function, x).floating:
        return leave_out(function, x, where, -math.inf if largest else math.inf)
    check_dtype_kind(function, "number", x)
    return leave_out(
        function, x, where, int(getattr(np.iinfo(x.dtype), "min" if largest else "max"))
    )


def count_where(x: Tensor, over: Sequence[Dimension], where: Tensor) -> Tensor:
    """Count the elements of some dimensions that count, in the dtype of a tensor."""
    times = math.prod(dim.size for dim in over if dim not in where.shape)
    own = [dim for dim in over if dim in where.shape]
    return cast(sum(cast(where, "float32"), own) * float(times), x.dtype)


def order_by_keys(x: Tensor, nan_first: bool) -> Tensor:
    """Convert floating point numbers to whole ones of the same order; returns others as is."""
    if not x.floating:
        return x
    return OrderKeys((x,), "int64" if x.dtype == "float64" else "int32", nan_first).output


def find_peak(x: Tensor, over: Sequence[Dimension]) -> Tensor:
    """Take a maximum for an exponential: nan may be lost, which the exponential brings back."""
    return Reduce((x,), "max", tuple(over)).output if over else x


def mean(
    x: Tensor,
    over: Dimension | Sequence[Dimension] | None = None,
    *,
    where: Tensor | None = None,
) -> Tensor:
    """Take the mean over some dimensions.

    Over a split dimension every device sums its own shard, and an AllReduce adds the partial sums.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.
        where: A bool tensor, by name: where it is False, an element does not count.

    Returns:
        A tensor without those dimensions, of the same dtype.

    Raises:
        NamedMeshError: `x` is not floating point, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.mean(x, over=M), x=([B, M], [[1.0, 2, 3], [4, 5, 6]]))
        array([2., 5.], dtype=float32)
    """
    dims = check_float_over("mean", x, over)
    total = sum(x, dims, where=where)
    if where is None:
        return total * (1.0 / Shape(dims).elements)
    return total / count_where(x, dims, where)


def max(
    x: Tensor,
    over: Dimension | Sequence[Dimension] | None = None,
    *,
    where: Tensor | None = None,
) -> Tensor:
    """Take the maximum over some dimensions.

    Over a split dimension this is an AllReduce, of floating point numbers as int32 (float64 as
    int64). It is nan where an element is. Elements that tie share the gradient equally. Use
    `nm.maximum` for the larger of two tensors.

    Args:
        x: A tensor of numbers.
        over: One dimension or several; all of them by default.
        where: A bool tensor, by name: where it is False, an element does not count.

    Returns:
        A tensor without those dimensions, of the same dtype.

    Raises:
        NamedMeshError: `x` is bool, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.max(x, over=M), x=([B, M], [[1, 2, 3], [4, 5, 6]]))
        array([3, 6], dtype=int32)
    """
    return _find_extremum("max", leave_out_extreme("max", x, where), over)


def min(
    x: Tensor,
    over: Dimension | Sequence[Dimension] | None = None,
    *,
    where: Tensor | None = None,
) -> Tensor:
    """Take the minimum over some dimensions.

    Over a split dimension this is an AllReduce, of floating point numbers as int32 (float64 as
    int64). It is nan where an element is. Elements that tie share the gradient equally. Use
    `nm.minimum` for the smaller of two tensors.

    Args:
        x: A tensor of numbers.
        over: One dimension or several; all of them by default.
        where: A bool tensor, by name: where it is False, an element does not count.

    Returns:
        A tensor without those dimensions, of the same dtype.

    Raises:
        NamedMeshError: `x` is bool, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.min(x, over=M), x=([B, M], [[1, 2, 3], [4, 5, 6]]))
        array([1, 4], dtype=int32)
    """
    return _find_extremum("min", leave_out_extreme("min", x, where), over)


def prod(
    x: Tensor,
    over: Dimension | Sequence[Dimension] | None = None,
    *,
    where: Tensor | None = None,
) -> Tensor:
    """Take the product over some dimensions.

    Over a split dimension this is an AllReduce. The gradient is right also where elements are zero.

    Args:
        x: A tensor of numbers.
        over: One dimension or several; all of them by default.
        where: A bool tensor, by name: where it is False, an element does not count.

    Returns:
        A tensor without those dimensions, of the same dtype.

    Raises:
        NamedMeshError: `x` is bool, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.prod(x, over=M), x=([B, M], [[1, 2, 3], [4, 5, 6]]))
        array([  6, 120], dtype=int32)
    """
    return _reduce("prod", leave_out("prod", x, where, 1), over)


def any(
    x: Tensor,
    over: Dimension | Sequence[Dimension] | None = None,
    *,
    where: Tensor | None = None,
) -> Tensor:
    """Return whether any element is true, over some dimensions.

    Over a split dimension this is an AllReduce.

    Args:
        x: A bool tensor.
        over: One dimension or several; all of them by default.
        where: A bool tensor, by name: where it is False, an element does not count.

    Returns:
        A bool tensor without those dimensions.

    Raises:
        NamedMeshError: `x` is not bool, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.any(x > 3, over=M), x=([B, M], [[1, 2, 3], [4, 5, 6]]))
        array([False,  True])
    """
    return _reduce("any", leave_out("any", x, where, False), over)


def all(
    x: Tensor,
    over: Dimension | Sequence[Dimension] | None = None,
    *,
    where: Tensor | None = None,
) -> Tensor:
    """Return whether all elements are true, over some dimensions.

    Over a split dimension this is an AllReduce.

    Args:
        x: A bool tensor.
        over: One dimension or several; all of them by default.
        where: A bool tensor, by name: where it is False, an element does not count.

    Returns:
        A bool tensor without those dimensions.

    Raises:
        NamedMeshError: `x` is not bool, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.all(x > 1, over=M), x=([B, M], [[1, 2, 3], [4, 5, 6]]))
        array([False,  True])
    """
    return _reduce("all", leave_out("all", x, where, True), over)
