"""Elements that are near, or not zero, or different: how many there are, and where they are."""

from __future__ import annotations

import math

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError, check_word
from namedmesh.ir.literal import as_tensor, check_number
from namedmesh.ir.operands import check_dimension, check_dtype_kind, check_has_dims, check_tensor
from namedmesh.ir.tensor import Operand, Over, Tensor, label_as
from namedmesh.ops.broadcast import broadcast, sum, widen
from namedmesh.ops.constants import full, linspace, zeros
from namedmesh.ops.constants import range as count
from namedmesh.ops.cumulative import cumsum
from namedmesh.ops.elementwise import cast
from namedmesh.ops.gather import gather, scatter_add
from namedmesh.ops.indexing import compress
from namedmesh.ops.logic import equal, logical_and, logical_not, logical_or, not_equal, where
from namedmesh.ops.mathematics import absolute, clip, floor, is_finite
from namedmesh.ops.reduce import all
from namedmesh.ops.shape import transpose
from namedmesh.ops.slices import shift
from namedmesh.ops.sorting import sort

_COMPARED = 64  # elements that are compared with every value, rather than halved and halved again


def is_nan(x: Operand) -> Tensor:
    """Return a bool tensor: where elements are not a number.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.is_nan, x=(nm.dims("model=2"), [1.0, float("nan")]))
        array([False,  True])
    """
    x = as_tensor("is_nan", x)
    check_dtype_kind("is_nan", "float", x)
    return label_as("is_nan", not_equal(x, x))


