"""Operations on the bits of whole numbers, element by element."""

from __future__ import annotations

from namedmesh.ir.tensor import Operand, Tensor
from namedmesh.ops.elementwise import elementwise


@elementwise(lambda tf: tf.bitwise.bitwise_and, takes="integer")
def bitwise_and(x: Operand, y: Operand) -> Tensor:
    """Keep the bits that both numbers have.

    Args:
        x: A tensor of whole numbers, or a number.
        y: A tensor of the same dtype, or a number; the two broadcast by name.

    Returns:
        A tensor with the dimensions of both. It carries no gradient.

    Raises:
        NamedMeshError: An operand is not of whole numbers, the dtypes differ, or one dimension has
            two sizes.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.bitwise_and(x, 10), x=([M], [6, 12]))
        array([2, 8], dtype=int32)
    """
    ...


@elementwise(lambda tf: tf.bitwise.bitwise_or, takes="integer")
def bitwise_or(x: Operand, y: Operand) -> Tensor:
    """Join the bits of two numbers.

    Args:
        x: A tensor of whole numbers, or a number.
        y: A tensor of the same dtype, or a number; the two broadcast by name.

    Returns:
        A tensor with the dimensions of both. It carries no gradient.

    Raises:
        NamedMeshError: An operand is not of whole numbers, the dtypes differ, or one dimension has
            two sizes.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.bitwise_or(x, 3), x=([M], [6, 12]))
        array([ 7, 15], dtype=int32)
    """
    ...


@elementwise(lambda tf: tf.bitwise.bitwise_xor, takes="integer")
def bitwise_xor(x: Operand, y: Operand) -> Tensor:
    """Keep the bits that one of two numbers has and the other has not.

    Args:
        x: A tensor of whole numbers, or a number.
        y: A tensor of the same dtype, or a number; the two broadcast by name.

    Returns:
        A tensor with the dimensions of both. It carries no gradient.

    Raises:
        NamedMeshError: An operand is not of whole numbers, the dtypes differ, or one dimension has
            two sizes.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.bitwise_xor(x, 10), x=([M], [6, 12]))
        array([12,  6], dtype=int32)
    """
    ...


@elementwise(lambda tf: tf.bitwise.left_shift, takes="integer")
def shift_left(x: Operand, y: Operand) -> Tensor:
    """Move bits to higher places, zeros behind them.

    Args:
        x: A tensor of whole numbers, or a number.
        y: A tensor of the same dtype, or a number; the two broadcast by name.

    Returns:
        A tensor with the dimensions of both. It carries no gradient.

    Raises:
        NamedMeshError: An operand is not of whole numbers, the dtypes differ, or one dimension has
            two sizes.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.shift_left(x, 1), x=([M], [6, 12]))
        array([12, 24], dtype=int32)
    """
    ...


@elementwise(lambda tf: tf.bitwise.right_shift, takes="integer")
def shift_right(x: Operand, y: Operand) -> Tensor:
    """Move bits to lower places; those of negative numbers keep their sign.

    Args:
        x: A tensor of whole numbers, or a number.
        y: A tensor of the same dtype, or a number; the two broadcast by name.

    Returns:
        A tensor with the dimensions of both. It carries no gradient.

    Raises:
        NamedMeshError: An operand is not of whole numbers, the dtypes differ, or one dimension has
            two sizes.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.shift_right(x, 1), x=([M], [6, 12]))
        array([3, 6], dtype=int32)
    """
    ...


@elementwise(lambda tf: tf.bitwise.invert, takes="integer")
def bitwise_not(x: Operand) -> Tensor:
    """Iterations every bit over.

    Args:
        x: A tensor of whole numbers, or a number.

    Returns:
        A tensor of the shape and dtype of `x`. It carries no gradient.

    Raises:
        NamedMeshError: `x` is not of whole numbers.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.bitwise_not(x), x=([M], [0, -7]))
        array([-1,  6], dtype=int32)
    """
    ...
