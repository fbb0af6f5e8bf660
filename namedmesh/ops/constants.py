"""Values known while tracing: numbers, ranges, and tensors filled with one number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ops.context import Context
from namedmesh.ops.op import Op
from namedmesh.ops.program import checked_dtype
from namedmesh.ops.tensor import FLOATS, Tensor


def scalar_of(value: float | int | bool, dtype: tf.DType) -> tf.Tensor:
    """A known number as a TensorFlow scalar; any number stands for true or false where bool is due."""
    return tf.constant(bool(value) if dtype == tf.bool else value, dtype)


@dataclass(eq=False)
class Fill(Op):
    """Every element the same known number."""

    shape: Shape
    value: Any
    dtype: str

    def results(self):
        return [(self.shape, self.dtype)]

    def lower(self, context: Context):
        scalar = scalar_of(self.value, tf.as_dtype(self.dtype))
        return tf.broadcast_to(scalar, context.sizes(self.shape)) if len(self.shape) else scalar


@dataclass(eq=False)
class Range(Op):
    """0, 1, 2 ... along one dimension."""

    dim: Dimension
    dtype: str

    def results(self):
        return [(Shape([self.dim]), self.dtype)]

    def lower(self, context: Context):
        values = tf.range(context.size(self.dim), dtype=tf.as_dtype(self.dtype))
        offset = context.offset(self.dim)
        return values if offset is None else values + tf.cast(offset, values.dtype)


def full(dims: Sequence[Dimension], value: float | int | bool, dtype: str = "float32") -> Tensor:
    """A tensor filled with one number."""
    return Fill((), Shape(dims), value, checked_dtype(dtype)).output


def zeros(dims: Sequence[Dimension], dtype: str = "float32") -> Tensor:
    """A tensor of zeros."""
    return full(dims, 0, dtype)


def ones(dims: Sequence[Dimension], dtype: str = "float32") -> Tensor:
    """A tensor of ones."""
    return full(dims, 1, dtype)


def range(dim: Dimension, dtype: str = "int32") -> Tensor:
    """0, 1, 2 ... along a dimension."""
    if not isinstance(dim, Dimension):
        raise NamedMeshError(f"range: {dim!r} is not a Dimension", fix="pass a Dimension, e.g. from nm.dims('seq=128')")
    return Range((), dim, checked_dtype(dtype)).output


def as_tensor(value: Any, like: Tensor | None = None) -> Tensor:
    """A Tensor from a Tensor or a plain number, which takes the dtype of the tensor beside it."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, (bool, int, float)):
        raise NamedMeshError(
            f"{value!r} of type {type(value).__name__} is neither a Tensor nor a number",
            fix="pass arrays in as inputs (nm.spec) or variables (nm.param, nm.state)",
        )
    if like is None:
        dtype = "bool" if isinstance(value, bool) else "int32" if isinstance(value, int) else "float32"
    else:
        dtype = like.dtype
        if isinstance(value, float) and dtype not in FLOATS:
            raise NamedMeshError(
                f"number {value} beside {like.label}, which is {dtype}",
                str(like),
                fix=f"write nm.cast({like.label}, 'float32') or a whole number",
            )
    return Fill((), Shape(), value, dtype).output
