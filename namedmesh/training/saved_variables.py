"""The variables in a file, compared with those that a program needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from namedmesh.display.text import name_some
from namedmesh.errors.errors import NamedMeshError
from namedmesh.runtime import State

MISSING = ("error", "init")


@dataclass(frozen=True)
class SavedVariable:
    """Sizes, dtype and names of dimensions of a variable in a file, without padding.

    >>> from namedmesh.training import SavedVariable
    >>> str(SavedVariable((4, 8), "bfloat16"))
    'bfloat16[4, 8]'
    """

    sizes: tuple[int, ...]
    dtype: str
    dims: tuple[str, ...] = ()  # where the file has them

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.sizes)}"


def describe_state(state: State) -> dict[str, SavedVariable]:
    """Describe every variable of a state by its size without padding and its dtype."""
    variables = {}
    for name, array in state.arrays.items():
        spec = state.specs.get(name)
        sizes, dims = (array.shape, ()) if spec is None else (spec.sizes, spec.shape.names)
        variables[name] = SavedVariable(tuple(sizes), str(array.dtype), tuple(dims))
    return variables


def match_variables(
    where: str,
    saved: Mapping[str, SavedVariable],
    specs: Mapping[str, Any],
    *,
    names: Mapping[str, str] | None = None,
    missing: str = "error",
    cast: bool = False,
    fix: str,
) -> list[str]:
    """Return the variables that a file has; raise for all that are missing or do not fit."""
    if missing not in MISSING:
        raise NamedMeshError(
            f"missing={missing!r} is not a choice", fix=f"give {' or '.join(map(repr, MISSING))}"
        )
    names = names or {name: name for name in specs}
    present, problems = [], []
    for name, label in names.items():
        spec, actual = specs[name], saved.get(label)
        dims = tuple(spec.shape.names) if hasattr(spec, "shape") else ()
        expected = SavedVariable(tuple(spec.sizes), str(spec.dtype), dims)
        as_label = name if label == name else f"{name} (saved as {label})"
        if actual is None:
            problems += [f"{as_label}: {expected} is missing"] if missing == "error" else []
            continue
        convertible = cast and "float" in actual.dtype and "float" in expected.dtype
        if actual.sizes != expected.sizes or not (actual.dtype == expected.dtype or convertible):
            problems.append(f"{as_label}: expected {expected}, found {actual}")
        elif actual.dims != dims and sorted(actual.dims) == sorted(dims):
            # Equal sizes in another order would be read, transposed.
            order = f"[{', '.join(dims)}], found [{', '.join(actual.dims)}]"
            problems.append(f"{as_label}: expected the dimensions {order}")
        present.append(name)
    if problems:
        count = f"{len(problems)} variable" + "s" * (len(problems) > 1)
        unused = [label for label in saved if label not in names.values()]
        if unused and any(one.endswith("is missing") for one in problems):
            problems.append(f"saved, and not in the program: {name_some(unused, 8)}")
        raise NamedMeshError(f"{where} does not fit the program: {count}", *problems, fix=fix)
    if names and not present:
        raise NamedMeshError(
            f"{where} has no variable of the program",
            f"it has: {name_some([*saved], 8) or 'none'}",
            f"the program has: {name_some([*names.values()], 8)}",
            fix=fix,
        )
    return present
