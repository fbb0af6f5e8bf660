"""Pooling by name: what a window meets along some dimensions, laid out or reduced."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, check_word
from namedmesh.ir.context import Context
from namedmesh.ir.literal import check_number
from namedmesh.ir.operands import check_dtype_kind, check_tensor
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.constants import range as number
from namedmesh.ops.elementwise import cast
from namedmesh.ops.mathematics import floor, maximum, minimum
from namedmesh.ops.reduce import max as largest
from namedmesh.ops.shape import name_apart, transpose
from namedmesh.ops.sliding import (
    Number,
    Padding,
    Slide,
    SlideOptions,
    SlidingOp,
)


class Places(SlidingOp):
    """An op on the places that windows meet along some dimensions."""

    by_name = True

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

    def read_taps(self, context: Context, x: Any) -> list[Any]:
        """Return what each element of a device's windows meets, the last dimension fastest."""
        shape, found = self.inputs[0].shape, []
        x = self.read_split(context, x, shape.names, self.fill, every=True)
        ways = [context.ways(self.named(slide.dim)) for slide in self.slides]
        counts = [-(-one.sliding.count // n) for one, n in zip(self.slides, ways, strict=True)]
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
        first, *others = self.read_taps(context, x)
        for one in others:
            first = first + one
        return first

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [WindowSum((dy,), tuple(slide.back() for slide in self.slides)).output]

    def flops(self) -> int:
        return self.output.shape.elements * (self.taps - 1)


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
        stacked = context.tf.stack(self.read_taps(context, x), -1)
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
        shape = self.inputs[0].shape
        places = [shape.position(slide.window) for slide in self.slides]
        sizes = [slide.sliding.window for slide in self.slides]
        total: Any = None
        for left, tap in enumerate(self.read_taps(context, dy)):
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
        return self.output.shape.elements * (self.taps - 1)


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
    slides = SlideOptions("windows", [x], over).slides(
        over, padding, stride=stride, dilation=dilation
    )
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
    slides = options.slides(sliding, padding, stride=stride, dilation=dilation)
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
