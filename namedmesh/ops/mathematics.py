"""Functions of mathematics, element by element."""

from __future__ import annotations

import math

from namedmesh.ir.tensor import Operand, Tensor
from namedmesh.ops.arithmetic import equal, where
from namedmesh.ops.elementwise import elementwise


@elementwise(
    lambda tf: tf.pow,
    lambda dy, y, a, b: [
        where(equal(b, 0.0), 0.0, dy * b * power(a, b - 1.0)),
        where(a > 0, dy * y * log(where(a > 0, a, 1.0)), 0.0),
    ],
    takes="float",
    long=True,
)
def power(x: Operand, y: Operand) -> Tensor:
    """Raises the first tensor to the power of the second: `x ** y`."""
    ...


@elementwise(lambda tf: tf.square, lambda dy, y, x: [dy * x * 2.0])
def square(x: Operand) -> Tensor:
    """Multiplies every element by itself."""
    ...


@elementwise(lambda tf: tf.exp, lambda dy, y, x: [dy * y], takes="float")
def exp(x: Operand) -> Tensor:
    """Takes the exponential."""
    ...


@elementwise(lambda tf: tf.math.log, lambda dy, y, x: [dy / x], takes="float")
def log(x: Operand) -> Tensor:
    """Takes the natural logarithm."""
    ...


@elementwise(lambda tf: tf.sqrt, lambda dy, y, x: [dy * 0.5 / y], takes="float")
def sqrt(x: Operand) -> Tensor:
    """Takes the square root."""
    ...


@elementwise(lambda tf: tf.math.rsqrt, lambda dy, y, x: [dy * -0.5 * y / x], takes="float")
def rsqrt(x: Operand) -> Tensor:
    """Takes one over the square root."""
    ...


@elementwise(lambda tf: tf.math.reciprocal, lambda dy, y, x: [-(dy * y * y)], takes="float")
def reciprocal(x: Operand) -> Tensor:
    """Takes one over every element."""
    ...


@elementwise(lambda tf: tf.sin, lambda dy, y, x: [dy * cos(x)], takes="float")
def sin(x: Operand) -> Tensor:
    """Takes the sine of radians."""
    ...


@elementwise(lambda tf: tf.cos, lambda dy, y, x: [-(dy * sin(x))], takes="float")
def cos(x: Operand) -> Tensor:
    """Takes the cosine of radians."""
    ...


@elementwise(
    lambda tf: tf.math.erf,
    lambda dy, y, x: [dy * exp(-(x * x)) * (2.0 / math.sqrt(math.pi))],
    takes="float",
    long=True,
)
def erf(x: Operand) -> Tensor:
    """Takes the error function."""
    ...


@elementwise(
    lambda tf: tf.math.erfinv,
    lambda dy, y, x: [dy * exp(y * y) * (math.sqrt(math.pi) / 2.0)],
    takes="float",
    long=True,
)
def erfinv(x: Operand) -> Tensor:
    """Takes the inverse of the error function."""
    ...


@elementwise(lambda tf: tf.floor, takes="float")
def floor(x: Operand) -> Tensor:
    """Rounds down. No gradient flows through it."""
    ...


@elementwise(lambda tf: tf.round, takes="float", long=True)
def round(x: Operand) -> Tensor:
    """Rounds to the nearest whole number, halves to the even one. No gradient flows through it."""
    ...


@elementwise(lambda tf: tf.math.is_finite, takes="float", gives="bool")
def is_finite(x: Operand) -> Tensor:
    """Returns whether elements are neither infinite nor nan."""
    ...
