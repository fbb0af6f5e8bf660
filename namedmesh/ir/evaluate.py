"""Evaluation: ops run one by one in eager TensorFlow, unsharded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.format import format_value
from namedmesh.ir.literal import numpy_dtype
from namedmesh.ir.op import Body, Op
from namedmesh.ir.tensor import FLOATS, Tensor

MOST_DIMENSIONS = 4  # that all of TensorFlow's kernels have


def lower_op(op: Op, context: Context, values: Sequence[Any]) -> tuple[Any, ...]:
    """Run an op's lowering and returns its results as a tuple."""
    try:
        results = _lower_any_rank(op, context, values)
    except NamedMeshError:
        raise
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise op.error(
            f"its lowering failed: {type(error).__name__}: {first[:300]}",
            *map(str, op.inputs),
            fix=op.lowering_fix,
        ) from error
    results = tuple(results) if isinstance(results, (tuple, list)) else (results,)
    _check_lowered(op, context, results)
    return results


def _lower_any_rank(op: Op, context: Context, values: Sequence[Any]) -> Any:
    """Run an op's lowering, compiled where TensorFlow's own kernels have too few dimensions."""
    try:
        return op.lower(context, *values)
    except context.tf.errors.OpError:
        ranks = [len(tensor.shape) for tensor in (*op.inputs, *op.outputs)]
        if context.compiled or max(ranks, default=0) <= MOST_DIMENSIONS:
            raise
    lower = lambda *operands: op.lower(context, *operands)
    return context.tf.function(lower, jit_compile=True, autograph=False)(*values)


def _check_lowered(op: Op, context: Context, results: Sequence[Any]) -> None:
    """Raise unless the values are what the shape rule says: their number, shapes and dtypes."""
    problems = []
    if len(results) != len(op.outputs):
        problems.append(f"{len(results)} values for {len(op.outputs)} results")
    for tensor, value in zip(op.outputs, results, strict=False):
        if not context.tf.is_tensor(value):
            kind = f"{type(value).__module__}.{type(value).__name__}"
            problems.append(f"{format_value(value)} of type {kind} for {tensor}")
            continue
        sizes, dtype = value.shape.as_list(), value.dtype.name
        expected = [*context.part_sizes(tensor), *context.sizes(tensor.shape)]
        if dtype != tensor.dtype or (None not in sizes and sizes != expected):
            problems.append(f"{dtype}{sizes} for {tensor}, here {tensor.dtype}{expected}")
    if problems:
        raise op.error(
            f"its lowering returned {'; '.join(problems)}",
            *map(str, op.inputs),
            fix="return a TensorFlow value for each result, as results() describes them",
        )


class Eager(Context):
    """Lowering that runs at once: every value is TensorFlow's, whole and on this machine."""

    def run(self, body: Body, values: Sequence[Any]) -> list[Any]:
        """Evaluate a body on values for its inputs and captures."""
        known: dict[Tensor, Any] = dict(zip(body.arguments, values, strict=True))
        for op in body.ops:
            if not op.given:
                operands = [known[tensor] for tensor in op.inputs]
                known.update(zip(op.outputs, self.lower(op, operands), strict=True))
        return [known[tensor] for tensor in body.outputs]

    def lower(self, op: Op, values: Sequence[Any]) -> tuple[Any, ...]:
        """Lower an op on its operands."""
        return lower_op(op, self, values)


def _convert_numbers(role: str, name: str, array: np.ndarray, tensor: Tensor) -> np.ndarray:
    """Return numbers in a tensor's dtype, or raise if they do not fit; leave other arrays alone."""
    dtype = numpy_dtype(tensor.dtype)
    # Whole numbers beyond 64 bits are Python's own.
    large = array.dtype.kind == "O" and all(type(one) is int for one in array.flat)
    whole = array.dtype.kind in "iu" or large
    floating = array.dtype.kind == "f" or array.dtype.name in FLOATS
    if array.dtype == dtype or tensor.dtype == "bool" or not (whole or floating):
        return array
    if not tensor.floating:
        if floating:
            raise TypeError("fractions would be lost")
        limits = np.iinfo(dtype)
        fits = not array.size or (limits.min <= array.min() and array.max() <= limits.max)
    else:
        with np.errstate(over="ignore"):
            fits = np.array_equal(np.isfinite(array), np.isfinite(array.astype(dtype)))
    if not fits:
        limits = np.iinfo(dtype) if not tensor.floating else ml_dtypes.finfo(dtype)
        raise NamedMeshError(
            f"{role} {name} has numbers from {array.min()} to {array.max()}, "
            f"which do not fit {tensor.dtype}",
            str(tensor),
            fix=f"give numbers from {limits.min} to {limits.max}, or declare another dtype",
        )
    return array.astype(dtype)


def convert_value(role: str, name: str, tensor: Tensor, values: Mapping[str, Any]) -> Any:
    """Convert what a user gave for an input or variable to TensorFlow, or raise."""
    tf = Eager().tf
    if name not in values:
        where = "as a keyword"
        if role == "variable":
            where = "in the state, e.g. from program.initial_state()"
        raise NamedMeshError(f"{role} {name} is not given", str(tensor), fix=f"give it {where}")
    try:
        array = _convert_numbers(role, name, np.asarray(values[name]), tensor)
        value = tf.convert_to_tensor(array, tf.as_dtype(tensor.dtype))
    except NamedMeshError:
        raise
    except (TypeError, ValueError):
        raise NamedMeshError(
            f"{role} {name} is {format_value(values[name])}, "
            f"which does not convert to {tensor.dtype}",
            str(tensor),
            fix=f"give an array of {tensor.dtype}",
        ) from None
    if tuple(value.shape) != tensor.shape.sizes:
        raise NamedMeshError(
            f"{role} {name} was given with shape {tuple(value.shape)}, not {tensor.shape}",
            str(tensor),
            fix="give the shape of the spec",
        )
    return value
