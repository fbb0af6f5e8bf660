"""The names of variables in a file of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from namedmesh.errors.errors import NamedMeshError

Names = Mapping[str, str | None] | Callable[[str], str | None]


def _call_names(function: Callable[[str], str | None], name: str) -> str | None:
    """The name in the file that a function gives a variable."""
    try:
        return function(name)
    except Exception as error:
        raise NamedMeshError(
            f"names= failed for variable {name}: {type(error).__name__}: {str(error)[:200]}",
            fix="give a function from the name of a variable to its name in the file",
        ) from error


def map_names(names: Names | None, variables: Mapping[str, Any]) -> dict[str, str]:
    """The name in the file of each variable that is saved or loaded."""
    if isinstance(names, Mapping):
        unknown = [name for name in names if name not in variables]
        if unknown:
            raise NamedMeshError(
                f"names= has {len(unknown)} that are not variables of the program",
                *unknown,
                fix="give the names of variables as keys and the names in the file as values",
            )
        labels = {name: names.get(name, name) for name in variables}
    elif names is None:
        labels = {name: name for name in variables}
    elif callable(names):
        labels = {name: _call_names(names, name) for name in variables}
    else:
        raise NamedMeshError(
            f"names= is a {type(names).__name__}, expected a dict or a function",
            fix="give {variable: name in the file}, or a function from the former to the latter",
        )
    wrong = [
        f"{name}: {label!r}"
        for name, label in labels.items()
        if label is not None and not isinstance(label, str)
    ]
    if wrong:
        raise NamedMeshError(
            "names= gives names in the file that are not strings",
            *wrong,
            fix="give a string for each variable, or None to leave it out",
        )
    present = {name: label for name, label in labels.items() if label is not None}
    owners: dict[str, list[str]] = {}
    for name, label in present.items():
        owners.setdefault(label, []).append(name)
    clashes = [f"{label}: {', '.join(same)}" for label, same in owners.items() if len(same) > 1]
    if clashes:
        raise NamedMeshError(
            "names= gives several variables the same name in the file",
            *clashes,
            fix="give each variable a name of its own",
        )
    return present
