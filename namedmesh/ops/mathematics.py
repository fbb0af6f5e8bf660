"""Arithmetic, mathematical functions and rounding, element by element."""

# Ops are declared by a signature and a docstring; `elementwise` gives them their bodies.
# pyright: reportReturnType=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.literal import as_tensor, plain_number
from namedmesh.ir.tensor import COMPLEX, Operand, Tensor
from namedmesh.ops.broadcast import widen
from namedmesh.ops.elementwise import cast, elementwise
from namedmesh.ops.logic import equal, logical_and, where

ROOT_PI = math.sqrt(math.pi)
_ONE, _BOTH = ((0,),), ((0,), (1,))  # operands in which functions are linear


def _for_unsigned(name: str, compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a TensorFlow function that takes unsigned integers too, which its own does not."""
    return lambda tf, x: compute(tf, x) if x.dtype.is_unsigned else getattr(tf, name)(x)


_negate = _for_unsigned("negative", lambda tf, x: tf.zeros([], x.dtype) - x)


def _divide_integers(tf: Any, function: str, x: Any, y: Any) -> Any:
    """Divide where processors do not: by zero gives 0, and by -1 has no overflow to trap."""
    by_zero, one = tf.equal(y, 0), tf.ones([], x.dtype)
    if x.dtype.is_unsigned:
        return tf.where(by_zero, 1 - one, getattr(tf.math, function)(x, tf.where(by_zero, one, y)))
    turned = tf.equal(y, -1)  # -x divided by 1, whose remainder is 0 as well
    result = getattr(tf.math, function)(tf.where(turned, -x, x), tf.where(by_zero | turned, one, y))
    return tf.where(by_zero, 1 - one, result)


def _remainder(tf: Any, x: Any, y: Any) -> Any:
    """Return the remainder of floor division."""
    if x.dtype.is_floating:
        return tf.math.floormod(x, y)
    return _divide_integers(tf, "floormod", x, y)


def _floor_divide(tf: Any, x: Any, y: Any) -> Any:
    """Divide without rounding x / y up to a whole number."""
    if not x.dtype.is_floating:
        return _divide_integers(tf, "floordiv", x, y)
    whole = (x - tf.math.floormod(x, y)) / y
    below = tf.floor(whole)
    nearest = tf.where(whole - below > 0.5, below + 1, below)
    opposite = tf.math.logical_and(tf.not_equal(x, 0), tf.not_equal(x < 0, y < 0))
    endless = tf.math.logical_and(tf.math.is_inf(y), tf.math.is_finite(x))
    nearest = tf.where(endless, tf.cast(opposite, x.dtype) * -1, nearest)
    return tf.where(tf.equal(y, 0), x / y, nearest)


@elementwise("add", lambda dy, y, a, b: [dy, dy], takes="complex", linear_in=((0, 1),))
def add(x: Operand, y: Operand) -> Tensor:
    """Return the sum of two tensors, broadcast by name: `x + y`.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number, which takes that dtype.

    Example:
        >>> nm.evaluate(lambda x: nm.add(x, 10), x=(nm.dims("model=2"), [1, 2]))
        array([11, 12], dtype=int32)
    """


@elementwise("subtract", lambda dy, y, a, b: [dy, -dy], takes="complex", linear_in=((0, 1),))
def subtract(x: Operand, y: Operand) -> Tensor:
    """Return the difference of two tensors, broadcast by name: `x - y`.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.subtract(x, 1), x=(nm.dims("model=2"), [1, 2]))
        array([0, 1], dtype=int32)
    """


@elementwise("multiply", lambda dy, y, a, b: [dy * b, dy * a], takes="complex", linear_in=_BOTH)
def multiply(x: Operand, y: Operand) -> Tensor:
    """Return the product of two tensors, element by element, broadcast by name: `x * y`.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.multiply(x, 10), x=(nm.dims("model=2"), [1, 2]))
        array([10, 20], dtype=int32)
    """


@elementwise("divide", lambda dy, y, a, b: [dy / b, -(dy * y / b)], takes="inexact", linear_in=_ONE)
def divide(x: Operand, y: Operand) -> Tensor:
    """Return the quotient of two tensors, broadcast by name: `x / y`.

    Args:
        x: A floating point tensor, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.divide(x, 2.0), x=(nm.dims("model=2"), [1.0, 2.0]))
        array([0.5, 1. ], dtype=float32)
    """


@elementwise(_floor_divide, long=True)
def floor_divide(x: Operand, y: Operand) -> Tensor:
    """Return the quotient rounded towards minus infinity: `x // y`. It has no gradient.

    Integers divided by zero give 0, as in numpy.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.floor_divide(x, 2), x=(nm.dims("model=2"), [-3, 3]))
        array([-2,  1], dtype=int32)
    """


@elementwise(_remainder, lambda dy, y, a, b: [dy, -(dy * floor_divide(a, b))], long=True)
def remainder(x: Operand, y: Operand) -> Tensor:
    """Return the remainder of floor division, of the sign of the divisor: `x % y`.

    That of an integer divided by zero is 0, as in numpy.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.remainder(x, 4), x=(nm.dims("model=2"), [-3, 3]))
        array([1, 3], dtype=int32)
    """


@elementwise("maximum", lambda dy, y, a, b: [where(a >= b, dy, 0.0), where(a >= b, 0.0, dy)])
def maximum(x: Operand, y: Operand) -> Tensor:
    """Return the larger of two tensors, element by element; at ties the gradient goes to `x`.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.maximum(x, 2), x=(nm.dims("model=3"), [1, 2, 3]))
        array([2, 2, 3], dtype=int32)
    """


@elementwise("minimum", lambda dy, y, a, b: [where(a <= b, dy, 0.0), where(a <= b, 0.0, dy)])
def minimum(x: Operand, y: Operand) -> Tensor:
    """Return the smaller of two tensors, element by element; at ties the gradient goes to `x`.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.minimum(x, 2), x=(nm.dims("model=3"), [1, 2, 3]))
        array([1, 2, 2], dtype=int32)
    """


@elementwise(_negate, lambda dy, y, x: [-dy], takes="complex", linear_in=_ONE)
def negative(x: Operand) -> Tensor:
    """Return every element with the other sign: `-x`.

    Args:
        x: A tensor of numbers, or a number.

    Example:
        >>> nm.evaluate(nm.negative, x=(nm.dims("model=2"), [1, -2]))
        array([-1,  2], dtype=int32)
    """


def _absolute_vjp(dy: Tensor, y: Tensor, x: Tensor) -> list[Tensor | None]:
    if x.dtype not in COMPLEX:
        return [dy * sign(x)]
    none = equal(y, 0.0)
    return [cast(where(none, 0.0, dy * y), x.dtype) / where(none, cast(1.0, x.dtype), x)]


_absolute = _for_unsigned("abs", lambda tf, x: tf.identity(x))


@elementwise(_absolute, _absolute_vjp, takes="complex", gives="real")
def absolute(x: Operand) -> Tensor:
    """Return the absolute value of every element: `abs(x)`. The gradient at zero is zero.

    That of complex numbers is float32.

    Args:
        x: A tensor of numbers, or a number.

    Example:
        >>> nm.evaluate(nm.absolute, x=(nm.dims("model=2"), [1, -2]))
        array([1, 2], dtype=int32)
    """


@elementwise(_for_unsigned("sign", lambda tf, x: tf.cast(tf.not_equal(x, 0), x.dtype)))
def sign(x: Operand) -> Tensor:
    """Return -1, 0 or 1 for negative, zero and positive elements. It has no gradient.

    Args:
        x: A tensor of numbers, or a number.

    Example:
        >>> nm.evaluate(nm.sign, x=(nm.dims("model=3"), [-2.5, 0.0, 4.0]))
        array([-1.,  0.,  1.], dtype=float32)
    """


def clip(x: Operand, low: Operand | None = None, high: Operand | None = None) -> Tensor:
    """Return the elements limited to a range; outside it the gradient goes to the bound.

    Args:
        x: A tensor of numbers, or a number.
        low: The smallest value: a number, or a tensor that broadcasts by name; None for no limit.
        high: The largest value, likewise.

    Example:
        >>> nm.evaluate(lambda x: nm.clip(x, low=2, high=3), x=(nm.dims("model=3"), [1, 2, 9]))
        array([2, 2, 3], dtype=int32)
    """
    least, most = plain_number(low), plain_number(high)
    if least is not None and most is not None and not least <= most:
        fix = "give the smaller bound as low, the larger as high"
        raise NamedMeshError(f"clip: low={least} is above high={most}", fix=fix)
    tensor = as_tensor("clip", x, next((y for y in (low, high) if isinstance(y, Tensor)), None))
    if low is not None:
        tensor = maximum(tensor, low)
    return tensor if high is None else minimum(tensor, high)


def _power_vjp(dy: Tensor, y: Tensor, a: Tensor, b: Tensor) -> list[Tensor | None]:
    """Differentiate a power."""
    empty = logical_and(equal(a, 0.0), equal(b, 0.0))
    da = where(empty, 0.0, dy * b * power(where(empty, 1.0, a), b - 1.0))
    return [da, where(a > 0, dy * y * log(where(a > 0, a, 1.0)), 0.0)]


@elementwise("pow", _power_vjp, takes="float", long=True)
def power(x: Operand, y: Operand) -> Tensor:
    """Return `x ** y`. No gradient flows to the exponent where `x` is not positive.

    Args:
        x: A floating point tensor, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.power(x, 3.0), x=(nm.dims("model=2"), [1.0, 2.0]))
        array([1., 8.], dtype=float32)
    """


@elementwise(lambda tf, x: x * x, lambda dy, y, x: [dy * x * 2.0])
def square(x: Operand) -> Tensor:
    """Return the square of every element.

    Args:
        x: A tensor of numbers, or a number.

    Example:
        >>> nm.evaluate(nm.square, x=(nm.dims("model=2"), [-3, 2]))
        array([9, 4], dtype=int32)
    """


@elementwise("exp", lambda dy, y, x: [dy * y], takes="float")
def exp(x: Operand) -> Tensor:
    """Return the exponential of every element.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.exp, x=(nm.dims("model=2"), [-1000.0, 0.0]))
        array([0., 1.], dtype=float32)
    """


@elementwise("math.log", lambda dy, y, x: [dy / x], takes="float")
def log(x: Operand) -> Tensor:
    """Return the natural logarithm of every element: -inf of zero, nan of negative elements.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.log, x=(nm.dims("model=2"), [0.0, 1.0]))
        array([-inf,   0.], dtype=float32)
    """


@elementwise("math.log1p", lambda dy, y, x: [dy / (x + 1.0)], takes="float", long=True)
def log1p(x: Operand) -> Tensor:
    """Return the logarithm of one plus every element, exact near zero too.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.log1p, x=(nm.dims("model=2"), [0.0, 1e-08]))
        array([0.e+00, 1.e-08], dtype=float32)
    """


@elementwise("math.expm1", lambda dy, y, x: [dy * (y + 1.0)], takes="float", long=True)
def expm1(x: Operand) -> Tensor:
    """Return the exponential of every element, less one, exact near zero too.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.expm1, x=(nm.dims("model=2"), [0.0, 1e-08]))
        array([0.e+00, 1.e-08], dtype=float32)
    """


@elementwise("sqrt", lambda dy, y, x: [dy * 0.5 / y], takes="float")
def sqrt(x: Operand) -> Tensor:
    """Return the square root of every element. Its gradient at zero is infinite.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.sqrt, x=(nm.dims("model=2"), [4.0, 9.0]))
        array([2., 3.], dtype=float32)
    """


@elementwise("math.rsqrt", lambda dy, y, x: [dy * -0.5 * y / x], takes="float")
def rsqrt(x: Operand) -> Tensor:
    """Return one over the square root of every element.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.rsqrt, x=(nm.dims("model=2"), [4.0, 16.0]))
        array([0.5 , 0.25], dtype=float32)
    """


@elementwise("math.reciprocal", lambda dy, y, x: [-(dy * y * y)], takes="float")
def reciprocal(x: Operand) -> Tensor:
    """Return one over every element.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.reciprocal, x=(nm.dims("model=2"), [2.0, 4.0]))
        array([0.5 , 0.25], dtype=float32)
    """


def _sin_vjp(dy: Tensor, y: Tensor, x: Tensor) -> list[Tensor | None]:
    """Differentiate a sine; not a lambda, since `cos` refers back to `sin`."""
    return [dy * cos(x)]


@elementwise("sin", _sin_vjp, takes="float")
def sin(x: Operand) -> Tensor:
    """Return the sine of every element, in radians.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.sin, x=(nm.dims("model=2"), [0.0, 1.5707964]))
        array([0., 1.], dtype=float32)
    """


@elementwise("cos", lambda dy, y, x: [-(dy * sin(x))], takes="float")
def cos(x: Operand) -> Tensor:
    """Return the cosine of every element, in radians.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.cos, x=(nm.dims("model=2"), [0.0, 3.1415927]))
        array([ 1., -1.], dtype=float32)
    """


@elementwise(
    "math.erf", lambda dy, y, x: [dy * exp(-(x * x)) * (2 / ROOT_PI)], takes="float", long=True
)
def erf(x: Operand) -> Tensor:
    """Return the error function of every element.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.erf, x=(nm.dims("model=2"), [0.0, 9.0]))
        array([0., 1.], dtype=float32)
    """


# M. Giles, "Approximating the erfinv function": polynomials near 0, and of the root in the tails.
_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087)
_NEAR += (-0.00125372503, -0.00417768164, 0.246640727, 1.50140941)
_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773)
_TAIL += (-0.0076224613, 0.00943887047, 1.00167406, 2.83297682)


def _invert_erf(tf: Any, x: Any) -> Any:
    """Return the inverse error function, which TensorFlow's own loses in the tails."""
    number = tf.cast(x, widen(x.dtype.name))
    # Not 1 - x * x, in which the last bits of x would be lost.
    logarithm = -tf.math.log((1.0 - number) * (1.0 + number))
    near = logarithm < 5.0
    place = tf.where(near, logarithm - 2.5, tf.sqrt(logarithm) - 3.0)
    total = tf.zeros_like(place)
    for one, other in zip(_NEAR, _TAIL, strict=True):
        total = total * place + tf.where(near, tf.constant(one, place.dtype), other)
    ends = tf.equal(tf.abs(number), 1.0)
    return tf.cast(tf.where(ends, number * math.inf, total * number), x.dtype)


