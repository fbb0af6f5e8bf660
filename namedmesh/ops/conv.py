"""Convolutions by name: which window slides along which dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.format import format_value
from namedmesh.ir.operands import (
    as_tuple,
    check_dtype_kind,
    check_has_dims,
    check_one_dtype,
    check_tensors,
)
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.convolution import Conv, slide_back
from namedmesh.ops.slide_options import Number, Padding, SlideOptions
from namedmesh.ops.sliding import Slide, Sliding


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
    """Slides a window along one dimension or several, and multiplies and sums at every position.

    Dimensions that both tensors have are summed over, as channels are, unless `keep` names them:
    those are groups, each with a window of its own (all channels of a depthwise convolution). A
    dimension of `x` that is split stays so: each device gets from its neighbours the rows that its
    windows reach over the edge.

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

    Raises:
        NamedMeshError: The tensors do not have these dimensions, a window does not fit, or an
            option is not a number.

    Example:
        >>> import namedmesh as nm
        >>> R, K, C, D = nm.dims("rows=4 window=3 channels=1 out=1")
        >>> add = lambda x, w: nm.conv(x, w, {R: K})
        >>> ones = [[[1.0]], [[1.0]], [[1.0]]]
        >>> nm.evaluate(add, x=([R, C], [[1.0], [2.0], [3.0], [4.0]]), w=([K, C, D], ones))[:, 0]
        array([3., 6., 9., 7.], dtype=float32)
    """
    options = _Operands("conv", x, w, over, keep)
    slides = []
    for dim, window in options.pairs:
        numbers = (
            options.number(name, value, dim)
            for name, value in (
                ("stride", stride), ("dilation", dilation), ("base_dilation", base_dilation)
            )
        )  # fmt: skip
        sliding = Sliding(dim.size, window.size, *numbers).padded(options.padding(padding, dim))
        options.check_fits(sliding, dim, window)
        slides.append(Slide(dim.name, window.name, sliding))
    sizes = {slide.dim: slide.sliding.count for slide in slides}
    return Conv((x, w), options.shape(sizes), tuple(slides), options.kept).output


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
    """Slides a window back: the derivative of `nm.conv` by its operand, as decoders use it.

    With stride s the result is about s times as long: exactly so with padding `"same"`, and
    (n - 1) * s + (k - 1) * dilation + 1 with `"valid"`.

    Args:
        x: The tensor, floating.
        w: The window: its own dimensions, channels in and channels out.
        over: The dimension of the window that slides along each dimension of `x`.
        stride: The distance at which the elements of `x` lie in the result.
        dilation: The distance between two elements of the window.
        padding: That of the convolution whose derivative this is.
        keep: Dimensions of both tensors that the result has too.

    Returns:
        A tensor with the dimensions of `x` that are not summed over, longer where windows slide,
        then those that only the window has.

    Raises:
        NamedMeshError: The tensors do not have these dimensions, or an option is not a number.

    Example:
        >>> import namedmesh as nm
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
        if not isinstance(over, Mapping) or not over:
            raise NamedMeshError(
                f"{what}: over={format_value(over)} does not say which window slides where",
                str(x),
                str(w),
                fix=f"write e.g. nm.{what}(x, w, {{H: KH, W: KW}})",
            )
        super().__init__(what, (x, w), over)
        check_dtype_kind(what, "float", x, w)
        check_one_dtype(what, x, w)
        check_has_dims(what, x, *over)
        check_has_dims(what, w, *over.values())
        self.pairs = list(over.items())
        kept = as_tuple(keep)
        check_has_dims(what, x, *kept)
        check_has_dims(what, w, *kept)
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
        own = [
            dim.resized(sizes.get(dim.name, dim.size))
            for dim in self.x.shape
            if dim.name not in summed
        ]
        known = {*self.x.shape.names, *windows}
        return Shape([*own, *(dim for dim in self.w.shape if dim.name not in known)])
