"""Arithmetic, comparison and logic, element by element."""

from __future__ import annotations

from namedmesh.ir.tensor import Operand, Tensor
from namedmesh.ops.elementwise import elementwise


@elementwise(lambda tf: tf.add, lambda dy, y, a, b: [dy, dy])
def add(x: Operand, y: Operand) -> Tensor:
    """Adds two tensors, broadcasting by name: `x + y`."""
    ...


@elementwise(lambda tf: tf.subtract, lambda dy, y, a, b: [dy, -dy])
def subtract(x: Operand, y: Operand) -> Tensor:
    """Subtracts the second tensor from the first, broadcasting by name: `x - y`."""
    ...


@elementwise(lambda tf: tf.multiply, lambda dy, y, a, b: [dy * b, dy * a])
def multiply(x: Operand, y: Operand) -> Tensor:
    """Multiplies two tensors, broadcasting by name: `x * y`."""
    ...


@elementwise(lambda tf: tf.divide, lambda dy, y, a, b: [dy / b, -(dy * y / b)], takes="float")
def divide(x: Operand, y: Operand) -> Tensor:
    """Divides the first tensor by the second, broadcasting by name: `x / y`."""
    ...


@elementwise(lambda tf: tf.math.floordiv, long=True)
def floor_divide(x: Operand, y: Operand) -> Tensor:
    """Divides and rounds towards minus infinity: `x // y`. No gradient flows through it."""
    ...


@elementwise(
    lambda tf: tf.math.floormod, lambda dy, y, a, b: [dy, -(dy * floor_divide(a, b))], long=True
)
def remainder(x: Operand, y: Operand) -> Tensor:
    """Takes the remainder of floor division, with the sign of the divisor: `x % y`."""
    ...


@elementwise(
    lambda tf: tf.maximum, lambda dy, y, a, b: [where(a >= b, dy, 0.0), where(a >= b, 0.0, dy)]
)
def maximum(x: Operand, y: Operand) -> Tensor:
    """Takes the larger of two tensors; at ties the gradient goes to the first."""
    ...


@elementwise(
    lambda tf: tf.minimum, lambda dy, y, a, b: [where(a <= b, dy, 0.0), where(a <= b, 0.0, dy)]
)
def minimum(x: Operand, y: Operand) -> Tensor:
    """Takes the smaller of two tensors; at ties the gradient goes to the first."""
    ...


@elementwise(lambda tf: tf.negative, lambda dy, y, x: [-dy])
def negative(x: Operand) -> Tensor:
    """Changes the sign: `-x`."""
    ...


@elementwise(lambda tf: tf.abs, lambda dy, y, x: [dy * sign(x)])
def absolute(x: Operand) -> Tensor:
    """Takes the absolute value: `abs(x)`."""
    ...


@elementwise(lambda tf: tf.sign)
def sign(x: Operand) -> Tensor:
    """Returns -1, 0 or 1 for negative, zero and positive elements. No gradient flows through it."""
    ...


@elementwise(lambda tf: tf.equal, takes="any", gives="bool")
def equal(x: Operand, y: Operand) -> Tensor:
    """Compares for equality. (`x == y` compares Python objects and is an error.)"""
    ...


@elementwise(lambda tf: tf.not_equal, takes="any", gives="bool")
def not_equal(x: Operand, y: Operand) -> Tensor:
    """Compares for inequality. (`x != y` compares Python objects and is an error.)"""
    ...


@elementwise(lambda tf: tf.less, gives="bool")
def less(x: Operand, y: Operand) -> Tensor:
    """Compares: `x < y`."""
    ...


@elementwise(lambda tf: tf.less_equal, gives="bool")
def less_equal(x: Operand, y: Operand) -> Tensor:
    """Compares: `x <= y`."""
    ...


@elementwise(lambda tf: tf.greater, gives="bool")
def greater(x: Operand, y: Operand) -> Tensor:
    """Compares: `x > y`."""
    ...


@elementwise(lambda tf: tf.greater_equal, gives="bool")
def greater_equal(x: Operand, y: Operand) -> Tensor:
    """Compares: `x >= y`."""
    ...


@elementwise(lambda tf: tf.logical_and, takes="bool")
def logical_and(x: Operand, y: Operand) -> Tensor:
    """Returns whether both hold: `x & y`."""
    ...


@elementwise(lambda tf: tf.logical_or, takes="bool")
def logical_or(x: Operand, y: Operand) -> Tensor:
    """Returns whether either holds: `x | y`."""
    ...


@elementwise(lambda tf: tf.math.logical_xor, takes="bool")
def logical_xor(x: Operand, y: Operand) -> Tensor:
    """Returns whether exactly one holds: `x ^ y`."""
    ...


@elementwise(lambda tf: tf.logical_not, takes="bool")
def logical_not(x: Operand) -> Tensor:
    """Returns whether it does not hold: `~x`."""
    ...


@elementwise(
    lambda tf: lambda condition, x, y: tf.where(condition, x, y),
    lambda dy, y, condition, a, b: [None, where(condition, dy, 0.0), where(condition, 0.0, dy)],
    takes="any",
)
def where(condition: Operand, x: Operand, y: Operand) -> Tensor:
    """Takes x where the condition holds and y elsewhere, broadcasting by name."""
    ...


def clip(x: Operand, low: Operand | None = None, high: Operand | None = None) -> Tensor:
    """Keeps the elements between two bounds."""
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)