@elementwise(
    _invert_erf, lambda dy, y, x: [dy * exp(y * y) * (ROOT_PI / 2)], takes="float", long=True
)
def erfinv(x: Operand) -> Tensor:
    """Return the inverse error function of every element: infinite at -1 and 1.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.erfinv, x=(nm.dims("model=2"), [0.0, 1.0]))
        array([ 0., inf], dtype=float32)
    """


def _differentiate_gamma(tf: Any, order: Any, x: Any) -> Any:
    """Return derivatives of the logarithm of the gamma function, which 16 bits do not have."""
    wide = widen(x.dtype.name)
    return tf.cast(tf.math.polygamma(tf.cast(order, wide), tf.cast(x, wide)), x.dtype)


def _polygamma_vjp(dy: Tensor, _: Tensor, order: Tensor, x: Tensor) -> list[Tensor | None]:
    """Take the next derivative."""
    return [None, dy * polygamma(order + 1.0, x)]


@elementwise(_differentiate_gamma, _polygamma_vjp, takes="float", long=True)
def polygamma(order: Operand, x: Operand) -> Tensor:
    """Return a derivative of the logarithm of the gamma function: `nm.digamma` is the first.

    Args:
        order: How often `nm.digamma` is differentiated: a whole number, in floating point.
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.polygamma(1.0, x), x=(nm.dims("model=1"), [1.0])).round(3)
        array([1.645], dtype=float32)
    """


