"""Elements in groups of unequal sizes: each says which segment it belongs to."""

from __future__ import annotations

from collections.abc import Sequence

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.operands import (
    as_tuple,
    check_dimension,
    check_dtype_kind,
    check_has_dims,
    check_tensor,
)
from namedmesh.ir.tensor import Tensor, label_as
from namedmesh.ops.constants import ones
from namedmesh.ops.elementwise import stop_gradient
from namedmesh.ops.gather import check_indices, gather, scatter_add
from namedmesh.ops.indexing import ScatterExtreme
from namedmesh.ops.logic import where
from namedmesh.ops.mathematics import exp, is_finite, maximum
from namedmesh.ops.shape import name_apart, rename, transpose


def segment_sum(
    x: Tensor, segments: Tensor, dim: Dimension, batch: Sequence[Dimension] = ()
) -> Tensor:
    """Return the sum of the elements of each segment; `nm.scatter_add` by another name.

    Args:
        x: A tensor of numbers with all dimensions of the segments, and perhaps others.
        segments: A tensor of integers: the segment of each element; one outside counts nowhere.
        dim: The new dimension: one element for each segment.
        batch: Dimensions of the segments to keep in the result.

    Example:
        >>> E, N = nm.dims("edge=3 node=2")
        >>> sums = lambda x, s: nm.segment_sum(x, s, N)
        >>> nm.evaluate(sums, x=([E], [1.0, 2.0, 4.0]), s=([E], [0, 1, 1]))
        array([1., 6.], dtype=float32)
    """
    return label_as("segment_sum", scatter_add(x, segments, dim, batch))


def segment_mean(
    x: Tensor, segments: Tensor, dim: Dimension, batch: Sequence[Dimension] = ()
) -> Tensor:
    """Return the mean of the elements of each segment; 0 where there are none.

    Args:
        x: A floating point tensor with all dimensions of the segments, and perhaps others.
        segments: A tensor of integers: the segment of each element; one outside counts nowhere.
        dim: The new dimension: one element for each segment.
        batch: Dimensions of the segments to keep in the result.

    Example:
        >>> E, N = nm.dims("edge=3 node=2")
        >>> means = lambda x, s: nm.segment_mean(x, s, N)
        >>> nm.evaluate(means, x=([E], [1.0, 2.0, 4.0]), s=([E], [0, 1, 1]))
        array([1., 3.], dtype=float32)
    """
    check_dtype_kind("segment_mean", "float", check_tensor("segment_mean", x))
    check_indices("segment_mean", segments)
    times = scatter_add(ones(segments.shape, x.dtype), segments, dim, batch)
    return label_as("segment_mean", segment_sum(x, segments, dim, batch) / maximum(times, 1.0))


def segment_max(
    x: Tensor, segments: Tensor, dim: Dimension, batch: Sequence[Dimension] = ()
) -> Tensor:
    """Return the largest element of each segment; -inf, or the least integer, where none is.

    Args:
        x: A tensor of numbers with all dimensions of the segments, and perhaps others.
        segments: A tensor of integers: the segment of each element; one outside counts nowhere.
        dim: The new dimension: one element for each segment.
        batch: Dimensions of the segments to keep in the result.

    Example:
        >>> E, N = nm.dims("edge=3 node=2")
        >>> largest = lambda x, s: nm.segment_max(x, s, N)
        >>> nm.evaluate(largest, x=([E], [1.0, 2.0, 4.0]), s=([E], [0, 1, 1]))
        array([1., 4.], dtype=float32)
    """
    return _find_extremes("max", x, segments, dim, batch)


def segment_min(
    x: Tensor, segments: Tensor, dim: Dimension, batch: Sequence[Dimension] = ()
) -> Tensor:
    """Return the smallest element of each segment; inf, or the largest integer, where none is.

    Args:
        x: A tensor of numbers with all dimensions of the segments, and perhaps others.
        segments: A tensor of integers: the segment of each element; one outside counts nowhere.
        dim: The new dimension: one element for each segment.
        batch: Dimensions of the segments to keep in the result.

    Example:
        >>> E, N = nm.dims("edge=3 node=2")
        >>> smallest = lambda x, s: nm.segment_min(x, s, N)
        >>> nm.evaluate(smallest, x=([E], [1.0, 2.0, 4.0]), s=([E], [0, 1, 1]))
        array([1., 2.], dtype=float32)
    """
    return _find_extremes("min", x, segments, dim, batch)


def segment_softmax(
    x: Tensor, segments: Tensor, dim: Dimension, batch: Sequence[Dimension] = ()
) -> Tensor:
    """Return exponentials that sum to one in each segment: attention over edges or packed text.

    Args:
        x: A floating point tensor with all dimensions of the segments, and perhaps others.
        segments: A tensor of integers: the segment of each element; one outside reads zero.
        dim: The dimension that the segments number.
        batch: Dimensions of the segments along which each element has segments of its own.

    Example:
        >>> E, N = nm.dims("edge=3 node=2")
        >>> share = lambda x, s: nm.segment_softmax(x, s, N)
        >>> nm.evaluate(share, x=([E], [1.0, 7.0, 7.0]), s=([E], [0, 1, 1]))
        array([1. , 0.5, 0.5], dtype=float32)
    """
    check_dtype_kind("segment_softmax", "float", check_tensor("segment_softmax", x))
    highest = stop_gradient(segment_max(stop_gradient(x), segments, dim, batch))
    peak = gather(where(is_finite(highest), highest, 0.0), segments, dim)
    exponentials = exp(x - peak)
    total = gather(segment_sum(exponentials, segments, dim, batch), segments, dim)
    share = where(total > 0.0, exponentials / where(total > 0.0, total, 1.0), 0.0)
    return label_as("segment_softmax", transpose(share, x.shape))


def _find_extremes(
    function: str, x: Tensor, segments: Tensor, dim: Dimension, batch: Sequence[Dimension]
) -> Tensor:
    """Record the largest or smallest element of each segment."""
    what = f"segment_{function}"
    check_indices(what, segments)
    check_dtype_kind(what, "number", check_tensor(what, x))
    check_dimension(what, dim)
    check_has_dims(what, x, *segments.shape)
    check_has_dims(what, segments, *as_tuple(batch))
    own = segments.shape.named(dim.name)
    if own is not None:
        apart = name_apart(own, "element", x, segments)
        x, segments = rename(x, own, apart), rename(segments, own, apart)
    rest = [other for other in x.shape if other not in segments.shape]
    shape = Shape([*as_tuple(batch), dim, *rest])
    return ScatterExtreme((segments, x), dim, shape, function).output
