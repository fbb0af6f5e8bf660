"""Pooling by name: what a window meets along some dimensions, laid out or reduced."""

from __future__ import annotations

from collections.abc import Mapping

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError, check_word
from namedmesh.ir.format import format_value
from namedmesh.ir.literal import check_number
from namedmesh.ir.operands import check_dtype_kind, check_has_dims, check_int, check_tensor
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.constants import range as number
from namedmesh.ops.elementwise import cast
from namedmesh.ops.mathematics import floor, maximum, minimum
from namedmesh.ops.places import Windows, WindowSum
from namedmesh.ops.reduce import max as largest
from namedmesh.ops.slide_options import Number, Padding, SlideOptions
from namedmesh.ops.sliding import Slide, Sliding

KINDS = ("max", "mean", "sum")


def windows(
    x: Tensor,
    over: Mapping[Dimension, Dimension],
    *,
    stride: Number = 1,
    dilation: Number = 1,
    padding: Padding | Mapping[Dimension, Padding] = "valid",
    value: float = 0,
) -> Tensor:
    """Lay out what a window meets at every position, along dimensions of its own.

    Reduce over these dimensions for any kind of pooling. A dimension that is split stays so: each
    device gets from its neighbours what its windows reach over the edge.

    Args:
        x: The tensor.
        over: The dimension of the window that slides along each dimension of `x`.
        stride: The distance between two positions, for all dimensions or by dimension.
        dilation: The distance between two elements of the window.
        padding: `"valid"`, `"same"`, or how many elements to put before and after.
        value: What these hold, a number known while tracing.

    Returns:
        A tensor with the dimensions of `x`, those that windows slide along with the number of
        positions, then those of the window.

    Raises:
        NamedMeshError: `x` lacks a dimension or has one of the window's, a window does not fit, or
            an option is not a number.

    Example:
        >>> import namedmesh as nm
        >>> S, K = nm.dims("seq=4 window=2")
        >>> nm.evaluate(lambda x: nm.windows(x, {S: K}), x=([S], [1, 2, 3, 4]))
        array([[1, 2],
               [2, 3],
               [3, 4]], dtype=int32)
    """
    check_tensor("windows", x)
    value = check_number("windows", value, x.dtype, x)
    slides = _slides("windows", x, over, stride, dilation, padding)
    taken = [window.name for window in over.values() if window.name in x.shape.names]
    if taken:
        raise NamedMeshError(
            f"windows: {x.label} has a dimension {taken[0]} already",
            str(x),
            fix="give the window a dimension of another name",
        )
    return Windows((x,), slides, value).output


def pool(
    x: Tensor,
    over: Mapping[Dimension, int],
    kind: str = "max",
    *,
    stride: Number | None = None,
    dilation: Number = 1,
    padding: Padding | Mapping[Dimension, Padding] = "valid",
) -> Tensor:
    """Reduce what a window meets at every position to its largest element, its mean or its sum.

    Padding counts for nothing: it is never the largest, and a mean is that of the elements there
    are. A dimension that is split stays so, as for `nm.conv`.

    Args:
        x: The tensor, floating.
        over: The size of the window along each dimension that it slides along.
        kind: `"max"`, `"mean"` or `"sum"`.
        stride: The distance between two positions; by default the size of the window.
        dilation: The distance between two elements of the window.
        padding: `"valid"`, `"same"`, or how many elements to put before and after.

    Returns:
        A tensor with the dimensions of `x`, those that windows slide along with the number of
        positions.

    Raises:
        NamedMeshError: `x` lacks a dimension, a window does not fit, or an option is unknown.

    Example:
        >>> import namedmesh as nm
        >>> S = nm.Dimension("seq", 4)
        >>> nm.evaluate(lambda x: nm.pool(x, {S: 2}, "mean"), x=([S], [1.0, 2.0, 3.0, 4.0]))
        array([1.5, 3.5], dtype=float32)
    """
    check_tensor("pool", x)
    check_dtype_kind("pool", "float", x)
    check_word("kind of pooling", kind, KINDS)
    if not isinstance(over, Mapping) or not over:
        raise _over_error("pool", x, over, "{H: 2, W: 2}")
    names = _free_names(x, over)
    sizes = {dim: check_int("pool", "over", size, x) for dim, size in over.items()}
    small = [dim for dim, size in sizes.items() if size < 1]
    if small:
        raise NamedMeshError(
            f"pool: the window along {small[0].name} has no elements", str(x), fix="give at least 1"
        )
    sliding = {dim: Dimension(names[dim], size) for dim, size in sizes.items()}
    slides = _slides("pool", x, sliding, sizes if stride is None else stride, dilation, padding)
    if kind == "max":
        laid = Windows((x,), slides, float("-inf")).output
        return largest(laid, over=[*sliding.values()])
    added = WindowSum((x,), slides).output
    if kind == "sum":
        return added
    for slide in slides:
        added = added / _count_elements(slide, x.dtype)
    return added


def _count_elements(slide: Slide, dtype: str) -> Tensor | float:
    """Count the elements that a window meets at each position, those of padding left out."""
    sliding = slide.sliding
    if sliding.low <= 0 and sliding.reach(sliding.count) <= sliding.places + sliding.low:
        return float(sliding.window)
    positions = number(Dimension(slide.dim, sliding.count), "float32")
    outside = sliding.low - positions * sliding.stride  # places before the first row
    apart = float(sliding.dilation)
    first = maximum(floor((outside + (apart - 1.0)) / apart), 0.0)
    last = minimum(floor((outside + float(sliding.size - 1)) / apart), sliding.window - 1.0)
    return cast(maximum(last - first + 1.0, 1.0), dtype)


def _free_names(x: Tensor, dims: Mapping[Dimension, int]) -> dict[Dimension, str]:
    """Find names for windows that the tensor does not have."""
    names = {}
    for dim in dims:
        if not isinstance(dim, Dimension):
            raise _over_error("pool", x, dims, "{H: 2, W: 2}")
        name = f"{dim.name}_window"
        while name in x.shape.names:
            name += "_"
        names[dim] = name
    return names


def _over_error(what: str, x: Tensor, over: object, example: str) -> NamedMeshError:
    """Make the error about windows that are not said."""
    return NamedMeshError(
        f"{what}: over={format_value(over)} does not say which window slides where",
        str(x),
        fix=f"write e.g. nm.{what}(x, {example})",
    )


def _slides(
    what: str,
    x: Tensor,
    over: Mapping[Dimension, Dimension],
    stride: Number,
    dilation: Number,
    padding: Padding | Mapping[Dimension, Padding],
) -> tuple[Slide, ...]:
    """Read how windows slide."""
    if not isinstance(over, Mapping) or not over:
        raise _over_error(what, x, over, "{H: KH, W: KW}")
    check_has_dims(what, x, *over)
    options = SlideOptions(what, [x], over)
    slides = []
    for dim, window in over.items():
        numbers = options.number("stride", stride, dim), options.number("dilation", dilation, dim)
        sliding = Sliding(dim.size, window.size, *numbers).padded(options.padding(padding, dim))
        options.check_fits(sliding, dim, window)
        slides.append(Slide(dim.name, window.name, sliding))
    return tuple(slides)