@elementwise("math.digamma", lambda dy, y, x: [dy * polygamma(1.0, x)], takes="float", long=True)
def digamma(x: Operand) -> Tensor:
    """Return the derivative of `nm.lgamma`.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.digamma, x=(nm.dims("model=2"), [1.0, 2.0])).round(3)
        array([-0.577,  0.423], dtype=float32)
    """


@elementwise("math.lgamma", lambda dy, y, x: [dy * digamma(x)], takes="float", long=True)
def lgamma(x: Operand) -> Tensor:
    """Return the logarithm of the gamma function, of x + 1 that of the factorial of x.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.lgamma, x=(nm.dims("model=2"), [1.0, 3.0]))
        array([0.       , 0.6931472], dtype=float32)
    """


@elementwise("floor", takes="float")
def floor(x: Operand) -> Tensor:
    """Return every element rounded down. It has no gradient.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.floor, x=(nm.dims("model=2"), [-1.5, 1.5]))
        array([-2.,  1.], dtype=float32)
    """


@elementwise("math.ceil", takes="float")
def ceil(x: Operand) -> Tensor:
    """Return every element rounded up. It has no gradient.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.ceil, x=(nm.dims("model=2"), [-1.5, 1.5]))
        array([-1.,  2.], dtype=float32)
    """


@elementwise("round", takes="float", long=True)
def round(x: Operand) -> Tensor:
    """Return the nearest whole number, the even one of halves. It has no gradient.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.round, x=(nm.dims("model=3"), [0.5, 1.5, 1.75]))
        array([0., 2., 2.], dtype=float32)
    """


@elementwise("math.is_finite", takes="float", gives="bool")
def is_finite(x: Operand) -> Tensor:
    """Return a bool tensor: which elements are neither infinite nor nan.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.is_finite, x=(nm.dims("model=2"), [1.0, float("nan")]))
        array([ True, False])
    """
