"""Arithmetic, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.literal import as_tensor, plain_number
from namedmesh.ir.tensor import Operand, Tensor
from namedmesh.ops.elementwise import elementwise
from namedmesh.ops.logic import where


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

    Raises:
        NamedMeshError: The dtypes differ or are bool, or one dimension has two sizes.

    Example:
        >>> import namedmesh as nm
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

    Raises:
        NamedMeshError: The dtypes differ or are bool, or one dimension has two sizes.

    Example:
        >>> import namedmesh as nm
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

    Raises:
        NamedMeshError: The dtypes differ or are bool, or one dimension has two sizes.

    Example:
        >>> import namedmesh as nm
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

    Raises:
        NamedMeshError: The dtypes differ or are not floating point, or one dimension has two
            sizes.

    Example:
        >>> import namedmesh as nm
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

    Raises:
        NamedMeshError: The dtypes differ or are bool, or one dimension has two sizes.

    Example:
        >>> import namedmesh as nm
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

    Raises:
        NamedMeshError: The dtypes differ or are bool, or one dimension has two sizes.

    Example:
        >>> import namedmesh as nm
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

    Raises:
        NamedMeshError: The dtypes differ or are bool, or one dimension has two sizes.

    Example:
        >>> import namedmesh as nm
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

    Raises:
        NamedMeshError: The dtypes differ or are bool, or one dimension has two sizes.

    Example:
        >>> import namedmesh as nm
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

    Raises:
        NamedMeshError: `x` is bool.

    Example:
        >>> import namedmesh as nm
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

    Raises:
        NamedMeshError: `x` is bool.

    Example:
        >>> import namedmesh as nm
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

    Raises:
        NamedMeshError: `x` is bool.

    Example:
        >>> import namedmesh as nm
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

    Raises:
        NamedMeshError: The dtypes differ or are bool, one dimension has two sizes, or `low` and
            `high` are numbers of which the first is larger.

    Example:
        >>> import namedmesh as nm
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
