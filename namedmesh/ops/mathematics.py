"""Arithmetic, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.literal import as_tensor, plain_number
from namedmesh.ir.tensor import Operand, Tensor
from namedmesh.ops.elementwise import elementwise
from namedmesh.ops.logic import equal, logical_and, where


def _for_unsigned(name: str, compute: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """Make a TensorFlow function that also takes unsigned integers, which its own does not."""

    def choose(tf: Any) -> Callable[[Any], Any]:
        return lambda x: compute(tf, x) if x.dtype.is_unsigned else getattr(tf, name)(x)

    return choose


def _floor_divide(tf: Any) -> Callable[[Any, Any], Any]:
    """Make a floor division by way of the remainder: x / y may round up to a whole number."""

    def divide(x: Any, y: Any) -> Any:
        if not x.dtype.is_floating:
            return tf.math.floordiv(x, y)
        whole = (x - tf.math.floormod(x, y)) / y
        below = tf.floor(whole)
        nearest = tf.where(whole - below > 0.5, below + 1, below)
        opposite = tf.math.logical_and(tf.not_equal(x, 0), tf.not_equal(x < 0, y < 0))
        endless = tf.math.logical_and(tf.math.is_inf(y), tf.math.is_finite(x))
        nearest = tf.where(endless, tf.cast(opposite, x.dtype) * -1, nearest)
        return tf.where(tf.equal(y, 0), x / y, nearest)

    return divide


@elementwise(lambda tf: tf.add, lambda dy, y, a, b: [dy, dy], linear="together")
def add(x: Operand, y: Operand) -> Tensor:
    """Add two tensors, broadcasting by name: `x + y`.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number, which takes the dtype of the tensor beside it.

    Returns:
        A tensor with the dimensions of both, in the order of the operand that has more.

    Example:
        >>> B, M = nm.dims("batch=2 model=2")
        >>> x, bias = ([B, M], [[1, 2], [3, 4]]), ([M], [10, 20])
        >>> nm.evaluate(lambda x, bias: nm.add(x, bias), x=x, bias=bias)
        array([[11, 22],
               [13, 24]], dtype=int32)
    """
    ...


@elementwise(lambda tf: tf.subtract, lambda dy, y, a, b: [dy, -dy], linear="together")
def subtract(x: Operand, y: Operand) -> Tensor:
    """Subtracts the second tensor from the first, broadcasting by name: `x - y`.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number, which takes the dtype of the tensor beside it.

    Returns:
        A tensor with the dimensions of both, in the order of the operand that has more.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.subtract(x, 1), x=([M], [1, 2]))
        array([0, 1], dtype=int32)
    """
    ...


@elementwise(lambda tf: tf.multiply, lambda dy, y, a, b: [dy * b, dy * a], linear="each")
def multiply(x: Operand, y: Operand) -> Tensor:
    """Multiply two tensors element by element, broadcasting by name: `x * y`.

    Use `nm.einsum` for a product that is summed over a dimension.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number, which takes the dtype of the tensor beside it.

    Returns:
        A tensor with the dimensions of both, in the order of the operand that has more.

    Example:
        >>> B, M = nm.dims("batch=2 model=3")
        >>> outer = lambda x, y: nm.transpose(nm.multiply(x, y), [B, M])
        >>> nm.evaluate(outer, x=([B], [1, 10]), y=([M], [1, 2, 3]))
        array([[ 1,  2,  3],
               [10, 20, 30]], dtype=int32)
    """
    ...


@elementwise(
    lambda tf: tf.divide,
    lambda dy, y, a, b: [dy / b, -(dy * y / b)],
    takes="float",
    linear="first",
)
def divide(x: Operand, y: Operand) -> Tensor:
    """Divide the first tensor by the second, broadcasting by name: `x / y`.

    Args:
        x: A floating point tensor, or a number.
        y: A tensor of the same dtype, or a number, which takes the dtype of the tensor beside it.

    Returns:
        A tensor with the dimensions of both, in the order of the operand that has more.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.divide(x, 2.0), x=([M], [1.0, 2.0]))
        array([0.5, 1. ], dtype=float32)
    """
    ...


@elementwise(_floor_divide, long=True)
def floor_divide(x: Operand, y: Operand) -> Tensor:
    """Divide and rounds towards minus infinity: `x // y`. No gradient flows through it.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number, which takes the dtype of the tensor beside it.

    Returns:
        A tensor with the dimensions of both, in the order of the operand that has more.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.floor_divide(x, 2), x=([M], [-3, 3]))
        array([-2,  1], dtype=int32)
    """
    ...


@elementwise(
    lambda tf: tf.math.floormod, lambda dy, y, a, b: [dy, -(dy * floor_divide(a, b))], long=True
)
def remainder(x: Operand, y: Operand) -> Tensor:
    """Take the remainder of floor division, which has the sign of the divisor: `x % y`.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number, which takes the dtype of the tensor beside it.

    Returns:
        A tensor with the dimensions of both, in the order of the operand that has more.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.remainder(x, 4), x=([M], [-3, 3]))
        array([1, 3], dtype=int32)
    """
    ...


@elementwise(
    lambda tf: tf.maximum, lambda dy, y, a, b: [where(a >= b, dy, 0.0), where(a >= b, 0.0, dy)]
)
def maximum(x: Operand, y: Operand) -> Tensor:
    """Take the larger of two tensors, element by element, broadcasting by name.

    Where both are equal, the gradient goes to `x`. Use `nm.max` for the maximum along a dimension.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number, which takes the dtype of the tensor beside it.

    Returns:
        A tensor with the dimensions of both, in the order of the operand that has more.

    Example:
        >>> M = nm.Dimension("model", 3)
        >>> nm.evaluate(lambda x: nm.maximum(x, 2), x=([M], [1, 2, 3]))
        array([2, 2, 3], dtype=int32)
    """
    ...


@elementwise(
    lambda tf: tf.minimum, lambda dy, y, a, b: [where(a <= b, dy, 0.0), where(a <= b, 0.0, dy)]
)
def minimum(x: Operand, y: Operand) -> Tensor:
    """Take the smaller of two tensors, element by element, broadcasting by name.

    Where both are equal, the gradient goes to `x`. Use `nm.min` for the minimum along a dimension.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number, which takes the dtype of the tensor beside it.

    Returns:
        A tensor with the dimensions of both, in the order of the operand that has more.

    Example:
        >>> M = nm.Dimension("model", 3)
        >>> nm.evaluate(lambda x: nm.minimum(x, 2), x=([M], [1, 2, 3]))
        array([1, 2, 2], dtype=int32)
    """
    ...


@elementwise(
    _for_unsigned("negative", lambda tf, x: tf.zeros([], x.dtype) - x),
    lambda dy, y, x: [-dy],
    linear="together",
)
def negative(x: Operand) -> Tensor:
    """Changes the sign of every element: `-x`.

    Args:
        x: A tensor of numbers, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.negative(x), x=([M], [1, -2]))
        array([-1,  2], dtype=int32)
    """
    ...


@elementwise(_for_unsigned("abs", lambda tf, x: tf.identity(x)), lambda dy, y, x: [dy * sign(x)])
def absolute(x: Operand) -> Tensor:
    """Take the absolute value of every element: `abs(x)`. The gradient at zero is zero.

    Args:
        x: A tensor of numbers, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.absolute(x), x=([M], [1, -2]))
        array([1, 2], dtype=int32)
    """
    ...


@elementwise(_for_unsigned("sign", lambda tf, x: tf.cast(tf.not_equal(x, 0), x.dtype)))
def sign(x: Operand) -> Tensor:
    """Return -1, 0 or 1 for negative, zero and positive elements. No gradient flows through it.

    Args:
        x: A tensor of numbers, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Example:
        >>> M = nm.Dimension("model", 3)
        >>> nm.evaluate(lambda x: nm.sign(x), x=([M], [-2.5, 0.0, 4.0]))
        array([-1.,  0.,  1.], dtype=float32)
    """
    ...


def clip(x: Operand, low: Operand | None = None, high: Operand | None = None) -> Tensor:
    """Limits the elements to the range between two bounds.

    The gradient of an element outside the range goes to the bound.

    Args:
        x: A tensor of numbers, or a number.
        low: The smallest value of the result: a number or a tensor that broadcasts by name. None
            for no limit.
        high: The largest value of the result, in the same way.

    Returns:
        A tensor with the dimensions of `x` and of the bounds.

    Example:
        >>> M = nm.Dimension("model", 3)
        >>> nm.evaluate(lambda x: nm.clip(x, low=2, high=3), x=([M], [1, 2, 9]))
        array([2, 2, 3], dtype=int32)
    """
    least, most = plain_number(low), plain_number(high)
    if least is not None and most is not None and not least <= most:
        raise NamedMeshError(
            f"clip: low={least} is above high={most}",
            fix="give the smaller bound as low, the larger as high",
        )
    tensor = as_tensor("clip", x, next((y for y in (low, high) if isinstance(y, Tensor)), None))
    if low is not None:
        tensor = maximum(tensor, low)
    return tensor if high is None else minimum(tensor, high)


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

    Example:
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

    Example:
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

    Example:
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

    Example:
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

    Example:
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

    Example:
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

    Example:
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

    Example:
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

    Example:
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

    Example:
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

    Example:
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

    Example:
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

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.erfinv(x), x=([M], [0.0, 1.0]))
        array([ 0., inf], dtype=float32)
    """
    ...


@elementwise(lambda tf: tf.floor, takes="float")
def floor(x: Operand) -> Tensor:
    """Round every element down. No gradient flows through it.

    Args:
        x: A floating point tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Example:
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

    Example:
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

    Example:
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

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.is_finite(x), x=([M], [1.0, float("nan")]))
        array([ True, False])
    """
    ...
