"""Functions of mathematics, element by element."""

from __future__ import annotations

import math

from namedmesh.ir.tensor import Operand, Tensor
from namedmesh.ops.elementwise import elementwise
from namedmesh.ops.logic import equal, logical_and, where


def _power_vjp(dy: Tensor, y: Tensor, a: Tensor, b: Tensor) -> list[Tensor | None]:
    """Differentiates a power; the inner `where` keeps what is not used finite.

    At 0 ** 0 alone the derivative is set to zero: elsewhere a second one, at b = 0, needs the
    formula.
    """
    empty = logical_and(equal(a, 0.0), equal(b, 0.0))
    return [
        where(empty, 0.0, dy * b * power(where(empty, 1.0, a), b - 1.0)),
        where(a > 0, dy * y * log(where(a > 0, a, 1.0)), 0.0),
    ]


@elementwise(lambda tf: tf.pow, _power_vjp, takes="float", long=True)
def power(x: Operand, y: Operand) -> Tensor:
    """Raise the first tensor to the power of the second: `x ** y`.

    Where `x` is not positive, no gradient flows to the exponent.

    Args:
        x: A floating point tensor, or a number.
        y: A tensor of the same dtype, or a number, which takes the dtype of the tensor beside it.

    Returns:
        A tensor with the dimensions of both, in the order of the operand that has more.

    Raises:
        NamedMeshError: The dtypes differ or are not floating point, or one dimension has two
            sizes.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.power(x, 3.0), x=([M], [1.0, 2.0]))
        array([1., 8.], dtype=float32)
    """
    ...


@elementwise(lambda tf: lambda x: x * x, lambda dy, y, x: [dy * x * 2.0])
def square(x: Operand) -> Tensor:
    """Multiply every element by itself.

    Args:
        x: A tensor of numbers, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is bool.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.square(x), x=([M], [-3, 2]))
        array([9, 4], dtype=int32)
    """
    ...


@elementwise(lambda tf: tf.exp, lambda dy, y, x: [dy * y], takes="float")
def exp(x: Operand) -> Tensor:
    """Take the exponential of every element.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.exp(x), x=([M], [-1000.0, 0.0]))
        array([0., 1.], dtype=float32)
    """
    ...


@elementwise(lambda tf: tf.math.log, lambda dy, y, x: [dy / x], takes="float")
def log(x: Operand) -> Tensor:
    """Take the natural logarithm of every element: -inf of zero, nan of negative elements.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.log(x), x=([M], [0.0, 1.0]))
        array([-inf,   0.], dtype=float32)
    """
    ...


@elementwise(lambda tf: tf.math.log1p, lambda dy, y, x: [dy / (x + 1.0)], takes="float", long=True)
def log1p(x: Operand) -> Tensor:
    """Take the logarithm of one plus every element, exact near zero too.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.log1p(x), x=([M], [0.0, 1e-08]))
        array([0.e+00, 1.e-08], dtype=float32)
    """
    ...


@elementwise(lambda tf: tf.math.expm1, lambda dy, y, x: [dy * (y + 1.0)], takes="float", long=True)
def expm1(x: Operand) -> Tensor:
    """Take the exponential of every element, less one, exact near zero too.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.expm1(x), x=([M], [0.0, 1e-08]))
        array([0.e+00, 1.e-08], dtype=float32)
    """
    ...


@elementwise(lambda tf: tf.sqrt, lambda dy, y, x: [dy * 0.5 / y], takes="float")
def sqrt(x: Operand) -> Tensor:
    """Take the square root of every element. Its gradient at zero is infinite.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.sqrt(x), x=([M], [4.0, 9.0]))
        array([2., 3.], dtype=float32)
    """
    ...


@elementwise(lambda tf: tf.math.rsqrt, lambda dy, y, x: [dy * -0.5 * y / x], takes="float")
def rsqrt(x: Operand) -> Tensor:
    """Take one over the square root of every element.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.rsqrt(x), x=([M], [4.0, 16.0]))
        array([0.5 , 0.25], dtype=float32)
    """
    ...


@elementwise(lambda tf: tf.math.reciprocal, lambda dy, y, x: [-(dy * y * y)], takes="float")
def reciprocal(x: Operand) -> Tensor:
    """Take one over every element.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.reciprocal(x), x=([M], [2.0, 4.0]))
        array([0.5 , 0.25], dtype=float32)
    """
    ...


def _sin_vjp(dy: Tensor, y: Tensor, x: Tensor) -> list[Tensor | None]:
    """Differentiates a sine (a function, since `cos` refers back to `sin`)."""
    return [dy * cos(x)]


@elementwise(lambda tf: tf.sin, _sin_vjp, takes="float")
def sin(x: Operand) -> Tensor:
    """Take the sine of every element, in radians.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.sin(x), x=([M], [0.0, 1.5707964]))
        array([0., 1.], dtype=float32)
    """
    ...


@elementwise(lambda tf: tf.cos, lambda dy, y, x: [-(dy * sin(x))], takes="float")
def cos(x: Operand) -> Tensor:
    """Take the cosine of every element, in radians.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.cos(x), x=([M], [0.0, 3.1415927]))
        array([ 1., -1.], dtype=float32)
    """
    ...


@elementwise(
    lambda tf: tf.math.erf,
    lambda dy, y, x: [dy * exp(-(x * x)) * (2.0 / math.sqrt(math.pi))],
    takes="float",
    long=True,
)
def erf(x: Operand) -> Tensor:
    """Take the error function of every element.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.erf(x), x=([M], [0.0, 9.0]))
        array([0., 1.], dtype=float32)
    """
    ...


@elementwise(
    lambda tf: tf.math.erfinv,
    lambda dy, y, x: [dy * exp(y * y) * (math.sqrt(math.pi) / 2.0)],
    takes="float",
    long=True,
)
def erfinv(x: Operand) -> Tensor:
    """Take the inverse of the error function of every element: infinite at -1 and 1.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.erfinv(x), x=([M], [0.0, 1.0]))
        array([ 0., inf], dtype=float32)
    """
    ...
