"""Unsharded evaluation of a program, op by op, in eager TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from namedmesh.dims.errors import NamedMeshError
from namedmesh.ops.context import Context
from namedmesh.ops.op import Op
from namedmesh.ops.program import Body, Placeholder, Program
from namedmesh.ops.structures import unflatten
from namedmesh.ops.tensor import Tensor


def lowered(op: Op, context: Context, values: Sequence[Any]) -> tuple[Any, ...]:
    """Runs an op's lowering and returns its results as a tuple."""
    made = op.lower(context, *values)
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


def run(body: Body, values: Sequence[Any], context: Context) -> list[Any]:
    """Evaluates a body on values for its inputs and captures."""
    known: dict[Tensor, Any] = dict(zip((*body.inputs, *body.captures), values, strict=True))
    for op in body.ops:
        if not isinstance(op, Placeholder):
            known.update(zip(op.outputs, lowered(op, context, [known[t] for t in op.inputs]), strict=True))
    return [known[tensor] for tensor in body.outputs]


def evaluate(program: Program, state: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """The new state and the results of one unsharded run."""
    given = {tensor: inputs[name] for name, tensor in program.inputs.items()}
    given |= {variable.tensor: state[name] for name, variable in program.variables.items()}
    placeholders = tuple(given)
    values = []
    for tensor, value in given.items():
        value = tf.convert_to_tensor(value, tf.as_dtype(tensor.dtype))
        if tuple(value.shape) != tensor.shape.sizes:
            raise NamedMeshError(
                f"{tensor.label} was given with shape {tuple(value.shape)}, not {tensor.shape}", fix="give the shape of the spec"
            )
        values.append(value)
    names = list(program.updates)
    body = Body(program.ops, placeholders, (), (), (*program.outputs, *program.updates.values()))
    made = run(body, values, Context())
    count = len(program.outputs)
    updated = dict(state) | dict(zip(names, made[count:], strict=True))
    return updated, unflatten(program.structure, iter(made[:count]))
