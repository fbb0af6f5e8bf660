"""Quantiles, norms, and reductions that leave out what is not a number."""

from __future__ import annotations

import math
from collections.abc import Callable

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.literal import check_number
from namedmesh.ir.operands import check_dtype_kind, check_has_dims, check_tensor
from namedmesh.ir.tensor import Operand, Over, Tensor, label_as
from namedmesh.ops.broadcast import sum
from namedmesh.ops.counting import count_nonzero, is_nan
from namedmesh.ops.elementwise import cast
from namedmesh.ops.gather import gather
from namedmesh.ops.indexing import take
from namedmesh.ops.logic import equal, logical_not, where
from namedmesh.ops.mathematics import absolute, ceil, clip, floor, power, sqrt, square
from namedmesh.ops.reduce import any, check_float_over, max, mean, min, prod, std, var
from namedmesh.ops.shape import transpose
from namedmesh.ops.sorting import sort


def quantile(x: Tensor, q: Operand, dim: Dimension) -> Tensor:
    """Return the number below which a share of the elements along a dimension lies.

    Between two elements it is interpolated, as numpy does; nan where an element is.

    Args:
        x: A floating point tensor.
        q: The share, from 0 to 1: a number or a tensor of the same dtype.
        dim: The dimension.

    Example:
        >>> S = nm.Dimension("seq", 5)
        >>> find = lambda x: nm.quantile(x, 0.25, S)
        >>> nm.evaluate(find, x=([S], [5.0, 1.0, 3.0, 2.0, 4.0]))
        array(2., dtype=float32)
    """
    check_has_dims("quantile", x, dim)
    check_dtype_kind("quantile", "float", x)
    if not isinstance(q, Tensor) and not 0 <= (q := check_number("quantile", q, "float32")) <= 1:
        raise NamedMeshError(f"quantile: {q} is not between 0 and 1", fix="give a share")
    ordered, last = sort(x, dim), float(dim.size - 1)
    if isinstance(q, Tensor):
        place = clip(q, 0.0, 1.0) * last
        low, high = floor(place), ceil(place)
        share = place - low
        below, above = (gather(ordered, cast(one, "int32"), dim) for one in (low, high))
    else:
        low, high = math.floor(q * last), math.ceil(q * last)
        share = q * last - low
        below, above = (take(ordered, dim, one) for one in (low, high))
    # Two infinite elements have no difference.
    value = where(equal(below, above), below, below + (above - below) * share)
    value = transpose(where(any(is_nan(x), dim), float("nan"), value), value.shape)
    return label_as("quantile", value)


def median(x: Tensor, dim: Dimension) -> Tensor:
    """Return the middle element along a dimension, or the mean of the two in the middle.

    Args:
        x: A floating point tensor.
        dim: The dimension.

    Example:
        >>> S = nm.Dimension("seq", 4)
        >>> nm.evaluate(lambda x: nm.median(x, S), x=([S], [9.0, 1.0, 3.0, 2.0]))
        array(2.5, dtype=float32)
    """
    check_float_over("median", x, dim)
    return label_as("median", quantile(x, 0.5, dim))


def norm(x: Tensor, over: Over = None, order: float = 2) -> Tensor:
    """Return the norm over dimensions: the root of the sum of squares, or another one.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.
        order: 2, 1 (the sum of absolute values), inf or -inf (the largest or smallest of them),
            0 (how many are not zero), or any other power.

    Example:
        >>> nm.evaluate(nm.norm, x=(nm.dims("model=2"), [3.0, 4.0]))
        array(5., dtype=float32)
    """
    dims = check_float_over("norm", x, over)
    order = float(check_number("norm: order", order, "float32"))
    if order == 2:
        total = sum(square(x), dims)
        some = total > 0.0  # the root's gradient is infinite at zero
        return label_as("norm", where(some, sqrt(where(some, total, 1.0)), total))
    if order == 0:
        return label_as("norm", cast(count_nonzero(x, dims), x.dtype))
    if order in (float("inf"), float("-inf")):
        return label_as("norm", (max if order > 0 else min)(absolute(x), dims))
    total = sum(power(absolute(x), order), dims)
    return label_as("norm", total if order == 1 else power(total, 1.0 / order))


def _without_nan(reduce: Callable[..., Tensor], x: Tensor, over: Over) -> Tensor:
    """Reduce the elements that are numbers."""
    what = f"nan{reduce.__name__}"
    check_dtype_kind(what, "float", check_tensor(what, x))
    number = logical_not(is_nan(x))
    known = transpose(where(number, x, 0.0), x.shape)  # not even the gradient sees nan
    reduced = reduce(known, over, where=number)
    if reduce in (max, min):
        reduced = where(any(number, over), reduced, float("nan"))
    return label_as(what, reduced)


def nansum(x: Tensor, over: Over = None) -> Tensor:
    """Return the sum over dimensions of what is not nan.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.

    Example:
        >>> nm.evaluate(nm.nansum, x=(nm.dims("model=3"), [1.0, float("nan"), 2.0]))
        array(3., dtype=float32)
    """
    return _without_nan(sum, x, over)


def nanprod(x: Tensor, over: Over = None) -> Tensor:
    """Return the product over dimensions of what is not nan.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.

    Example:
        >>> nm.evaluate(nm.nanprod, x=(nm.dims("model=3"), [3.0, float("nan"), 2.0]))
        array(6., dtype=float32)
    """
    return _without_nan(prod, x, over)


def nanmean(x: Tensor, over: Over = None) -> Tensor:
    """Return the mean over dimensions of what is not nan; nan where nothing else is.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.

    Example:
        >>> nm.evaluate(nm.nanmean, x=(nm.dims("model=3"), [1.0, float("nan"), 2.0]))
        array(1.5, dtype=float32)
    """
    return _without_nan(mean, x, over)


def nanvar(x: Tensor, over: Over = None) -> Tensor:
    """Return the variance over dimensions of what is not nan.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.

    Example:
        >>> nm.evaluate(nm.nanvar, x=(nm.dims("model=3"), [1.0, float("nan"), 3.0]))
        array(1., dtype=float32)
    """
    return _without_nan(var, x, over)


def nanstd(x: Tensor, over: Over = None) -> Tensor:
    """Return the standard deviation over dimensions of what is not nan.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.

    Example:
        >>> nm.evaluate(nm.nanstd, x=(nm.dims("model=3"), [1.0, float("nan"), 3.0]))
        array(1., dtype=float32)
    """
    return _without_nan(std, x, over)


def nanmax(x: Tensor, over: Over = None) -> Tensor:
    """Return the maximum over dimensions of what is not nan; nan where nothing else is.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.

    Example:
        >>> nm.evaluate(nm.nanmax, x=(nm.dims("model=3"), [1.0, float("nan"), 2.0]))
        array(2., dtype=float32)
    """
    return _without_nan(max, x, over)


def nanmin(x: Tensor, over: Over = None) -> Tensor:
    """Return the minimum over dimensions of what is not nan; nan where nothing else is.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.

    Example:
        >>> nm.evaluate(nm.nanmin, x=(nm.dims("model=3"), [1.0, float("nan"), 2.0]))
        array(1., dtype=float32)
    """
    return _without_nan(min, x, over)
