"""Checks of what checkpoints, weights and trainers are given, for everyday mistakes."""

from __future__ import annotations

from namedmesh.errors.errors import NamedMeshError
from namedmesh.runtime import Executable, State


def check_executable(executable: object, what: str) -> Executable:
    """Return a compiled step, or raise if it is something else, e.g. a Program."""
    if isinstance(executable, Executable):
        return executable
    raise NamedMeshError(
        f"{what} is a {type(executable).__name__}, expected an Executable",
        fix="give a compiled step: nm.compile(function, ..., mesh=mesh), or load(path) of an "
        "Artifact",
    )


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


def check_metrics(metrics: object, what: str) -> dict[str, float]:
    """Return metrics as floats, or raise."""
    try:
        return {name: float(value) for name, value in metrics.items()}  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError) as error:
        raise NamedMeshError(
            f"{what} is not a dict of numbers: {error}",
            fix="give a number for each name, e.g. {'dev_loss': 2.5}",
        ) from None
