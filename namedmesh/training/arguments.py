"""Checks of what checkpoints, weights and trainers are given, for everyday mistakes."""

from __future__ import annotations

from collections.abc import Mapping

from namedmesh.errors.errors import NamedMeshError, whole_number
from namedmesh.runtime import Executable, State

COMPILE = "compile it first: nm.compile(program, mesh=mesh, layout=layout)"


def check_executable(executable: object, what: str) -> Executable:
    """Return a compiled step, or raise if it is something else, e.g. a Program."""
    if isinstance(executable, Executable):
        return executable
    kind = type(executable).__name__
    fix = "give a compiled step: nm.compile(function, ..., mesh=mesh), or load(path) of an Artifact"
    fix = COMPILE if kind == "Program" else fix
    raise NamedMeshError(f"{what} is a {kind}, expected an Executable", fix=fix)


def check_saveable(state: object) -> State:
    """Return a state whose values are still there, or raise."""
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


def check_count(value: object, what: str, least: int = 0) -> int:
    """Return a whole number as an int, or raise."""
    number = whole_number(value)
    if number is not None and number >= least:
        return number
    raise NamedMeshError(f"{what}={value!r}", fix=f"give a whole number, {least} or more")


def check_metrics(metrics: object, what: str) -> dict[str, float]:
    """Return metrics as floats, or raise."""
    fix = "give a number for each name, e.g. {'dev_loss': 2.5}"
    if not isinstance(metrics, Mapping):
        raise NamedMeshError(
            f"{what} is a {type(metrics).__name__}, expected a dict of numbers", fix=fix
        )
    numbers, problems = {}, []
    for name, value in metrics.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            problems.append(f"{name}: {value!r} is not a number")
    if problems:
        raise NamedMeshError(f"{what} has values that are not numbers", *problems, fix=fix)
    return numbers
