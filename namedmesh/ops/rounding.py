"""Rounding, and what is finite, element by element."""

from __future__ import annotations

from namedmesh.ir.tensor import Operand, Tensor
from namedmesh.ops.elementwise import elementwise


@elementwise(lambda tf: tf.floor, takes="float")
def floor(x: Operand) -> Tensor:
    """Round every element down. No gradient flows through it.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.floor(x), x=([M], [-1.5, 1.5]))
        array([-2.,  1.], dtype=float32)
    """
    ...


@elementwise(lambda tf: tf.math.ceil, takes="float")
def ceil(x: Operand) -> Tensor:
    """Round every element up. No gradient flows through it.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.ceil(x), x=([M], [-1.5, 1.5]))
        array([-1.,  2.], dtype=float32)
    """
    ...


@elementwise(lambda tf: tf.round, takes="float", long=True)
def round(x: Operand) -> Tensor:
    """Round to the nearest whole number, halves to the even one. No gradient flows through it.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 3)
        >>> nm.evaluate(lambda x: nm.round(x), x=([M], [0.5, 1.5, 1.75]))
        array([0., 2., 2.], dtype=float32)
    """
    ...


@elementwise(lambda tf: tf.math.is_finite, takes="float", gives="bool")
def is_finite(x: Operand) -> Tensor:
    """Return which elements are neither infinite nor nan.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A bool tensor of the shape of `x`. It carries no gradient.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.is_finite(x), x=([M], [1.0, float("nan")]))
        array([ True, False])
    """
    ...
