"""Values known while tracing: numbers, ranges, and tensors filled with one number."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.op import Op
from namedmesh.ir.operands import AS_INPUT, bare, dimension, shaped, shown, typed
from namedmesh.ir.program import checked_dtype
from namedmesh.ir.tensor import FLOATS, Tensor
from namedmesh.ir.trace import current


def scalar_of(value: float | int | bool, dtype: tf.DType) -> tf.Tensor:
    """A known number as a TensorFlow scalar; any number stands for true or false where bool is due."""
    return tf.constant(bool(value) if dtype == tf.bool else value, dtype)


@dataclass(eq=False)
class Fill(Op):
    """Every element the same known number."""

    shape: Shape
    value: Any
    dtype: str
    called: str

    @property
    def kind(self) -> str:
        return self.called

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


def plain(value: Any) -> float | int | bool | None:
    """A number of Python's or numpy's as one of Python's; None for anything else."""
    value = bare(value)
    return value if isinstance(value, (bool, int, float)) else None


def number(what: str, value: Any, dtype: str, *details: object) -> float | int | bool:
    """Returns value as a number that the dtype holds, or raises."""
    known = plain(value)
    if known is None:
        raise NamedMeshError(
            f"{what}: {typed(value)} is no number",
            *map(str, details),
            fix="use nm.broadcast(x, dims) for a tensor"
            if isinstance(value, Tensor)
            else "give a number known while tracing",
        )
    floating = dtype in FLOATS
    if dtype == "bool" or (floating and isinstance(known, float)):
        return known
    if isinstance(known, float) and not known.is_integer():
        raise NamedMeshError(
            f"{what}: {known} is no {dtype}",
            *map(str, details),
            fix="give a whole number, or a floating point dtype",
        )
    least, most = (
        (-sys.float_info.max, sys.float_info.max)
        if floating
        else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    )
    if not least <= known <= most:
        raise NamedMeshError(
            f"{what}: {shown(known)} does not fit {dtype}",
            *map(str, details),
            fix=f"give a number from {least} to {most}, or another dtype",
        )
    return float(known) if floating else int(known)


def _filled(what: str, dims: Sequence[Dimension], value: Any, dtype: str) -> Tensor:
    return Fill(
        (), shaped(what, dims), number(what, value, checked_dtype(dtype)), dtype, what
    ).output


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
    return Range((), dimension("range", dim), checked_dtype(dtype)).output


def as_tensor(what: str, value: Any, like: Tensor | None = None) -> Tensor:
    """A Tensor from a Tensor or a plain number, which takes the dtype of the tensor beside it."""
    if isinstance(value, Tensor):
        return value
    known, beside = plain(value), () if like is None else (like,)
    if known is None:
        raise NamedMeshError(
            f"{what}: {typed(value)} is neither a Tensor nor a number",
            *map(str, beside),
            fix=AS_INPUT,
        )
    if like is None:
        dtype = (
            "bool" if isinstance(known, bool) else "int32" if isinstance(known, int) else "float32"
        )
    else:
        dtype = like.dtype
        if isinstance(known, float) and dtype not in FLOATS:
            raise NamedMeshError(
                f"{what}: number {known} beside {like.label}, which is {dtype}",
                str(like),
                fix=f"write nm.cast({like.label}, 'float32') or a whole number",
            )
    current(what)
    tensor = Fill((), Shape(), number(what, known, dtype, *beside), dtype, "fill").output
    tensor.name = repr(known)
    return tensor
