"""What checkpoints, weights and trainers are given: errors that say what was expected instead."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping
from typing import Any, SupportsIndex

from namedmesh.dims.errors import NamedMeshError
from namedmesh.runtime import Executable, State


def check_executable(executable: object, what: str) -> Executable:
    """Return a compiled step, or raise if it is something else, e.g. a Program.

    Args:
        executable: What a function was given.
        what: What it is called there.

    Returns:
        The same object.

    Raises:
        NamedMeshError: If it is not an Executable.

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

    Args:
        state: What a function was given.

    Returns:
        The same object.

    Raises:
        NamedMeshError: If it is not a State, or if a step has used up variables of it; the error
            lists all of them.

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

    Args:
        path: What a function was given.
        what: What it is called there.

    Returns:
        The same object.

    Raises:
        NamedMeshError: If it is neither a string nor a path.

    >>> check_file_path("model.safetensors", "the file of the weights")
    'model.safetensors'
    """
    if isinstance(path, str | os.PathLike):
        return path
    raise NamedMeshError(
        f"{what} is a {type(path).__name__}, expected a path",
        fix="give a string or a pathlib.Path as the first argument",
    )


def check_count(value: object, what: str, least: int = 0) -> int:
    """Return a whole number as an int, or raise.

    Args:
        value: What a function was given.
        what: What it is called there.
        least: The smallest number that is allowed.

    Returns:
        The number.

    Raises:
        NamedMeshError: If it is not a whole number, or too small.

    >>> check_count(3, "step")
    3
    """
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        number = operator.index(value)
        if number >= least:
            return number
    raise NamedMeshError(f"{what}={value!r}", fix=f"give a whole number, {least} or more")


def check_json(values: object, what: str) -> dict[str, Any]:
    """Return a dict that can be written as JSON, or raise.

    Args:
        values: What a function was given; None is an empty dict.
        what: What it is called there.

    Returns:
        The dict.

    Raises:
        NamedMeshError: If it is not a mapping, or has entries that are not JSON; the error lists
            all of them.

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

    Args:
        metrics: What a function was given or returned; None is an empty dict.
        what: What it is called there.

    Returns:
        A float for each name.

    Raises:
        NamedMeshError: If it is not a mapping, or has values that are not numbers; the error lists
            all of them.

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
