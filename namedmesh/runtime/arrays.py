"""Whole arrays from a user: checked against what a program takes, and laid out on devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import NamedSharding

from namedmesh.artifacts.description import TensorSpec, dtype_of
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.runtime.padding import remember_sizes, unpadded_sizes


class Mismatch(Exception):
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
    used_up: Collection[str] = (),
) -> dict[str, jax.Array]:
    """Lay whole arrays out on devices, each device reading its own shard.

    Everything is checked before anything is moved. No result shares memory that its owner can
    change or that a step would take from its owner.
    """
    check_names(program, what, specs, values)
    places = {name: sharding(spec) for name, spec in specs.items()}
    outside = {
        name
        for name, spec in specs.items()
        if not lies_in_place(spec, values[name], mesh, places[name])
    }
    mismatches: list[tuple[str, Mismatch]] = []
    for name, spec in specs.items():
        if name in outside:
            try:
                _check_array(what, spec, values[name])
            except Mismatch as mismatch:
                fix = f"give an array of shape {spec.sizes} and dtype {spec.dtype}"
                mismatches.append((fix, mismatch))
    raise_mismatches(program, what, mismatches)
    arrays = {}
    for name, spec in specs.items():
        value = values[name]
        if name in outside:
            arrays[name] = _put(spec, value, mesh, places[name])
        else:
            arrays[name] = jnp.copy(value) if name in used_up else value
        remember_sizes(arrays[name], spec.sizes)
    return arrays


def check_names(
    program: str, what: str, specs: Mapping[str, TensorSpec], values: Mapping[str, Any]
) -> None:
    """Raise if a name is unknown or missing, naming every such one."""
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


def raise_mismatches(program: str, what: str, mismatches: list[tuple[str, Mismatch]]) -> None:
    """Raise if there are values that do not fit, naming all of them."""
    if len(mismatches) == 1:
        fix, mismatch = mismatches[0]
        raise NamedMeshError(mismatch.problem, *mismatch.details, fix=fix)
    if mismatches:
        raise NamedMeshError(
            f"{len(mismatches)} {what}s of {program} do not fit",
            *(mismatch.problem for _, mismatch in mismatches),
            fix="give arrays of these shapes and dtypes",
        )


def lies_in_place(spec: TensorSpec, value: Any, mesh: Mesh, sharding: NamedSharding) -> bool:
    """Whether a value is an array that lies on the devices as the program wants it, padding too."""
    return (
        isinstance(value, jax.Array)
        and not value.is_deleted()
        and value.shape == spec.padded(mesh)
        and unpadded_sizes(value) == spec.sizes  # else: an array of the padded size itself
        and value.dtype == dtype_of(spec.dtype)
        and value.sharding.is_equivalent_to(sharding, value.ndim)
    )


def _check_array(what: str, spec: TensorSpec, value: Any) -> None:
    """Raise if a value cannot stand for a tensor; arrays on devices are not fetched for it."""
    if isinstance(value, jax.Array) and value.is_deleted():
        raise Mismatch(
            f"{what} {spec.name} is an array that an earlier step used up", f"expected {spec.text}"
        )
    array = as_array(what, spec, value)
    right_dtype = array.dtype == dtype_of(spec.dtype) or fits_dtype(value, spec.dtype)
    sizes = unpadded_sizes(array)
    if sizes != spec.sizes or not right_dtype:
        raise Mismatch(
            f"{what} {spec.name} was given as {array.dtype}{list(sizes)}, not {spec.text}"
        )


def as_array(what: str, spec: TensorSpec, value: Any) -> np.ndarray | jax.Array:
    """A value as an array, without fetching it from devices."""
    if isinstance(value, np.ma.MaskedArray):
        raise Mismatch(f"{what} {spec.name} is a masked array, whose mask would be lost")
    if isinstance(value, (np.ndarray, jax.Array)):
        return value
    try:
        return np.asarray(value)
    except ValueError:
        problem = f"is a ragged {type(value).__name__}, not {spec.text}"
    except Exception as error:  # whatever the conversion of a user's own class raises
        problem = f"is a {type(value).__name__} that is not an array: {type(error).__name__}"
    raise Mismatch(f"{what} {spec.name} {problem}")


def _put(spec: TensorSpec, value: Any, mesh: Mesh, sharding: NamedSharding) -> jax.Array:
    """Lay out one array that fits."""
    sizes, whole = spec.padded(mesh), np.asarray(value)
    if isinstance(value, jax.Array):
        whole = whole[tuple(slice(size) for size in unpadded_sizes(value))]
    array = whole
    if sizes != array.shape:
        padding = [(0, size - had) for size, had in zip(sizes, array.shape, strict=True)]
        array = np.pad(array, padding)
    array = array.astype(dtype_of(spec.dtype), copy=False)

    def read_shard(index: Any) -> np.ndarray:
        # On CPU jax takes over the memory it is given, and elsewhere it reads it later: a user who
        # writes the next batch into the same array would change this one.
        return np.array(array[index]) if array is whole else array[index]

    return jax.make_array_from_callback(sizes, sharding, read_shard)


def fits_dtype(value: Any, dtype: str) -> bool:
    """Whether a plain Python number can stand for a scalar of a dtype."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if dtype == "bool":
        return False
    if not dtype.lstrip("u").startswith("int"):
        finite = isinstance(value, int) or math.isfinite(value)
        return not finite or abs(value) <= float(ml_dtypes.finfo(dtype_of(dtype)).max)
    limits = np.iinfo(dtype)
    return limits.min <= value <= limits.max and int(value) == value
