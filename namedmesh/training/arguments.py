"""What checkpoints, weights and trainers are given: errors that say what was expected instead."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

from namedmesh.errors.errors import NamedMeshError, whole_number
from namedmesh.records.paths import check_path
from namedmesh.runtime import Executable, State


def check_executable(executable: object, what: str) -> Executable:
    """Return a compiled step, or raise if it is something else, e.g. a Program.

    >>> try:
    ...     check_executable("step", "the step to train")
    ... except NamedMeshError as error:
    ...     print(error.problem)
    the step to train is a str, expected an Executable
    """
    if isinstance(executable, Executable):
        return executable
    kind = type(executable).__name__
    fix = "give a compiled step: nm.compile(function, ..., mesh=mesh), or load(path) of an Artifact"
    if kind == "Program":
        fix = "compile it first: nm.compile(program, mesh=mesh, layout=layout)"
    raise NamedMeshError(f"{what} is a {kind}, expected an Executable", fix=fix)


def check_saveable(state: object) -> State:
    """Return a state whose values can be saved, or raise.

    >>> try:
    ...     check_saveable({"w": 1.0})
    ... except NamedMeshError as error:
    ...     print(error.problem)
    the state to save is a dict, expected a State
    """
    if not isinstance(state, State):
        raise NamedMeshError(
            f"the state to save is a {type(state).__name__}, expected a State",
            fix="save what step.init, step.place({name: array}) or a step returned",
        )
    used = [name for name, array in state.arrays.items() if array.is_deleted()]
    if used:
        raise NamedMeshError(
            "the state to save was used up by a step",
            *(f"{name}: {state.specs[name].text}" for name in used if name in state.specs),
            fix="save the state that the step returned, or save before the step",
        )
    return state


def check_file_path(path: object, what: str) -> str | os.PathLike:
    """Return a path, or raise if it is something else.

    >>> check_file_path("model.safetensors", "the file of the weights")
    'model.safetensors'
    """
    check_path(path, what)
    return path  # type: ignore[return-value]


def check_count(value: object, what: str, least: int = 0) -> int:
    """Return a whole number as an int, or raise.

    >>> check_count(3, "step")
    3
    """
    number = whole_number(value)
    if number is not None and number >= least:
        return number
    raise NamedMeshError(f"{what}={value!r}", fix=f"give a whole number, {least} or more")


def check_real(value: object, what: str) -> float:
    """Return a number as a float, or raise.

    >>> check_real(3, "minutes")
    3.0
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    raise NamedMeshError(f"{what} is a {type(value).__name__}", fix=f"give {what} as a number")


def check_run(step: object, batches: object) -> tuple[Callable[..., Any], Iterable[Any]]:
    """Return a step and its batches, or raise if they are something else.

    >>> try:
    ...     check_run(print, 3)
    ... except NamedMeshError as error:
    ...     print(error.problem)
    the batches are a int, expected a list of dicts
    """
    if not callable(step):
        raise NamedMeshError(
            f"the step is a {type(step).__name__}, expected a function or an Executable",
            fix="give a compiled step: nm.compile(function, ..., mesh=mesh)",
        )
    scalar = getattr(batches, "ndim", 1) == 0  # a 0-d array is Iterable, and raises
    if not isinstance(batches, Iterable) or isinstance(batches, str | bytes | Mapping) or scalar:
        raise NamedMeshError(
            f"the batches are a {type(batches).__name__}, expected a list of dicts",
            fix="give the inputs of each call by name: [{'x': array}, ...]",
        )
    return step, batches


def check_named_arrays(batch: object) -> dict[str, Any]:
    """Return the inputs of one call as a dict, or raise.

    >>> check_named_arrays({"x": 3})
    {'x': 3}
    """
    if isinstance(batch, Mapping) and all(isinstance(name, str) for name in batch):
        return dict(batch)
    raise NamedMeshError(
        f"a batch is a {type(batch).__name__}, expected a dict of arrays by name",
        fix="give the inputs of each call by name: {'x': array}",
    )


def check_json(values: object, what: str) -> dict[str, Any]:
    """Return a dict that can be written as JSON, or raise.

    >>> check_json({"position": 640, "order": [2, 0, 1]}, "extra")
    {'position': 640, 'order': [2, 0, 1]}
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise NamedMeshError(
            f"{what} is a {type(values).__name__}, expected a dict of JSON values",
            fix=f"give {what} as a dict, e.g. {{'position': 640}}",
        )
    problems = []
    for name, value in values.items():
        if not isinstance(name, str):
            problems.append(f"the name {name!r} is not a string")
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise NamedMeshError(
            f"{what} cannot be written as JSON",
            *problems,
            fix="give numbers, strings, lists and dicts, e.g. int(count) and array.tolist()",
        )
    return dict(values)


def check_metrics(metrics: object, what: str) -> dict[str, float]:
    """Return metrics as floats, or raise.

    >>> check_metrics({"dev_loss": 2}, "metrics")
    {'dev_loss': 2.0}
    """
    if metrics is None:
        return {}
    fix = "give a number for each name, e.g. {'dev_loss': 2.5}"
    if not isinstance(metrics, Mapping):
        raise NamedMeshError(
            f"{what} is a {type(metrics).__name__}, expected a dict of numbers", fix=fix
        )
    numbers, problems = {}, []
    for name, value in metrics.items():
        try:
            if isinstance(value, str | bytes):
                raise TypeError
            numbers[name] = float(value)
        except (TypeError, ValueError):
            problems.append(f"{name}: {value!r} is not a number")
    if problems:
        raise NamedMeshError(f"{what} has values that are not numbers", *problems, fix=fix)
    return numbers
