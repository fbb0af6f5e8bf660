"""The command `namedmesh replay`: runs a recorded step again, and finds the op that went wrong."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any
from zipfile import BadZipFile

import numpy as np

from namedmesh.artifacts.description import dtype_of
from namedmesh.cli.planning_commands import SET
from namedmesh.cli.references import find_program
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.display.text import name_some
from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import describe_os_error, read_file
from namedmesh.ir.evaluate import Eager
from namedmesh.ir.program import Program
from namedmesh.lowering.compile import compile

REPLAY_EXAMPLES = """\
examples:
  # a Trainer(..., record="runs/records") stopped at step 1234, whose loss was not finite
  namedmesh replay 1234 train.py:step --record runs/records

exit status: 0 if every op is as its named op says, 1 if one is not, 2 if something is wrong
"""
_LARGEST_FILE = 2**20
_FIELDS = ("problem", "mesh", "layout", "params")
_DAMAGE = (OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError, BadZipFile)
_DIGITS = {"float64": 1e-8, "float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `namedmesh replay`."""
    add = parser.add_argument
    add("step", type=int, metavar="STEP", help="the step to run again")
    add("program", metavar="PROGRAM", help="the program of the steps: path/file.py:function")
    add("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings", help=SET)
    add("--record", required=True, help="the folder that the Trainer was given as record=")


def run_replay(arguments: argparse.Namespace) -> int:
    """Run a step again and print what is wrong with it."""
    record, state, inputs = read_record(arguments.record, arguments.step)
    program = find_program(arguments.program, arguments.settings)
    program = program if isinstance(program, Program) else program.program
    for name, value in inputs.items():
        if value.dtype.kind == "V" and name in program.inputs:  # numpy's files lack names for them
            inputs[name] = value.view(dtype_of(program.inputs[name].dtype))
    print(f"step {arguments.step} was recorded because {record['problem']}")
    mesh = Mesh.parse(record["mesh"])
    params = Layout(record["params"]).only(program.resting_dims)  # it names other dimensions too
    layouts = {"layout": record["layout"], "params": params if params.rules else None}
    findings = replay_step(program, mesh, layouts, state, inputs)
    print("\n".join(findings) or "every op is as its named op says, and finite where it should be")
    return int(bool(findings))


Arrays = dict[str, np.ndarray]


def read_record(folder: str, step: int) -> tuple[dict[str, str], Arrays, Arrays]:
    """Return what is said of a recorded step, the state before it, and its inputs."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    place = os.path.join(folder, str(step))
    if os.path.isdir(folder) and not os.path.isdir(place):
        steps = sorted(int(one) for one in os.listdir(folder) if one.isdecimal())
        fix = "give --record the folder that the Trainer was given as record="
        raise NamedMeshError(
            f"{folder} has no record of step {step}",
            fix=f"it has {name_some([str(one) for one in steps])}" if steps else fix,
        )
    data = read_file(os.path.join(place, "record.json"), "the record of a step", _LARGEST_FILE)
    name = "record.json"
    try:
        record = {one: str(json.loads(data)[one]) for one in _FIELDS}
        name = "state.safetensors"
        state = load_file(os.path.join(place, name))
        name = "inputs.npz"
        with np.load(os.path.join(place, name), allow_pickle=False) as file:
            inputs = {one: file[one] for one in file.files}
    except (*_DAMAGE, SafetensorError) as error:
        raise NamedMeshError(
            f"the record of step {step} in {folder} is damaged: {name}: {describe_os_error(error)}",
            fix="copy its three files again, or train from the checkpoint again with record=",
        ) from None
    return record, state, inputs


def replay_step(
    program: Program,
    mesh: Mesh,
    layouts: Mapping[str, Any],
    state: Arrays,
    inputs: Arrays,
) -> list[str]:
    """Return the first op that differs from its named op, and the first that is not finite."""
    findings = {
        f"{what} {name}": f"not finite before any op: {what} {name}: {_count(~_finite(value))}"
        for what, arrays in (("input", inputs), ("variable", state))
        for name, value in arrays.items()
        if not _is_finite(value)
    }
    # Each op is evaluated plainly on what the compiled step made of its operands: differences of
    # rounding do not add up, and what follows from a wrong op is right.
    held = [*program.inputs.values(), *(one.tensor for one in program.variables.values())]
    tensors = [*held, *(x for op in program.ops if not op.given for x in op.outputs)]
    structure = {str(number): tensor for number, tensor in enumerate(tensors)}
    every = dataclasses.replace(
        program, structure=structure, outputs=tuple(tensors), updates={}, retrace=None
    )
    step = compile(every, mesh=mesh, **layouts)
    _, results = step(step.place(dict(state)), **inputs)
    values = {tensor: step.fetch(results[name]) for name, tensor in structure.items()}
    for op in program.ops:
        if op.given:
            continue
        operands = [values[x] for x in op.inputs]
        eager = Eager()
        given = [eager.tf.constant(one) for one in operands]
        plain = [np.asarray(one) for one in eager.lower(op, given)]
        for tensor, expected in zip(op.outputs, plain, strict=True):
            line = f"{tensor}, {op.scope}{op.kind} at {op.source}"
            problem = _compare(values[tensor], expected, tensor.dtype)
            if problem:
                findings.setdefault("differs", f"the first op that differs: {line}: {problem}")
            if not _is_finite(values[tensor]) and all(map(_is_finite, operands)):
                findings.setdefault("finite", f"the first value that is not finite: {line}")
    return list(findings.values())


def _widen(value: np.ndarray) -> np.ndarray:
    """Return an array in 64 bits, or complex in 128."""
    return np.asarray(value, np.complex128 if value.dtype.kind == "c" else np.float64)


def _finite(value: np.ndarray) -> np.ndarray:
    """Return which numbers of an array are finite."""
    return np.isfinite(_widen(value))


def _is_finite(value: np.ndarray) -> bool:
    """Return whether all numbers of an array are finite."""
    return bool(_finite(value).all())


def _count(wrong: np.ndarray) -> str:
    """Describe how many elements are wrong, and where the first of them is."""
    place = [int(one) for one in np.argwhere(wrong)[0]]
    return f"{wrong.sum():,} of {wrong.size:,} elements, the first at {place}"


def _compare(value: np.ndarray, expected: np.ndarray, dtype: str) -> str:
    """Describe how an array differs from another beyond rounding; empty if it does not."""
    left, right = _widen(value), _widen(expected)
    scale = np.max(np.abs(right), where=np.isfinite(right), initial=0.0)
    wrong = ~np.isclose(left, right, rtol=0, atol=_DIGITS.get(dtype, 0) * scale, equal_nan=True)
    if not wrong.any():
        return ""
    place = tuple(int(one) for one in np.argwhere(wrong)[0])
    return f"{_count(wrong)}: {left[place]:.9g}, expected {right[place]:.9g}"
