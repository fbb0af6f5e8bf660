"""Numbers known while tracing, and tensors filled with one of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from namedmesh.dims.dimension import Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.format import describe_type, format_value, to_python_number
from namedmesh.ir.interface import Named
from namedmesh.ir.op import Number, Op
from namedmesh.ir.operands import AS_INPUT
from namedmesh.ir.recorder import require_recorder
from namedmesh.ir.tensor import COMPLEX, FLOATS, FLOATS8, OPERATORS, Tensor


class Fill(Op):
    """Every element the same known number."""

    constant = True
    shape: Shape
    value: Any
    dtype: str
    called: str

    @property
    def kind(self) -> str:
        return self.called

    @property
    def zero(self) -> bool:
        return self.value == 0

    def results(self):
        return [(self.shape, self.dtype)]

    def find_number(self, known: Mapping[Tensor, Number]) -> Number:
        return self.value

    def fold(self, *arrays: Any) -> Any:
        return np.full(self.shape.sizes, self.value, numpy_dtype(self.dtype))

    def lower(self, context: Context, *values: Any) -> Any:
        scalar = context.scalar(self.value, context.dtype(self.dtype))
        if not len(self.shape):
            return scalar
        return context.tf.broadcast_to(scalar, context.sizes(self.shape))


def fill(shape: Shape, value: float | int | bool, dtype: str, called: str = "fill") -> Tensor:
    """Make a tensor filled with a number that was checked to fit the dtype."""
    return Fill((), shape, value, dtype, called).output


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return numpy's dtype of a name, bfloat16 included."""
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def align_array(array: np.ndarray[Any, Any], shape: Shape, order: Shape) -> np.ndarray[Any, Any]:
    """Transpose and expand an array so that it broadcasts against dims in that order."""
    array = array.transpose([shape.position(dim.name) for dim in order if dim in shape])
    return array.reshape([dim.size if dim in shape else 1 for dim in order])


def plain_number(value: Any) -> float | int | bool | None:
    """Return a number of Python's or numpy's as one of Python's; None for anything else."""
    value = to_python_number(value)
    return value if isinstance(value, (bool, int, float)) else None


def check_number(what: str, value: Any, dtype: str, *details: object) -> float | int | bool:
    """Return value as a number that the dtype holds, or raise."""
    known = plain_number(value)
    if known is None:
        advice = "give a number known while tracing"
        if isinstance(value, Tensor):
            advice = "use nm.broadcast(x, dims) for a tensor"
        raise NamedMeshError(
            f"{what}: {describe_type(value)} is not a number", *map(str, details), fix=advice
        )
    floating = dtype in (*FLOATS, *FLOATS8, *COMPLEX)
    if dtype == "bool" or (floating and isinstance(known, float)):
        return known
    if isinstance(known, float) and not known.is_integer():
        raise NamedMeshError(
            f"{what}: {known} does not fit {dtype}",
            *map(str, details),
            fix="give a whole number, or a floating point dtype",
        )
    least, most = -sys.float_info.max, sys.float_info.max
    if not floating:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    if not least <= known <= most:
        raise NamedMeshError(
            f"{what}: {format_value(known)} does not fit {dtype}",
            *map(str, details),
            fix=f"give a number from {least} to {most}, or another dtype",
        )
    return float(known) if floating else int(known)


def as_int32_scalar(what: str, name: str, value: Any, *also: str) -> Tensor:
    """Return a whole number, or an int32 scalar (or of another dtype), as a tensor, or raise."""
    tensor = as_tensor(what, value)
    if len(tensor.shape) or tensor.dtype not in ("int32", *also):
        raise NamedMeshError(
            f"{what}: {name} is not an int32 scalar",
            str(tensor),
            fix=f"use nm.cast({tensor.label}, 'int32'), or reduce it to one number",
        )
    return tensor


def as_tensor(what: str, value: Any, like: Tensor | None = None) -> Tensor:
    """Return a Tensor as it is, and a plain number as one of the dtype of the tensor beside it."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Named):
        dtype = np.dtype(getattr(value.array, "dtype", "float32")).name
        usual = {"float64": "float32", "int64": "int32"}.get(dtype, dtype)
        return OPERATORS["constant"](value.array, value.dims, usual if like is None else like.dtype)
    known, beside = plain_number(value), () if like is None else (like,)
    if known is None:
        raise NamedMeshError(
            f"{what}: {describe_type(value)} is neither a Tensor nor a number",
            *map(str, beside),
            fix=AS_INPUT,
        )
    if like is not None and isinstance(known, float) and not like.floating:
        raise NamedMeshError(
            f"{what}: number {known} beside {like.label}, which is {like.dtype}",
            str(like),
            fix=f"write nm.cast({like.label}, 'float32') or a whole number",
        )
    usual = {bool: "bool", int: "int32"}.get(type(known), "float32")
    dtype = usual if like is None else like.dtype
    require_recorder(what)
    number = check_number(what, known, dtype, *beside)
    return fill(Shape(), number, dtype).describe(name=repr(known))
