"""Comparison, choice, logic and bits, element by element."""

# Ops are declared by a signature and a docstring; `elementwise` gives them their bodies.
# pyright: reportReturnType=false

from __future__ import annotations

import functools
from typing import Any

from namedmesh.ir.tensor import Operand, Tensor
from namedmesh.ops.elementwise import elementwise


@elementwise("equal", takes="any", gives="bool")
def equal(x: Operand, y: Operand) -> Tensor:
    """Return a bool tensor: where two tensors are equal (`x == y` is an error).

    Args:
        x: A tensor of any dtype, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.equal(x, 2), x=(nm.dims("model=2"), [1, 2]))
        array([False,  True])
    """


@elementwise("not_equal", takes="any", gives="bool")
def not_equal(x: Operand, y: Operand) -> Tensor:
    """Return a bool tensor: where two tensors differ (`x != y` is an error).

    Args:
        x: A tensor of any dtype, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.not_equal(x, 2), x=(nm.dims("model=2"), [1, 2]))
        array([ True, False])
    """


@elementwise("less", gives="bool")
def less(x: Operand, y: Operand) -> Tensor:
    """Return a bool tensor: where the first is less than the second, `x < y`.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.less(x, 2), x=(nm.dims("model=3"), [1, 2, 3]))
        array([ True, False, False])
    """


@elementwise("less_equal", gives="bool")
def less_equal(x: Operand, y: Operand) -> Tensor:
    """Return a bool tensor: where the first is at most the second, `x <= y`.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.less_equal(x, 2), x=(nm.dims("model=3"), [1, 2, 3]))
        array([ True,  True, False])
    """


@elementwise("greater", gives="bool")
def greater(x: Operand, y: Operand) -> Tensor:
    """Return a bool tensor: where the first is greater than the second, `x > y`.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.greater(x, 2), x=(nm.dims("model=3"), [1, 2, 3]))
        array([False, False,  True])
    """


@elementwise("greater_equal", gives="bool")
def greater_equal(x: Operand, y: Operand) -> Tensor:
    """Return a bool tensor: where the first is at least the second, `x >= y`.

    Args:
        x: A tensor of numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.greater_equal(x, 2), x=(nm.dims("model=3"), [1, 2, 3]))
        array([False,  True,  True])
    """


@elementwise("logical_and", takes="bool")
def logical_and(x: Operand, y: Operand) -> Tensor:
    """Return a bool tensor: where both are true, `x & y`.

    Args:
        x: A bool tensor, True or False.
        y: Another, broadcast by name.

    Example:
        >>> nm.evaluate(lambda x: nm.logical_and(x > 1, x < 3), x=(nm.dims("model=3"), [1, 2, 3]))
        array([False,  True, False])
    """


@elementwise("logical_or", takes="bool")
def logical_or(x: Operand, y: Operand) -> Tensor:
    """Return a bool tensor: where at least one is true, `x | y`.

    Args:
        x: A bool tensor, True or False.
        y: Another, broadcast by name.

    Example:
        >>> nm.evaluate(lambda x: nm.logical_or(x < 2, x > 2), x=(nm.dims("model=3"), [1, 2, 3]))
        array([ True, False,  True])
    """


@elementwise("math.logical_xor", takes="bool")
def logical_xor(x: Operand, y: Operand) -> Tensor:
    """Return a bool tensor: where exactly one is true, `x ^ y`.

    Args:
        x: A bool tensor, True or False.
        y: Another, broadcast by name.

    Example:
        >>> nm.evaluate(lambda x: nm.logical_xor(x > 1, x > 2), x=(nm.dims("model=3"), [1, 2, 3]))
        array([False,  True, False])
    """


@elementwise("logical_not", takes="bool")
def logical_not(x: Operand) -> Tensor:
    """Return a bool tensor: where a tensor is false, `~x`.

    Args:
        x: A bool tensor, True or False.

    Example:
        >>> nm.evaluate(lambda x: nm.logical_not(x > 1), x=(nm.dims("model=2"), [1, 2]))
        array([ True, False])
    """


