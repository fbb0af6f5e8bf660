"""Reductions over named dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.context import Context
from namedmesh.ir.op import Op, Placement
from namedmesh.ir.operands import check_dtype_kind, check_has_dims
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.broadcast import check_over, sum
from namedmesh.ops.elementwise import cast
from namedmesh.ops.logic import equal, where


class Reduce(Op):
    """The maximum, minimum or product over some dimensions, or whether any or all are true."""

    function: str
    over: tuple[Dimension, ...]

    @property
    def kind(self) -> str:
        return self.function

    def results(self) -> list[tuple[Shape, str]]:
        (x,) = self.inputs
        check_dtype_kind(
            self.function,
            "bool" if self.function in ("any", "all") else "number",
            x,
            source=self.source,
        )
        return [(x.shape.without(*(dim.name for dim in self.over)), x.dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        at = [self.inputs[0].shape.position(dim.name) for dim in self.over]
        return getattr(context.tf, f"reduce_{self.function}")(x, at)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        (x,) = self.inputs
        if self.function in ("max", "min"):
            winners = cast(equal(x, self.output), x.dtype)
            return [winners * (dy / sum(winners, over=self.over))]
        return [_prod_vjp(x, dy, self.over)]

    def flops(self) -> int:
        return self.inputs[0].shape.elements if self.inputs[0].floating else 0

    def placement(self) -> Placement:
        return Placement(reduced=frozenset(dim.name for dim in self.over))


def _prod_vjp(x: Tensor, dy: Tensor, over: Sequence[Dimension]) -> Tensor:
    """Multiplies by the product of all other elements, which is right also where some are zero."""
    zero = equal(x, 0.0)
    zeros = sum(cast(zero, x.dtype), over=over)
    others = prod(where(zero, 1.0, x), over=over)
    alone = where(equal(zeros, 1.0), others, 0.0)
    share = where(zero, alone, where(equal(zeros, 0.0), others, 0.0) / where(zero, 1.0, x))
    return dy * share


class ArgReduce(Op):
    """The index of the largest or smallest element along a dimension, the first at ties."""

    function: str
    over: Dimension

    @property
    def kind(self) -> str:
        return self.function

    @property
    def closed(self) -> bool:
        return True

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape.without(self.over.name), "int32")]

    def lower(self, context: Context, x: Any) -> Any:
        tf = context.tf
        compute = tf.argmax if self.function == "argmax" else tf.argmin
        return compute(x, self.inputs[0].shape.position(self.over.name), output_type=tf.int32)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [None]

    def placement(self) -> Placement:
        return Placement(whole=frozenset([self.over.name]))


def check_float_over(
    what: str, x: Tensor, over: Dimension | Sequence[Dimension] | None
) -> tuple[Dimension, ...]:
    """Returns the dimensions to reduce a floating point tensor over, or raises."""
    dims = check_over(what, x, over)
    check_dtype_kind(what, "float", x)
    return dims


def _reduce(function: str, x: Tensor, over: Dimension | Sequence[Dimension] | None) -> Tensor:
    """Records a reduction; there is none over no dimensions."""
    dims = check_over(function, x, over)
    return Reduce((x,), function, dims).output if dims else x


def mean(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """Takes the mean over some dimensions.

    Over a split dimension every device sums its own piece, and an AllReduce adds the partial sums.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.

    Returns:
        A tensor without those dimensions, of the same dtype.

    Raises:
        NamedMeshError: `x` is not floating point, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.mean(x, over=M), x=([B, M], [[1.0, 2, 3], [4, 5, 6]]))
        array([2., 5.], dtype=float32)
    """
    count = Shape(check_float_over("mean", x, over)).elements
    return sum(x, over) * (1.0 / count)


def max(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """Takes the maximum over some dimensions.

    Over a split dimension this is an AllReduce. Elements that tie share the gradient equally. Use
    `nm.maximum` for the larger of two tensors.

    Args:
        x: A tensor of numbers.
        over: One dimension or several; all of them by default.

    Returns:
        A tensor without those dimensions, of the same dtype.

    Raises:
        NamedMeshError: `x` is bool, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.max(x, over=M), x=([B, M], [[1, 2, 3], [4, 5, 6]]))
        array([3, 6], dtype=int32)
    """
    return _reduce("max", x, over)


def min(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """Takes the minimum over some dimensions.

    Over a split dimension this is an AllReduce. Elements that tie share the gradient equally. Use
    `nm.minimum` for the smaller of two tensors.

    Args:
        x: A tensor of numbers.
        over: One dimension or several; all of them by default.

    Returns:
        A tensor without those dimensions, of the same dtype.

    Raises:
        NamedMeshError: `x` is bool, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.min(x, over=M), x=([B, M], [[1, 2, 3], [4, 5, 6]]))
        array([1, 4], dtype=int32)
    """
    return _reduce("min", x, over)


def prod(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """Takes the product over some dimensions.

    Over a split dimension this is an AllReduce. The gradient is right also where elements are zero.

    Args:
        x: A tensor of numbers.
        over: One dimension or several; all of them by default.

    Returns:
        A tensor without those dimensions, of the same dtype.

    Raises:
        NamedMeshError: `x` is bool, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.prod(x, over=M), x=([B, M], [[1, 2, 3], [4, 5, 6]]))
        array([  6, 120], dtype=int32)
    """
    return _reduce("prod", x, over)


def any(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """Returns whether any element is true, over some dimensions.

    Over a split dimension this is an AllReduce.

    Args:
        x: A bool tensor.
        over: One dimension or several; all of them by default.

    Returns:
        A bool tensor without those dimensions.

    Raises:
        NamedMeshError: `x` is not bool, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.any(x > 3, over=M), x=([B, M], [[1, 2, 3], [4, 5, 6]]))
        array([False,  True])
    """
    return _reduce("any", x, over)


def all(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """Returns whether all elements are true, over some dimensions.

    Over a split dimension this is an AllReduce.

    Args:
        x: A bool tensor.
        over: One dimension or several; all of them by default.

    Returns:
        A bool tensor without those dimensions.

    Raises:
        NamedMeshError: `x` is not bool, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.all(x > 1, over=M), x=([B, M], [[1, 2, 3], [4, 5, 6]]))
        array([False,  True])
    """
    return _reduce("all", x, over)


def argmax(x: Tensor, over: Dimension) -> Tensor:
    """Finds the index of the largest element along a dimension, the first of those that tie.

    The dimension must be whole: where it is split, it is gathered first. The result carries no
    gradient.

    Args:
        x: A tensor of numbers.
        over: The dimension.

    Returns:
        An int32 tensor without the dimension.

    Raises:
        NamedMeshError: `x` does not have the dimension.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.argmax(x, over=M), x=([B, M], [[1, 3, 2], [4, 4, 0]]))
        array([1, 0], dtype=int32)
    """
    check_has_dims("argmax", x, over)
    return ArgReduce((x,), "argmax", over).output


def argmin(x: Tensor, over: Dimension) -> Tensor:
    """Finds the index of the smallest element along a dimension, the first of those that tie.

    The dimension must be whole: where it is split, it is gathered first. The result carries no
    gradient.

    Args:
        x: A tensor of numbers.
        over: The dimension.

    Returns:
        An int32 tensor without the dimension.

    Raises:
        NamedMeshError: `x` does not have the dimension.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.argmin(x, over=M), x=([B, M], [[1, 3, 2], [4, 0, 0]]))
        array([0, 1], dtype=int32)
    """
    check_has_dims("argmin", x, over)
    return ArgReduce((x,), "argmin", over).output
