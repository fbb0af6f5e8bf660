"""Convolutions by name: products with a window that slides along dimensions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.operands import (
    as_tuple,
    check_dtype_kind,
    check_has_dims,
    check_one_dtype,
    check_tensors,
)
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.slices import reverse
from namedmesh.ops.sliding import (
    Number,
    Padding,
    Slide,
    SlideOptions,
    Sliding,
    SlidingOp,
)


class Sliders(SlidingOp):
    """A product of a tensor along whose dimensions windows slide with them, or what they met."""

    linear_in = ((0,), (1,))
    broadcasts = True
    sums = True
    kept_by_dots = True
    shape: Shape
    kept: tuple[str, ...]  # dimensions of both operands that the result has too

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.shape, self.inputs[0].dtype)]

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
        both = all(over in x.shape for x in inputs)
        return dataclasses.replace(
            self,
            inputs=inputs,
            shape=Shape([over, *self.shape]),
            kept=(*self.kept, over.name) if both else self.kept,
        ).outputs

    @property
    def spatial(self) -> tuple[str, ...]:
        """The dimensions along which windows slide."""
        return tuple(slide.dim for slide in self.slides)

    def placement(self) -> Placement:
        left, right = (tensor.shape.names for tensor in self.inputs)
        contracted = [name for name in left if name in right and name not in self.kept]
        windows = [slide.window for slide in self.slides]
        return Placement(windows, contracted, exchanged=self.spatial)

    @property
    def shared(self) -> Shape:
        """The dimensions of both operands that are summed over, besides those of positions."""
        x, w = self.inputs
        outside = {*self.kept, *self.spatial}
        return Shape(d for d in x.shape if d.name in w.shape.names and d.name not in outside)

    @property
    def order(self) -> list[str]:
        """The dimensions of the first operand, arranged for XLA."""
        others = {*self.spatial, *self.inputs[1].shape.names}
        batch = [name for name in self.inputs[0].shape.names if name not in others]
        return [*batch, *self.spatial, *self.kept, *self.shared.names]

    def read(self, context: Context, x: Any) -> tuple[Any, list[tuple[int, int]], list[int]]:
        """Read what windows meet: the rows, the padding left to add, and the distances of rows."""
        x = context.arrange(x, self.inputs[0].shape, self.order)
        padding, apart = [], []
        for slide in self.slides:
            whole, sliding = context.ways(self.named(slide.dim)) == 1, slide.sliding
            padding.append((sliding.low, sliding.high) if whole else (0, 0))
            apart.append(sliding.base if whole else 1)
        return self.read_split(context, x, self.order, 0), padding, apart

    def convolve(
        self,
        context: Context,
        x: Any,
        w: Any,
        strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
        base: Sequence[int],
        dilation: Sequence[int],
    ) -> Any:
        """Have XLA slide the second operand over the first, which is read already."""
        left, right = (tensor.shape for tensor in self.inputs)
        # The window's own dimensions slide; in its derivative, those of positions do.
        over = [slide.window if slide.window in right.names else slide.dim for slide in self.slides]
        met = [slide.dim if slide.window in right.names else slide.window for slide in self.slides]
        made = [name for name in right.names if name not in {*left.names, *over}]
        w = context.arrange(w, right, [*over, *self.shared.names, *self.kept, *made])
        tf, rank, kept, shared = context.tf, len(strides), len(self.kept), len(self.shared)
        batch = len(self.order) - rank - kept - shared
        sizes, window = [int(n) for n in x.shape], [int(n) for n in w.shape]
        lead, groups = sizes[:batch], sizes[batch + rank : batch + rank + kept]
        count, inner = math.prod(groups), math.prod(window[rank : rank + shared])
        own = window[rank + shared + kept :]
        x = tf.reshape(x, [math.prod(lead), *sizes[batch : batch + rank], count * inner])
        w = tf.reshape(w, [*window[:rank], inner, count * math.prod(own)])
        space = list(range(1, rank + 1))
        numbers = context.xla_data.ConvolutionDimensionNumbers(
            input_batch_dimension=0, input_feature_dimension=rank + 1,
            input_spatial_dimensions=space, kernel_spatial_dimensions=list(range(rank)),
            kernel_input_feature_dimension=rank, kernel_output_feature_dimension=rank + 1,
            output_batch_dimension=0, output_feature_dimension=rank + 1,
            output_spatial_dimensions=space,
        )  # fmt: skip
        level = getattr(context.xla_data.PrecisionConfig, context.precision.upper())
        precision = context.xla_data.PrecisionConfig(operand_precision=[level] * 2)

        def convolve(x: Any, w: Any) -> Any:
            return context.xla.conv(
                x, w, strides, [list(pair) for pair in padding], list(base), list(dilation),
                numbers, feature_group_count=count, precision_config=precision,
            )  # fmt: skip

        if not context.compiled:
            convolve = tf.function(convolve, jit_compile=True, autograph=False)
        rows = zip(sizes[batch:], window, strides, dilation, base, padding, strict=False)
        positions = [Sliding(*numbers, *ends).count for *numbers, ends in rows]
        y = tf.reshape(convolve(x, w), [*lead, *positions, *groups, *own])
        order = [*self.order[:batch], *met, *self.kept, *made]
        return context.arrange(y, self.shape.select(order), self.shape.names)


class Conv(Sliders):
    """The product of a tensor and a window at every position of the window."""

    def lower(self, context: Context, x: Any, w: Any) -> Any:
        x, padding, apart = self.read(context, x)
        slidings = [slide.sliding for slide in self.slides]
        strides, dilation = [one.stride for one in slidings], [one.dilation for one in slidings]
        return self.convolve(context, x, w, strides, padding, apart, dilation)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        x, w = self.inputs
        back = slide_back(dy, w, x.shape, self.slides, self.kept)
        return [back, ConvWindow((x, dy), self.slides, w.shape, self.kept).output]

    def flops(self) -> int:
        apart = math.prod(slide.sliding.base for slide in self.slides)
        return 2 * self.shape.elements * self.shared.elements * self.taps // apart


class ConvWindow(Sliders):
    """The derivative of a convolution by its window: products summed over all positions."""

    kind = "conv_window"

    def lower(self, context: Context, x: Any, dy: Any) -> Any:
        x, padding, apart = self.read(context, x)
        slidings = [slide.sliding for slide in self.slides]
        for i, one in enumerate(slidings):
            if context.ways(self.named(self.spatial[i])) == 1:
                padding[i] = one.low, one.reach(one.count) - one.places - one.low
        strides, dilation = [one.dilation for one in slidings], [one.stride for one in slidings]
        return self.convolve(context, x, dy, strides, padding, apart, dilation)

    def vjp(self, dw: Tensor) -> list[Tensor | None]:
        x, dy = self.inputs
        again = Conv((x, dw), self.slides, dy.shape, self.kept).output
        return [slide_back(dy, dw, x.shape, self.slides, self.kept), again]

    def flops(self) -> int:
        positions = math.prod(slide.sliding.count for slide in self.slides)
        return 2 * self.shape.elements * self.shared.elements * positions


def slide_back(
    dy: Tensor, w: Tensor, shape: Shape, slides: Sequence[Slide], kept: tuple[str, ...]
) -> Tensor:
    """Take a cotangent of positions back to the rows that the windows met."""
    for slide in slides:
        w = reverse(w, w.shape.dims[w.shape.position(slide.window)])
    return Conv((dy, w), tuple(slide.back() for slide in slides), shape, kept).output


def conv(
    x: Tensor,
    w: Tensor,
    over: Mapping[Dimension, Dimension],
    *,
    stride: Number = 1,
    dilation: Number = 1,
    base_dilation: Number = 1,
    padding: Padding | Mapping[Dimension, Padding] = "same",
    keep: Dimension | Sequence[Dimension] = (),
) -> Tensor:
    """Slide a window along one dimension or several, and multiply and sum at every position.

    Dimensions that both tensors have are summed over, as channels are, unless `keep` names them:
    those are groups, each with a window of its own (all channels of a depthwise convolution). A
    dimension of `x` that is sharded stays so: each device gets the rows over its edge from its
    neighbours.

    Args:
        x: The tensor, floating.
        w: The window: its own dimensions, channels in and channels out.
        over: The dimension of the window that slides along each dimension of `x`.
        stride: The distance between two positions, for all dimensions or by dimension.
        dilation: The distance between two elements of the window.
        base_dilation: The distance between two elements of `x`, zeros between them.
        padding: `"same"` (as many positions as elements, divided by the stride), `"valid"` (the
            window never leaves `x`), or how many zeros to put before and after.
        keep: Dimensions of both tensors that the result has too.

    Returns:
        A tensor with the dimensions of `x` that are not summed over, those that windows slide along
        with the number of positions, then those that only the window has.

    Example:
        >>> R, K, C, D = nm.dims("rows=4 window=3 channels=1 out=1")
        >>> add = lambda x, w: nm.conv(x, w, {R: K})
        >>> ones = [[[1.0]], [[1.0]], [[1.0]]]
        >>> nm.evaluate(add, x=([R, C], [[1.0], [2.0], [3.0], [4.0]]), w=([K, C, D], ones))[:, 0]
        array([3., 6., 9., 7.], dtype=float32)
    """
    options = _Operands("conv", x, w, over, keep)
    numbers = {"stride": stride, "dilation": dilation, "base_dilation": base_dilation}
    slides = options.slides(over, padding, **numbers)
    sizes = {slide.dim: slide.sliding.count for slide in slides}
    return Conv((x, w), slides, options.shape(sizes), options.kept).output


def conv_transpose(
    x: Tensor,
    w: Tensor,
    over: Mapping[Dimension, Dimension],
    *,
    stride: Number = 1,
    dilation: Number = 1,
    padding: Padding | Mapping[Dimension, Padding] = "same",
    keep: Dimension | Sequence[Dimension] = (),
) -> Tensor:
    """Return the derivative of `nm.conv` by its operand, as decoders use it.

    With stride s the result is about s times as long: exactly so with padding `"same"`, and
    (n - 1) * s + (k - 1) * dilation + 1 with `"valid"`.

    Args:
        x: The tensor, floating.
        w: The window: its own dimensions, channels in and channels out.
        over: The dimension of the window that slides along each dimension of `x`.
        stride: The distance between two elements of `x` in the result.
        dilation: The distance between two elements of the window.
        padding: That of the convolution whose derivative this is.
        keep: Dimensions of both tensors that the result has too.

    Example:
        >>> R, K, C, D = nm.dims("rows=2 window=2 channels=1 out=1")
        >>> double = lambda x, w: nm.conv_transpose(x, w, {R: K}, stride=2)
        >>> x, w = [[1.0], [2.0]], [[[1.0]], [[1.0]]]
        >>> nm.evaluate(double, x=([R, C], x), w=([K, C, D], w))[:, 0]
        array([1., 1., 2., 2.], dtype=float32)
    """
    options = _Operands("conv_transpose", x, w, over, keep)
    slides = []
    for dim, window in options.pairs:
        apart = options.number("stride", stride, dim)
        between = options.number("dilation", dilation, dim)
        ends = options.padding(padding, dim)
        size = dim.size * apart
        if ends != "same":
            low, high = (0, 0) if isinstance(ends, str) else ends
            size = (dim.size - 1) * apart + (window.size - 1) * between + 1 - low - high
        if size < 1:
            raise NamedMeshError(
                f"conv_transpose: padding {ends} leaves nothing of {dim}",
                *options.details,
                fix="pad less",
            )
        forward = Sliding(size, window.size, apart, between).padded(ends)
        slides.append(Slide(dim.name, window.name, forward))
    sizes = {slide.dim: slide.sliding.size for slide in slides}
    return slide_back(x, w, options.shape(sizes), slides, options.kept)


class _Operands(SlideOptions):
    """The operands and options of a convolution, checked."""

    def __init__(
        self,
        what: str,
        x: Tensor,
        w: Tensor,
        over: Mapping[Dimension, Dimension],
        keep: Dimension | Sequence[Dimension],
    ):
        self.x, self.w = check_tensors(what, [x, w], f"nm.{what}(x, w, {{H: K}})")
        super().__init__(what, (x, w), over)
        check_dtype_kind(what, "float", x, w)
        check_one_dtype(what, x, w)
        self.pairs, kept = list(over.items()), as_tuple(keep)
        check_has_dims(what, w, *over.values(), *kept)
        check_has_dims(what, x, *kept)
        self.kept = tuple(dim.name for dim in kept)
        self._check_names()

    def _check_names(self) -> None:
        """Raise where one name plays two parts, or has two sizes."""
        windows = [window.name for _, window in self.pairs]
        spatial = [dim.name for dim, _ in self.pairs]
        wrong = [n for n in windows if n in self.x.shape.names or windows.count(n) > 1]
        wrong += [name for name in spatial if name in self.w.shape.names]
        if wrong:
            raise NamedMeshError(
                f"{self.what}: {wrong[0]} cannot be a dimension of both tensors here",
                *self.details,
                fix=f"rename it in the window, e.g. nm.rename(w, {wrong[0]}, ...)",
            )
        for dim in self.x.shape:
            other = self.w.shape.named(dim.name)
            if other is not None and other.size != dim.size:
                raise NamedMeshError(
                    f"{self.what}: {dim.name} has two sizes, {dim.size} and {other.size}",
                    *self.details,
                    fix="give both tensors the same dimension",
                )

    def shape(self, sizes: Mapping[str, int]) -> Shape:
        """Return the dimensions of the result."""
        windows = {window.name for _, window in self.pairs}
        summed = {*self.w.shape.names} - {*self.kept}
        own = [d.resized(sizes.get(d.name, d.size)) for d in self.x.shape if d.name not in summed]
        known = {*self.x.shape.names, *windows}
        return Shape([*own, *(dim for dim in self.w.shape if dim.name not in known)])