def _where_vjp(dy: Tensor, _: Tensor, condition: Tensor, *taken: Tensor) -> list[Tensor | None]:
    """Send the cotangent to the operand that was taken."""
    return [None, where(condition, dy, 0.0), where(condition, 0.0, dy)]


@elementwise("where", _where_vjp, takes="any", linear_in=((1, 2),))
def where(condition: Operand, x: Operand, y: Operand) -> Tensor:
    """Return `x` where a condition is true and `y` elsewhere: both are computed everywhere.

    Args:
        condition: A bool tensor.
        x: A tensor of any dtype, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.where(x > 1, x, -1), x=(nm.dims("model=3"), [1, 2, 3]))
        array([-1,  2,  3], dtype=int32)
    """


@elementwise("bitwise.bitwise_and", takes="integer")
def bitwise_and(x: Operand, y: Operand) -> Tensor:
    """Return the bits that both numbers have. It has no gradient.

    Args:
        x: A tensor of whole numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.bitwise_and(x, 10), x=(nm.dims("model=2"), [6, 12]))
        array([2, 8], dtype=int32)
    """


@elementwise("bitwise.bitwise_or", takes="integer")
def bitwise_or(x: Operand, y: Operand) -> Tensor:
    """Return the bits that either number has. It has no gradient.

    Args:
        x: A tensor of whole numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.bitwise_or(x, 3), x=(nm.dims("model=2"), [6, 12]))
        array([ 7, 15], dtype=int32)
    """


@elementwise("bitwise.bitwise_xor", takes="integer")
def bitwise_xor(x: Operand, y: Operand) -> Tensor:
    """Return the bits that exactly one of two numbers has. It has no gradient.

    Args:
        x: A tensor of whole numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.bitwise_xor(x, 10), x=(nm.dims("model=2"), [6, 12]))
        array([12,  6], dtype=int32)
    """


def _shift(name: str, tf: Any, x: Any, y: Any) -> Any:
    """Move bits; processors differ in what they do by places that a number does not have."""
    inside = (y >= 0) & (y < 8 * x.dtype.size)
    moved = getattr(tf.bitwise, name)(x, tf.where(inside, y, tf.zeros([], y.dtype)))
    keeps_sign = name == "right_shift" and not x.dtype.is_unsigned
    beyond = -tf.cast(x < 0, x.dtype) if keeps_sign else tf.zeros([], x.dtype)
    return tf.where(inside, moved, beyond)


@elementwise(functools.partial(_shift, "left_shift"), takes="integer")
def shift_left(x: Operand, y: Operand) -> Tensor:
    """Return the bits moved to higher places, zeros behind them. It has no gradient.

    By a negative number of places, or as many as the dtype has, nothing but zeros stays.

    Args:
        x: A tensor of whole numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.shift_left(x, 1), x=(nm.dims("model=2"), [6, 12]))
        array([12, 24], dtype=int32)
    """


@elementwise(functools.partial(_shift, "right_shift"), takes="integer")
def shift_right(x: Operand, y: Operand) -> Tensor:
    """Return the bits moved to lower places; negative numbers keep their sign.

    By a negative number of places, or as many as the dtype has, nothing but the sign stays.

    Args:
        x: A tensor of whole numbers, or a number.
        y: A tensor of the same dtype, or a number.

    Example:
        >>> nm.evaluate(lambda x: nm.shift_right(x, 1), x=(nm.dims("model=2"), [6, 12]))
        array([3, 6], dtype=int32)
    """


@elementwise("bitwise.invert", takes="integer")
def bitwise_not(x: Operand) -> Tensor:
    """Return every bit flipped. It has no gradient.

    Args:
        x: A tensor of whole numbers, or a number.

    Example:
        >>> nm.evaluate(nm.bitwise_not, x=(nm.dims("model=2"), [0, -7]))
        array([-1,  6], dtype=int32)
    """