def isclose(
    x: Operand, y: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Return a bool tensor: where `|x - y| <= atol + rtol * |y|`, as numpy has it.

    Args:
        x: A floating point tensor, or a number.
        y: A tensor of the same dtype, or a number.
        rtol: The difference that is allowed, as a share of `y`.
        atol: The difference that is allowed besides.
        equal_nan: Whether nan is close to nan.

    Example:
        >>> nm.evaluate(lambda x: nm.isclose(x, 2.0), x=(nm.dims("model=2"), [2.0000001, 2.1]))
        array([ True, False])
    """
    x = as_tensor("isclose", x, y if isinstance(y, Tensor) else None)
    check_dtype_kind("isclose", "float", x)
    y = as_tensor("isclose", y, x)
    near = logical_and(is_finite(y), absolute(x - y) <= absolute(y) * rtol + atol)
    close = logical_or(near, equal(x, y))  # infinite numbers are close to themselves alone
    return logical_or(close, logical_and(is_nan(x), is_nan(y))) if equal_nan else close


def allclose(
    x: Operand, y: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Return a bool scalar: whether all elements are close, as `nm.isclose` has it.

    Args:
        x: A floating point tensor, or a number.
        y: A tensor of the same dtype, or a number.
        rtol: The difference that is allowed, as a share of `y`.
        atol: The difference that is allowed besides.
        equal_nan: Whether nan is close to nan.

    Example:
        >>> nm.evaluate(lambda x: nm.allclose(x, 2.0), x=(nm.dims("model=2"), [2.0, 2.1]))
        array(False)
    """
    return all(isclose(x, y, rtol, atol, equal_nan))


def count_nonzero(x: Tensor, over: Over = None) -> Tensor:
    """Return how many elements are not zero, or true, over dimensions, as int32.

    Args:
        x: A tensor of any dtype.
        over: One dimension or several; all of them by default.

    Example:
        >>> nm.evaluate(nm.count_nonzero, x=(nm.dims("model=3"), [4, 0, -1]))
        array(2, dtype=int32)
    """
    return sum(cast(_as_mask("count_nonzero", x), "int32"), over)


def _as_mask(what: str, x: Tensor) -> Tensor:
    """Return where elements are true, or not zero."""
    return x if check_tensor(what, x).dtype == "bool" else not_equal(x, 0)


def bincount(x: Tensor, dim: Dimension, weights: Tensor | None = None) -> Tensor:
    """Return how often each whole number from 0 on occurs, or the weights of its occurrences.

    Args:
        x: A tensor of integers; those that the dimension has no place for are left out.
        dim: The new dimension: one element for each number.
        weights: A tensor with the dimensions of `x`, and perhaps others.

    Example:
        >>> B, V = nm.dims("batch=4 vocab=3")
        >>> nm.evaluate(lambda x: nm.bincount(x, V), x=([B], [2, 0, 2, 9]))
        array([1, 0, 2], dtype=int32)
    """
    check_dtype_kind("bincount", "integer", check_tensor("bincount", x))
    updates = full(x.shape, 1, "int32") if weights is None else weights
    return label_as("bincount", scatter_add(updates, x, dim))


def histogram(x: Tensor, dim: Dimension, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Return how many elements fall into bins of equal width, and the edges between them.

    Args:
        x: A floating point tensor.
        dim: The new dimension: one element for each bin. The edges have one more.
        low: The lower edge of the first bin.
        high: The upper edge of the last bin, which belongs to it; what is outside does not count.

    Example:
        >>> B, N = nm.dims("batch=4 bin=2")
        >>> nm.evaluate(lambda x: nm.histogram(x, N, 0.0, 2.0)[0], x=([B], [0.5, 1.0, 2.0, 7.0]))
        array([1, 2], dtype=int32)
    """
    check_dtype_kind("histogram", "float", check_tensor("histogram", x))
    check_dimension("histogram", dim)
    low, high = (float(check_number("histogram", one, "float32")) for one in (low, high))
    if not -math.inf < low < high < math.inf:
        fix = "give two finite edges, the lower first"
        raise NamedMeshError(f"histogram: {low} and {high} are no range", fix=fix)
    wide = cast(x, widen(x.dtype))
    place = cast(floor((wide - low) * (dim.size / (high - low))), "int32")
    inside = logical_and(wide >= low, wide <= high)
    counts = bincount(where(inside, clip(place, high=dim.size - 1), -1), dim)
    return counts, linspace(dim.resized(dim.size + 1), low, high, x.dtype)


def searchsorted(x: Tensor, values: Operand, dim: Dimension, side: str = "left") -> Tensor:
    """Return where values belong in sorted elements, as int32: how many come before each.

    Args:
        x: A tensor of numbers, sorted along the dimension; nan is the largest one.
        values: A tensor of the same dtype, or a number, broadcast by name.
        dim: The dimension.
        side: `left`: elements that equal a value come after it; `right`: before it.

    Example:
        >>> S, B = nm.dims("seq=3 batch=2")
        >>> find = lambda x, v: nm.searchsorted(x, v, S)
        >>> nm.evaluate(find, x=([S], [1, 3, 5]), v=([B], [3, 9]))
        array([1, 3], dtype=int32)
    """
    check_has_dims("searchsorted", x, dim)
    check_word("searchsorted: side", side, ("left", "right"))
    values = as_tensor("searchsorted", values, x)

    def less(one: Tensor, other: Tensor) -> Tensor:
        """Compare in the order of sorting, in which nan is the largest number."""
        if not one.floating:
            return one < other
        return logical_or(one < other, logical_and(is_nan(other), logical_not(is_nan(one))))

    def before(one: Tensor) -> Tensor:
        return less(one, values) if side == "left" else logical_not(less(values, one))

    if dim.size <= _COMPARED:
        return sum(cast(before(x), "int32"), dim)
    shape = before(gather(x, zeros([], "int32"), dim)).shape
    found = zeros(shape, "int32")
    for power in reversed(range(dim.size.bit_length())):
        step = found + 2**power
        fits = logical_and(step <= dim.size, before(gather(x, clip(step, high=dim.size) - 1, dim)))
        found = where(fits, step, found)
    return found


def nonzero(x: Tensor, dim: Dimension, into: Dimension, fill: int = 0) -> Tensor:
    """Return the indices along a dimension where elements are not zero, or true, as int32.

    Args:
        x: A tensor of any dtype.
        dim: The dimension.
        into: The dimension of the result; what does not fit is left out.
        fill: What fills up the result.

    Example:
        >>> S, K = nm.dims("seq=4 found=3")
        >>> nm.evaluate(lambda x: nm.nonzero(x > 2, S, K, fill=-1), x=([S], [3, 1, 9, 0]))
        array([ 0,  2, -1], dtype=int32)
    """
    mask = _as_mask("nonzero", x)
    check_has_dims("nonzero", mask, dim)
    check_dimension("nonzero", into)
    fill = int(check_number("nonzero: fill", fill, "int32"))
    found = compress(broadcast(count(dim), mask.shape), mask, dim, into)
    filled = where(count(into) < count_nonzero(mask, dim), found, fill)
    return label_as("nonzero", transpose(filled, found.shape))


def unique(x: Tensor, dim: Dimension, into: Dimension) -> tuple[Tensor, Tensor]:
    """Return the different elements along a dimension, in order, and how often each occurs.

    Args:
        x: A tensor of numbers.
        dim: The dimension.
        into: The dimension of the results; what does not fit is left out, and zeros that occur
            zero times fill it up.

    Example:
        >>> S, K = nm.dims("seq=4 found=3")
        >>> nm.evaluate(lambda x: nm.unique(x, S, K), x=([S], [7, 3, 7, 7]))
        (array([3, 7, 0], dtype=int32), array([1, 3, 0], dtype=int32))
    """
    check_has_dims("unique", x, dim)
    check_dimension("unique", into)
    ordered = sort(x, dim)
    first = logical_or(equal(count(dim), 0), not_equal(ordered, shift(ordered, dim, 1)))
    place = cumsum(cast(first, "int32"), dim) - 1
    batch = [other for other in x.shape if other != dim]
    times = scatter_add(full(x.shape, 1, "int32"), place, into, batch)
    values = compress(ordered, first, dim, into)
    return values, transpose(times, values.shape)
