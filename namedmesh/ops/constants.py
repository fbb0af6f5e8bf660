"""Values known while tracing: ranges, and tensors filled with one number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.interface import check_dtype
from namedmesh.ir.literal import check_number, fill
from namedmesh.ir.op import Op
from namedmesh.ir.operands import check_dimension, make_shape
from namedmesh.ir.tensor import Tensor


class Range(Op):
    """0, 1, 2 ... along one dimension."""

    constant = True
    dim: Dimension
    dtype: str

    def results(self) -> list[tuple[Shape, str]]:
        return [(Shape([self.dim]), self.dtype)]

    def lower(self, context: Context, *values: Any) -> Any:
        tf = context.tf
        numbers = tf.range(context.size(self.dim))  # 16 bits would count no further than 256
        offset = context.offset(self.dim)
        return tf.cast(numbers if offset is None else numbers + offset, context.dtype(self.dtype))


def _fill_dims(
    what: str, dims: Sequence[Dimension], value: float | int | bool, dtype: str
) -> Tensor:
    """Makes a tensor filled with a number that is checked; what names the caller in errors."""
    number = check_number(what, value, check_dtype(dtype))
    return fill(make_shape(what, dims), number, dtype, what)


def full(dims: Sequence[Dimension], value: float | int | bool, dtype: str = "float32") -> Tensor:
    """Makes a tensor filled with one number.

    It takes no memory until it is used, and lies wherever its readers do.

    Args:
        dims: The dimensions, in order.
        value: The number, known while tracing.
        dtype: The dtype of the tensor.

    Returns:
        The tensor.

    Raises:
        NamedMeshError: The dtype is not known, or the value does not fit it.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: x + nm.full([M], 7.0), x=([M], [1.0, 2.0]))
        array([8., 9.], dtype=float32)
    """
    return _fill_dims("full", dims, value, dtype)


def zeros(dims: Sequence[Dimension], dtype: str = "float32") -> Tensor:
    """Makes a tensor of zeros.

    Args:
        dims: The dimensions, in order.
        dtype: The dtype of the tensor; False for bool.

    Returns:
        The tensor.

    Raises:
        NamedMeshError: The dtype is not known.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda: nm.zeros([M]))
        array([0., 0.], dtype=float32)
    """
    return _fill_dims("zeros", dims, 0, dtype)


def ones(dims: Sequence[Dimension], dtype: str = "float32") -> Tensor:
    """Makes a tensor of ones.

    Args:
        dims: The dimensions, in order.
        dtype: The dtype of the tensor; True for bool.

    Returns:
        The tensor.

    Raises:
        NamedMeshError: The dtype is not known.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda: nm.ones([M]))
        array([1., 1.], dtype=float32)
    """
    return _fill_dims("ones", dims, 1, dtype)


def range(dim: Dimension, dtype: str = "int32") -> Tensor:
    """Counts 0, 1, 2 ... along a dimension.

    Where the dimension is split, every device counts its own piece, without communication. Numbers
    that a floating point dtype does not hold are rounded to those it does.

    Args:
        dim: The dimension.
        dtype: The dtype of the numbers.

    Returns:
        A tensor with this dimension alone.

    Raises:
        NamedMeshError: `dim` is not a Dimension, the dtype is not known or is bool, or it is an
            integer dtype that does not count so far.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 3)
        >>> nm.evaluate(lambda: nm.range(M))
        array([0, 1, 2], dtype=int32)
    """
    last = check_dimension("range", dim).size - 1
    if check_dtype(dtype) == "bool":
        raise NamedMeshError("range: bool does not count", str(dim), fix="use dtype='int32'")
    check_number("range", last, dtype, dim)
    return Range((), dim, dtype).output
