"""The ops behind nm.conv: products with a sliding window, and sums of them over all positions."""

from __future__ import annotations

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
from namedmesh.ops.slices import reverse
from namedmesh.ops.sliding import Slide, Sliding, find_sliding_exchanges


class Sliders(Op):
    """An op of a tensor along whose dimensions windows slide, on each device's own shard.

    Of a dimension that is split each device reads the rows that its positions meet; zeros outside,
    padding of shards included, add nothing.
    """

    on_shards = True
    sums = True
    kept_by_dots = True
    shape: Shape
    slides: tuple[Slide, ...]
    kept: tuple[str, ...]  # dimensions of both operands that the result has too

    @property
    def linear(self) -> str:
        return "each"

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.shape, self.inputs[0].dtype)]

    @property
    def windows(self) -> tuple[str, ...]:
        """The dimensions of the windows."""
        return tuple(slide.window for slide in self.slides)

    @property
    def spatial(self) -> tuple[str, ...]:
        """The dimensions along which windows slide."""
        return tuple(slide.dim for slide in self.slides)

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        return find_sliding_exchanges(self.inputs[0], self.slides, shards)

    def read(
        self, context: Context, x: Any, order: Sequence[str]
    ) -> tuple[Any, list[tuple[int, int]], list[int]]:
        """Read what windows meet: the rows, the padding left to add, and the distances of rows."""
        padding, apart, split = [], [], []
        for slide in self.slides:
            dim, sliding = _named(self.inputs[0], slide.dim), slide.sliding
            ways, at = context.ways(dim), list(order).index(slide.dim)
            padding.append((sliding.low, sliding.high) if ways == 1 else (0, 0))
            apart.append(sliding.base if ways == 1 else 1)
            if ways > 1:
                count = -(-sliding.count // ways)
                x = read_rows(context, [(x, sliding.stretch(count))], at, dim, 0)
                split.append((sliding, at, context.position(dim), count))
        for sliding, at, position, count in split:  # when all is sent, for zeros need not be
            x = sliding.spread(context, x, at, position, count)
        return x, padding, apart


def _named(x: Tensor, name: str) -> Dimension:
    """Return the dimension of a tensor of that name."""
    return x.shape.dims[x.shape.position(name)]


class Conv(Sliders):
    """The product of a tensor and a window at every position of the window."""

    def placement(self) -> Placement:
        x, w = self.inputs
        contracted = [n for n in x.shape.names if n in w.shape.names and n not in self.kept]
        return Placement(self.windows, contracted, exchanged=self.spatial)

    def lower(self, context: Context, x: Any, w: Any) -> Any:
        left, right = (tensor.shape for tensor in self.inputs)
        shared = [name for name in left.names if name in right.names and name not in self.kept]
        batch = [n for n in left.names if n not in right.names and n not in self.spatial]
        made = [n for n in right.names if n not in left.names and n not in self.windows]
        order = [*batch, *self.spatial, *self.kept, *shared]
        x = context.arrange(x, left, order)
        w = context.arrange(w, right, [*self.windows, *shared, *self.kept, *made])
        x, padding, apart = self.read(context, x, order)
        slidings = [slide.sliding for slide in self.slides]
        return _convolve(
            context, x, w, len(batch), len(shared), len(self.kept),
            strides=[one.stride for one in slidings], padding=padding, base=apart,
            dilation=[one.dilation for one in slidings],
            shape=self.shape, order=[*batch, *self.spatial, *self.kept, *made],
        )  # fmt: skip

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        x, w = self.inputs
        back = slide_back(dy, w, x.shape, self.slides, self.kept)
        return [back, ConvWindow((x, dy), w.shape, self.slides, self.kept).output]

    def flops(self) -> int:
        x, w = self.inputs
        shared = (d.size for d in w.shape if d.name in x.shape.names and d.name not in self.kept)
        taps = math.prod(slide.sliding.window for slide in self.slides)
        apart = math.prod(slide.sliding.base for slide in self.slides)
        return 2 * self.shape.elements * math.prod(shared) * taps // apart


class ConvWindow(Sliders):
    """The derivative of a convolution by its window: products summed over all positions."""

    @property
    def kind(self) -> str:
        return "conv_window"

    def placement(self) -> Placement:
        x, dy = self.inputs
        contracted = [n for n in x.shape.names if n in dy.shape.names and n not in self.kept]
        return Placement(self.windows, contracted, exchanged=self.spatial)

    def lower(self, context: Context, x: Any, dy: Any) -> Any:
        left, right = (tensor.shape for tensor in self.inputs)
        outside = {*self.kept, *self.spatial}
        shared = [name for name in left.names if name in right.names and name not in outside]
        own = [name for name in left.names if name not in right.names]
        made = [name for name in right.names if name not in left.names]
        order = [*own, *self.spatial, *self.kept, *shared]
        x = context.arrange(x, left, order)
        dy = context.arrange(dy, right, [*self.spatial, *shared, *self.kept, *made])
        x, padding, apart = self.read(context, x, order)
        slidings = [slide.sliding for slide in self.slides]
        for i, one in enumerate(slidings):
            if context.ways(_named(self.inputs[0], self.spatial[i])) == 1:
                high = one.reach(one.count) - one.places - one.low
                padding[i] = one.low, high
        return _convolve(
            context, x, dy, len(own), len(shared), len(self.kept),
            strides=[one.dilation for one in slidings], padding=padding, base=apart,
            dilation=[one.stride for one in slidings],
            shape=self.shape, order=[*own, *self.windows, *self.kept, *made],
        )  # fmt: skip

    def vjp(self, dw: Tensor) -> list[Tensor | None]:
        x, dy = self.inputs
        again = Conv((x, dw), dy.shape, self.slides, self.kept).output
        return [slide_back(dy, dw, x.shape, self.slides, self.kept), again]

    def flops(self) -> int:
        x, dy = self.inputs
        outside = {*self.kept, *self.spatial}
        shared = (d.size for d in x.shape if d.name in dy.shape.names and d.name not in outside)
        positions = math.prod(slide.sliding.count for slide in self.slides)
        return 2 * self.shape.elements * math.prod(shared) * positions


def slide_back(
    dy: Tensor, w: Tensor, shape: Shape, slides: Sequence[Slide], kept: tuple[str, ...]
) -> Tensor:
    """Take a cotangent of positions back to the rows that the windows met."""
    for slide in slides:
        w = reverse(w, _named(w, slide.window))
    return Conv((dy, w), shape, tuple(slide.back() for slide in slides), kept).output


def _convolve(
    context: Context,
    x: Any,
    w: Any,
    batch: int,
    shared: int,
    kept: int,
    *,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base: Sequence[int],
    dilation: Sequence[int],
    shape: Shape,
    order: Sequence[str],
) -> Any:
    """Has XLA slide a window over values arranged for it."""
    tf, rank = context.tf, len(strides)
    sizes, window = [int(n) for n in x.shape], [int(n) for n in w.shape]
    lead, groups = sizes[:batch], sizes[batch + rank : batch + rank + kept]
    count, inner = math.prod(groups), math.prod(window[rank : rank + shared])
    made = window[rank + shared + kept :]
    x = tf.reshape(x, [math.prod(lead), *sizes[batch : batch + rank], count * inner])
    w = tf.reshape(w, [*window[:rank], inner, count * math.prod(made)])
    space = list(range(1, rank + 1))
    numbers = context.xla_data.ConvolutionDimensionNumbers(
        input_batch_dimension=0, input_feature_dimension=rank + 1, input_spatial_dimensions=space,
        kernel_input_feature_dimension=rank, kernel_output_feature_dimension=rank + 1,
        kernel_spatial_dimensions=list(range(rank)), output_batch_dimension=0,
        output_feature_dimension=rank + 1, output_spatial_dimensions=space,
    )  # fmt: skip
    level = getattr(context.xla_data.PrecisionConfig, context.precision.upper())
    precision = context.xla_data.PrecisionConfig(operand_precision=[level] * 2)

    def convolve(x: Any, w: Any) -> Any:
        return context.xla.conv(
            x, w, strides, [list(pair) for pair in padding], list(base), list(dilation), numbers,
            feature_group_count=count, precision_config=precision,
        )  # fmt: skip

    if not context.compiled:
        convolve = tf.function(convolve, jit_compile=True, autograph=False)
    positions = [
        Sliding(sizes[batch + i], window[i], strides[i], dilation[i], base[i], *padding[i]).count
        for i in range(rank)
    ]
    y = tf.reshape(convolve(x, w), [*lead, *positions, *groups, *made])
    dims = {dim.name: dim for dim in shape}
    return context.arrange(y, Shape(dims[name] for name in order), shape.names)
