"""Pooling by name: what a window meets along some dimensions, laid out or reduced."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, check_word
from namedmesh.ir.context import Context
from namedmesh.ir.literal import check_number
from namedmesh.ir.op import Op
from namedmesh.ir.operands import check_dtype_kind, check_tensor
from namedmesh.ir.placement import Exchange, Placement, Shards
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.constants import range as number
from namedmesh.ops.elementwise import cast
from namedmesh.ops.halo import read_rows
from namedmesh.ops.mathematics import floor, maximum, minimum
from namedmesh.ops.reduce import max as largest
from namedmesh.ops.shape import name_apart, transpose
from namedmesh.ops.sliding import (
    Number,
    Padding,
    Slide,
    SlideOptions,
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

    @property
    def positions(self) -> list[Dimension]:
        """The operand's dimensions, those that windows slide along with their positions."""
        counts = {slide.dim: slide.sliding.count for slide in self.slides}
        return [dim.resized(counts.get(dim.name, dim.size)) for dim in self.inputs[0].shape]

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
        return [(Shape(self.positions), self.inputs[0].dtype)]

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
        windows = [Dimension(slide.window, slide.sliding.window) for slide in self.slides]
        return [(Shape([*self.positions, *windows]), self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        x, counts = self.read(context, x)
        stacked = context.tf.stack(self.taps(x, counts), -1)
        sizes = [slide.sliding.window for slide in self.slides]
        return context.tf.reshape(stacked, [*stacked.shape[:-1], *sizes])

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [FoldWindows((dy,), tuple(slide.back() for slide in self.slides)).output]


class FoldWindows(Places):
    """Windows put back where they came from, added up where they overlap."""

    kind = "fold_windows"

    def results(self) -> list[tuple[Shape, str]]:
        windows = {slide.window for slide in self.slides}
        dims = [dim for dim in self.positions if dim.name not in windows]
        return [(Shape(dims), self.inputs[0].dtype)]

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
    slides = _slides(SlideOptions("windows", [x], over), over, stride, dilation, padding)
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
    options = SlideOptions("pool", [x], over)
    sliding = {dim: name_apart(dim.resized(size), "window", x) for dim, size in over.items()}
    stride = over if stride is None else stride
    slides = _slides(options, sliding, stride, dilation, padding)
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


def _slides(
    options: SlideOptions,
    over: Mapping[Dimension, Dimension],
    stride: Number,
    dilation: Number,
    padding: Padding | Mapping[Dimension, Padding],
) -> tuple[Slide, ...]:
    """Read how windows slide."""
    return tuple(
        options.slide(dim, window, padding, stride=stride, dilation=dilation)
        for dim, window in over.items()
    )
