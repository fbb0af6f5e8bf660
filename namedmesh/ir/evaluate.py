"""Evaluation: ops run one by one in eager TensorFlow, unsharded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.format import format_value
from namedmesh.ir.op import Body, Op
from namedmesh.ir.tensor import Tensor


def lower_op(op: Op, context: Context, values: Sequence[Any]) -> tuple[Any, ...]:
    """Runs an op's lowering and returns its results as a tuple."""
    results = op.lower(context, *values)
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


class Eager(Context):
    """Lowering that runs at once: every value is TensorFlow's, whole and on this machine."""

    def run(self, body: Body, values: Sequence[Any]) -> list[Any]:
        """Evaluates a body on values for its inputs and captures."""
        known: dict[Tensor, Any] = dict(zip(body.arguments, values, strict=True))
        for op in body.ops:
            if not op.given:
                operands = [known[tensor] for tensor in op.inputs]
                known.update(zip(op.outputs, lower_op(op, self, operands), strict=True))
        return [known[tensor] for tensor in body.outputs]


def convert_value(role: str, name: str, tensor: Tensor, values: Mapping[str, Any]) -> Any:
    """Converts what a user gave for an input or variable to TensorFlow, or raises."""
    tf = Eager().tf
    if name not in values:
        where = "as a keyword"
        if role == "variable":
            where = "in the state, e.g. from program.initial_state()"
        raise NamedMeshError(f"{role} {name} is not given", str(tensor), fix=f"give it {where}")
    try:
        array = np.asarray(values[name])
        if not tensor.floating and np.issubdtype(array.dtype, np.floating):
            raise TypeError("fractions would be lost")
        value = tf.convert_to_tensor(values[name], tf.as_dtype(tensor.dtype))
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
