"""The command `namedmesh replay`: runs a recorded step again, and finds the op that went wrong."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from namedmesh.cli.planning_commands import SET
from namedmesh.cli.references import find_program
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.files import read_file
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
    from safetensors.numpy import load_file

    folder = os.path.join(arguments.record, str(arguments.step))
    path = os.path.join(folder, "record.json")
    record = json.loads(read_file(path, "the record of a step", _LARGEST_FILE))
    program = find_program(arguments.program, arguments.settings)
    program = program if isinstance(program, Program) else program.program
    state = load_file(os.path.join(folder, "state.safetensors"))
    with np.load(os.path.join(folder, "inputs.npz"), allow_pickle=False) as file:
        inputs = {name: file[name] for name in file.files}
    print(f"step {arguments.step} was recorded because {record['problem']}")
    mesh = Mesh.parse(record["mesh"])
    params = Layout(record["params"]).only(program.resting_dims)  # it names other dimensions too
    layouts = {"layout": record["layout"], "params": params if params.rules else None}
    findings = replay_step(program, mesh, layouts, state, inputs)
    print("\n".join(findings) or "every op is as its named op says, and finite where it should be")
    return int(bool(findings))


def replay_step(
    program: Program,
    mesh: Mesh,
    layouts: Mapping[str, Any],
    state: Mapping[str, np.ndarray],
    inputs: Mapping[str, np.ndarray],
) -> list[str]:
    """Return the first op that differs from its named op, and the first that is not finite."""
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
    findings: dict[str, str] = {}
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


def _is_finite(value: np.ndarray) -> bool:
    """Return whether all numbers of an array are finite; whole numbers are."""
    return value.dtype.kind in "iub" or bool(np.isfinite(np.asarray(value, np.float64)).all())


def _compare(value: np.ndarray, expected: np.ndarray, dtype: str) -> str:
    """Describe how an array differs from another beyond rounding; empty if it does not."""
    left, right = (np.asarray(one, np.float64) for one in (value, expected))
    scale = np.max(np.abs(right), where=np.isfinite(right), initial=0.0)
    wrong = ~np.isclose(left, right, rtol=0, atol=_DIGITS.get(dtype, 0) * scale, equal_nan=True)
    if not wrong.any():
        return ""
    place = tuple(int(one) for one in np.argwhere(wrong)[0])
    return (
        f"{wrong.sum():,} of {wrong.size:,} elements, the first at {list(place)}: "
        f"{left[place]:.9g}, expected {right[place]:.9g}"
    )
