"""Values known while tracing: ranges, and tensors filled with one number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
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

    def results(self):
        return [(Shape([self.dim]), self.dtype)]

    def lower(self, context: Context, *values: Any) -> Any:
        tf = context.tf
        numbers = tf.range(context.size(self.dim), dtype=tf.as_dtype(self.dtype))
        offset = context.offset(self.dim)
        return numbers if offset is None else numbers + tf.cast(offset, numbers.dtype)


def _filled(what: str, dims: Sequence[Dimension], value: Any, dtype: str) -> Tensor:
    number = check_number(what, value, check_dtype(dtype))
    return fill(make_shape(what, dims), number, dtype, what)


def full(dims: Sequence[Dimension], value: float | int | bool, dtype: str = "float32") -> Tensor:
    """A tensor filled with one number."""
    return _filled("full", dims, value, dtype)


def zeros(dims: Sequence[Dimension], dtype: str = "float32") -> Tensor:
    """A tensor of zeros."""
    return _filled("zeros", dims, 0, dtype)


def ones(dims: Sequence[Dimension], dtype: str = "float32") -> Tensor:
    """A tensor of ones."""
    return _filled("ones", dims, 1, dtype)


def range(dim: Dimension, dtype: str = "int32") -> Tensor:
    """0, 1, 2 ... along a dimension."""
    return Range((), check_dimension("range", dim), check_dtype(dtype)).output
