"""Whole arrays from a user: checked against what a program takes, and laid out on devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.dims.mesh import Mesh
from namedmesh.runtime.description import TensorSpec, dtype_of


class _Mismatch(Exception):
    """One value that does not fit: what is wrong, and details of it."""

    def __init__(self, problem: str, *details: str):
        super().__init__(problem)
        self.problem, self.details = problem, details


def put_arrays(
    program: str,
    what: str,
    specs: Mapping[str, TensorSpec],
    values: Mapping[str, Any],
    mesh: Mesh,
    sharding: Callable[[TensorSpec], NamedSharding],
) -> dict[str, jax.Array]:
    """Lays whole arrays out on devices, each device reading its own piece.

    Everything is checked before anything is moved.

    Args:
        program: The name of the program, for errors.
        what: What the arrays are: `input` or `variable`.
        specs: What the program takes, by name.
        values: The arrays by name; arrays that lie in place already are passed on as they are.
        mesh: The program's mesh.
        sharding: Where an array of a spec lies.

    Returns:
        The arrays on their devices, in the order of the specs.

    Raises:
        NamedMeshError: If names are unknown or missing, or arrays of another shape or dtype; it
            names all of them.
    """
    _check_names(program, what, specs, values)
    places = {name: sharding(spec) for name, spec in specs.items()}
    outside = {
        name
        for name, spec in specs.items()
        if not _in_place(spec, values[name], mesh, places[name])
    }
    mismatches: list[tuple[TensorSpec, _Mismatch]] = []
    for name, spec in specs.items():
        if name in outside:
            try:
                _check_array(what, spec, values[name])
            except _Mismatch as mismatch:
                mismatches.append((spec, mismatch))
    if len(mismatches) == 1:
        spec, mismatch = mismatches[0]
        raise NamedMeshError(
            mismatch.problem,
            *mismatch.details,
            fix=f"give an array of shape {spec.sizes} and dtype {spec.dtype}",
        )
    if mismatches:
        raise NamedMeshError(
            f"{len(mismatches)} {what}s of {program} do not fit",
            *(mismatch.problem for _, mismatch in mismatches),
            fix="give arrays of these shapes and dtypes",
        )
    return {
        name: _put(spec, values[name], mesh, places[name]) if name in outside else values[name]
        for name, spec in specs.items()
    }


def _check_names(
    program: str, what: str, specs: Mapping[str, TensorSpec], values: Mapping[str, Any]
) -> None:
    """Raises if a name is unknown or missing, naming every such one."""
    unknown = [name for name in values if name not in specs]
    missing = [name for name in specs if name not in values]
    if not unknown and not missing:
        return
    problems = []
    if unknown:
        problems.append(f"{program} has no {what} {', '.join(map(repr, unknown))}")
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        names = ", ".join(map(repr, missing))
        problems.append(
            f"{what} {names} {'of ' + program + ' ' if not unknown else ''}{verb} missing"
        )
    known = [f"{name}: {spec.text}" for name, spec in list(specs.items())[:8]]
    close = [did_you_mean(str(name), missing or specs) for name in unknown]
    meant = [text for text in close if text.startswith("did you mean")]
    fix = "; ".join(dict.fromkeys(meant)) or f"give all of: {', '.join(specs)}"
    raise NamedMeshError(", and ".join(problems), *known, fix=fix)


def _in_place(spec: TensorSpec, value: Any, mesh: Mesh, sharding: NamedSharding) -> bool:
    """Whether a value is an array that lies on the devices as the program wants it, padding too."""
    return (
        isinstance(value, jax.Array)
        and not value.is_deleted()
        and value.shape == spec.padded(mesh)
        and value.dtype == dtype_of(spec.dtype)
        and value.sharding.is_equivalent_to(sharding, value.ndim)
    )


def _check_array(what: str, spec: TensorSpec, value: Any) -> None:
    """Raises if a value cannot stand for a tensor; arrays on devices are not fetched for it."""
    if isinstance(value, jax.Array) and value.is_deleted():
        raise _Mismatch(
            f"{what} {spec.name} is an array that an earlier step used up", f"expected {spec.text}"
        )
    try:
        array = value if isinstance(value, (np.ndarray, jax.Array)) else np.asarray(value)
    except ValueError:
        raise _Mismatch(
            f"{what} {spec.name} is a ragged {type(value).__name__}, not {spec.text}"
        ) from None
    right_dtype = array.dtype == dtype_of(spec.dtype) or _fits(value, spec.dtype)
    if array.shape != spec.sizes or not right_dtype:
        raise _Mismatch(
            f"{what} {spec.name} was given as {array.dtype}{list(array.shape)}, not {spec.text}"
        )


def _put(spec: TensorSpec, value: Any, mesh: Mesh, sharding: NamedSharding) -> jax.Array:
    """Lays out one array that fits."""
    sizes = spec.padded(mesh)
    array = np.asarray(value)
    if sizes != array.shape:
        padding = [(0, size - had) for size, had in zip(sizes, array.shape, strict=True)]
        array = np.pad(array, padding)
    array = array.astype(dtype_of(spec.dtype), copy=False)
    return jax.make_array_from_callback(sizes, sharding, lambda index: array[index])


def _fits(value: Any, dtype: str) -> bool:
    """Whether a plain Python number can stand for a scalar of a dtype."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if not dtype.lstrip("u").startswith("int"):
        return dtype != "bool"
    limits = np.iinfo(dtype)
    return float(value).is_integer() and limits.min <= value <= limits.max
