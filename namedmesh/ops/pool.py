"""Pooling by name: what a window meets along some dimensions, laid out or reduced."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, check_word
from namedmesh.ir.context import Context
from namedmesh.ir.format import format_value
from namedmesh.ir.literal import check_number
from namedmesh.ir.op import Op
from namedmesh.ir.operands import check_dtype_kind, check_has_dims, check_int, check_tensor
from namedmesh.ir.placement import Exchange, Placement, Shards
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.constants import range as number
from namedmesh.ops.elementwise import cast
from namedmesh.ops.halo import read_rows
from namedmesh.ops.mathematics import floor, maximum, minimum
from namedmesh.ops.reduce import max as largest
from namedmesh.ops.shape import transpose
from namedmesh.ops.sliding import (
    Number,
    Padding,
    Slide,
    SlideOptions,
    Sliding,
    find_sliding_exchanges,
)


class Places(Op):
    """An op on the places that windows meet along some dimensions, on each device's own shard."""

    by_name = True
    on_shards = True
    slides: tuple[Slide, ...]

    @property
    def linear_in(self) -> tuple[tuple[int, ...], ...]:
        return ((0,),) if self.fill == 0 else ()

    @property
    def fill(self) -> float:
        """The value of places outside of the operand."""
        return 0

    def placement(self) -> Placement:
        windows = {slide.window for slide in self.slides} & {
            name for tensor in (*self.inputs, *self.outputs) for name in tensor.shape.names
        }
        return Placement(windows, exchanged=[slide.dim for slide in self.slides])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        return find_sliding_exchanges(self.inputs[0], self.slides, shards)

    def read(self, context: Context, x: Any) -> tuple[Any, list[int]]:
        """Read the places that a device's windows meet; return them, and how many windows."""
        shape, counts, spread = self.inputs[0].shape, [], []
        for slide in self.slides:
            at, sliding = shape.position(slide.dim), slide.sliding
            dim = shape.dims[at]
            counts.append(-(-sliding.count // context.ways(dim)))
            x = read_rows(context, [(x, sliding.stretch(counts[-1]))], at, dim, self.fill)
            spread.append((sliding, at, context.position(dim), counts[-1]))
        for sliding, at, position, count in spread:
            x = sliding.spread(context, x, at, position, count)
        return x, counts

    def taps(self, x: Any, counts: Sequence[int]) -> list[Any]:
        """Return what each element of the window meets, the last dimension fastest."""
        shape = self.inputs[0].shape
        found = []
        for taps in itertools.product(*(range(slide.sliding.window) for slide in self.slides)):
            index = [slice(None)] * len(x.shape)
            for slide, tap, count in zip(self.slides, taps, counts, strict=True):
                start, stride = tap * slide.sliding.dilation, slide.sliding.stride
                stop = start + (count - 1) * stride + 1
                index[shape.position(slide.dim)] = slice(start, stop, stride)
            found.append(x[tuple(index)])
        return found


class WindowSum(Places):
    """The sum of what a window meets, at every position."""

    def results(self) -> list[tuple[Shape, str]]:
        shape = self.inputs[0].shape
        for slide in self.slides:
            dim = shape.dims[shape.position(slide.dim)]
            shape = shape.replace(slide.dim, dim.resized(slide.sliding.count))
        return [(shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        x, counts = self.read(context, x)
        first, *others = self.taps(x, counts)
        for one in others:
            first = first + one
        return first

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [WindowSum((dy,), tuple(slide.back() for slide in self.slides)).output]

    def flops(self) -> int:
        taps = math.prod(slide.sliding.window for slide in self.slides)
        return self.output.shape.elements * (taps - 1)


class Windows(Places):
    """The elements that a window meets at every position, along dimensions of its own."""

    rearranges = True
    late_sums = False
    value: float

    @property
    def fill(self) -> float:
        return self.value

    def results(self) -> list[tuple[Shape, str]]:
        x = self.inputs[0]
        counts = {slide.dim: slide.sliding.count for slide in self.slides}
        dims = [dim.resized(counts.get(dim.name, dim.size)) for dim in x.shape]
        windows = [Dimension(slide.window, slide.sliding.window) for slide in self.slides]
        return [(Shape([*dims, *windows]), x.dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        x, counts = self.read(context, x)
        stacked = context.tf.stack(self.taps(x, counts), -1)
        sizes = [slide.sliding.window for slide in self.slides]
        return context.tf.reshape(stacked, [*stacked.shape[:-1], *sizes])

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [FoldWindows((dy,), tuple(slide.back() for slide in self.slides)).output]


class FoldWindows(Places):
    """Windows put back where they came from, added up where they overlap."""

    @property
    def kind(self) -> str:
        return "fold_windows"

    def results(self) -> list[tuple[Shape, str]]:
        dy = self.inputs[0]
        counts = {slide.dim: slide.sliding.count for slide in self.slides}
        windows = {slide.window for slide in self.slides}
        dims = [dim.resized(counts.get(dim.name, dim.size)) for dim in dy.shape]
        return [(Shape(dim for dim in dims if dim.name not in windows), dy.dtype)]

    def lower(self, context: Context, dy: Any) -> Any:
        dy, counts = self.read(context, dy)
        shape = self.inputs[0].shape
        places = [shape.position(slide.window) for slide in self.slides]
        sizes = [slide.sliding.window for slide in self.slides]
        total: Any = None
        for left, tap in enumerate(self.taps(dy, counts)):
            # The window is reversed on the way back.
            index: list[Any] = [slice(None)] * len(shape)
            for at, size in reversed(list(zip(places, sizes, strict=True))):
                left, one = divmod(left, size)
                index[at] = size - 1 - one
            value = tap[tuple(index)]
            total = value if total is None else total + value
        return total

    def vjp(self, dx: Tensor) -> list[Tensor | None]:
        laid = Windows((dx,), tuple(slide.back() for slide in self.slides), 0.0).output
        return [transpose(laid, self.inputs[0].shape)]

    def flops(self) -> int:
        taps = math.prod(slide.sliding.window for slide in self.slides)
        return self.output.shape.elements * (taps - 1)


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
    """Return what a window meets at every position, along dimensions of its own.

    Reduce over these dimensions for any kind of pooling. A dimension that is sharded stays so: each
    device gets what its windows reach over the edge from its neighbours.

    Args:
        x: The tensor.
        over: The dimension of the window that slides along each dimension of `x`.
        stride: The distance between two positions, for all dimensions or by dimension.
        dilation: The distance between two elements of the window.
        padding: `"valid"`, `"same"`, or how many elements to put before and after.
        value: The number to pad with.

    Example:
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
    """Return the largest element, the mean or the sum of what a window meets at every position.

    Padding counts for nothing: it is never the largest, and a mean is that of the elements there
    are. A dimension that is sharded stays so, as for `nm.conv`.

    Args:
        x: The tensor, floating.
        over: The size of the window along each dimension that it slides along.
        kind: `"max"`, `"mean"` or `"sum"`.
        stride: The distance between two positions; by default the size of the window.
        dilation: The distance between two elements of the window.
        padding: `"valid"`, `"same"`, or how many elements to put before and after.

    Example:
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
