"""The ops behind nm.windows and nm.pool: what a sliding window meets, laid out or added up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.context import Context
from namedmesh.ir.exchange import Exchange, Shards
from namedmesh.ir.op import Op
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.halo import read_rows
from namedmesh.ops.shape import transpose
from namedmesh.ops.sliding import Slide, find_sliding_exchanges


class Places(Op):
    """An op on the places that windows meet along some dimensions, on each device's own shard."""

    on_shards = True
    slides: tuple[Slide, ...]

    @property
    def fill(self) -> float:
        """What places hold outside."""
        return 0

    def placement(self) -> Placement:
        windows = {slide.window for slide in self.slides} & {
            name for tensor in (*self.inputs, *self.outputs) for name in tensor.shape.names
        }
        return Placement(windows, exchanged=[slide.dim for slide in self.slides])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        return find_sliding_exchanges(self.inputs[0], self.slides, shards)

    def read(self, context: Context, x: Any) -> tuple[Any, list[int]]:
        """Read the places that a device's windows meet; returns them, and how many windows."""
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
        """What each element of the window meets at every position, the last dimension fastest."""
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

    @property
    def linear(self) -> str:
        return "together"

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
    """What a window meets at every position, along dimensions of its own."""

    rearranges = True
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

    @property
    def linear(self) -> str:
        return "together"

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
        for number, tap in enumerate(self.taps(dy, counts)):
            # The window is reversed on the way back.
            left = number
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
