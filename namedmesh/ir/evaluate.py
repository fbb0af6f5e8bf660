"""Unsharded evaluation of a program, op by op, in eager TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.ir.context import Context
from namedmesh.ir.nest import unflatten
from namedmesh.ir.op import Op
from namedmesh.ir.operands import shown
from namedmesh.ir.program import Body, Placeholder, Program
from namedmesh.ir.tensor import Tensor


def lowered(op: Op, context: Context, values: Sequence[Any]) -> tuple[Any, ...]:
    """Runs an op's lowering and returns its results as a tuple."""
    made = op.lower(context, *values)
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


def run(body: Body, values: Sequence[Any], context: Context) -> list[Any]:
    """Evaluates a body on values for its inputs and captures."""
    known: dict[Tensor, Any] = dict(zip((*body.inputs, *body.captures), values, strict=True))
    for op in body.ops:
        if not isinstance(op, Placeholder):
            known.update(
                zip(op.outputs, lowered(op, context, [known[t] for t in op.inputs]), strict=True)
            )
    return [known[tensor] for tensor in body.outputs]


def evaluate(
    program: Program, state: Mapping[str, Any], inputs: Mapping[str, Any]
) -> tuple[dict[str, Any], Any]:
    """The new state and the results of one unsharded run."""
    variables = {name: variable.tensor for name, variable in program.variables.items()}
    for name in inputs:
        if name not in program.inputs:
            raise NamedMeshError(
                f"{program.name} has no input {name}", fix=did_you_mean(name, program.inputs)
            )
    given = [
        (tensor, _given("input", name, tensor, inputs)) for name, tensor in program.inputs.items()
    ]
    given += [
        (tensor, _given("variable", name, tensor, state)) for name, tensor in variables.items()
    ]
    placeholders, values = tuple(tensor for tensor, _ in given), [value for _, value in given]
    names = list(program.updates)
    body = Body(program.ops, placeholders, (), (), (*program.outputs, *program.updates.values()))
    made = run(body, values, Context())
    count = len(program.outputs)
    updated = dict(state) | dict(zip(names, made[count:], strict=True))
    return updated, unflatten(program.structure, iter(made[:count]))


def _given(role: str, name: str, tensor: Tensor, values: Mapping[str, Any]) -> tf.Tensor:
    if name not in values:
        where = (
            "as a keyword" if role == "input" else "in the state, e.g. from program.initial_state()"
        )
        raise NamedMeshError(f"{role} {name} is not given", str(tensor), fix=f"give it {where}")
    try:
        if not tensor.floating and np.issubdtype(np.asarray(values[name]).dtype, np.floating):
            raise TypeError("fractions would be lost")
        value = tf.convert_to_tensor(values[name], tf.as_dtype(tensor.dtype))
    except (TypeError, ValueError):
        raise NamedMeshError(
            f"{role} {name} is {shown(values[name])}, which does not convert to {tensor.dtype}",
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
