"""Inputs fed by several processes: each gives its own rows, its devices read their shards of them.

Rows are the first dimension of an input. What a process gives is whole along all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from namedmesh.artifacts.description import TensorSpec, dtype_of
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.runtime.arrays import (
    Mismatch,
    as_array,
    check_names,
    fits_dtype,
    lies_in_place,
    raise_mismatches,
)
from namedmesh.runtime.padding import remember_sizes


def own_rows(spec: TensorSpec, mesh: Mesh, sharding: NamedSharding) -> slice:
    """The rows of an input that the devices of this process read."""
    if not spec.sizes:
        raise NamedMeshError(
            f"input {spec.name} is a scalar and has no rows",
            f"{spec.name}: {spec.text}",
            fix="feed scalars as they are, the same in every process",
        )
    padded, rows = spec.padded(mesh), spec.sizes[0]
    places = sharding.addressable_devices_indices_map(padded).values()
    bounds = [place[0].indices(padded[0])[:2] for place in places if place is not None]
    start, stop = min(one for one, _ in bounds), max(one for _, one in bounds)
    return slice(min(start, rows), min(stop, rows))


def feed_arrays(
    program: str,
    specs: Mapping[str, TensorSpec],
    values: Mapping[str, Any],
    mesh: Mesh,
    sharding: Callable[[TensorSpec], NamedSharding],
) -> dict[str, jax.Array]:
    """Make arrays over all processes of the rows that each of them has.

    Everything is checked before anything is moved, and every array is copied.
    """
    check_names(program, "input", specs, values)
    mismatches: list[tuple[str, Mismatch]] = []
    arrays: dict[str, Any] = {}
    for name, spec in specs.items():
        if lies_in_place(spec, values[name], mesh, sharding(spec)):
            arrays[name] = values[name]
            continue
        rows = own_rows(spec, mesh, sharding(spec)) if spec.sizes else None
        try:
            arrays[name] = _check_rows(spec, values[name], rows)
        except Mismatch as mismatch:
            fix = f"give rows of dtype {spec.dtype}: array[step.rows({name!r})] of the whole array"
            mismatches.append((fix, mismatch))
    raise_mismatches(program, "input", mismatches)
    for name, spec in specs.items():
        if arrays[name] is not values[name] or not isinstance(arrays[name], jax.Array):
            arrays[name] = _spread(spec, arrays[name], mesh, sharding(spec))
            remember_sizes(arrays[name], spec.sizes)
    return arrays


def _check_rows(spec: TensorSpec, value: Any, rows: slice | None) -> np.ndarray:
    """A process's rows of one input as an array of its own, or a Mismatch."""
    if isinstance(value, jax.Array) and (value.is_deleted() or not value.is_fully_addressable):
        problem = "was used up by an earlier step" if value.is_deleted() else "lies elsewhere"
        raise Mismatch(f"input {spec.name} is an array that {problem}", f"expected {spec.text}")
    array = as_array("input", spec, value)
    sizes = spec.sizes if rows is None else (rows.stop - rows.start, *spec.sizes[1:])
    right_dtype = array.dtype == dtype_of(spec.dtype) or fits_dtype(value, spec.dtype)
    if array.shape != sizes or not right_dtype:
        given = f"input {spec.name} was given as {array.dtype}{list(array.shape)}"
        if rows is None or rows == slice(0, spec.sizes[0]):
            raise Mismatch(f"{given}, not {spec.text}")
        raise Mismatch(f"{given}, not rows {rows.start} to {rows.stop} of {spec.text}")
    return np.array(array, dtype_of(spec.dtype))


def _spread(spec: TensorSpec, own: np.ndarray, mesh: Mesh, sharding: NamedSharding) -> jax.Array:
    """One array of all processes, of which this one has some rows."""
    padded = spec.padded(mesh)
    first = own_rows(spec, mesh, sharding).start if spec.sizes else 0

    def read_shard(index: Any) -> np.ndarray:
        bounds = [one.indices(size)[:2] for one, size in zip(index, padded, strict=True)]
        inside = [slice(start, stop) for start, stop in bounds]
        if inside:
            inside[0] = slice(bounds[0][0] - first, bounds[0][1] - first)
        values = own[tuple(inside)]
        sizes = [stop - start for start, stop in bounds]
        padding = [(0, size - had) for size, had in zip(sizes, values.shape, strict=True)]
        return np.pad(values, padding) if any(more for _, more in padding) else values.copy()

    return jax.make_array_from_callback(padded, sharding, read_shard)
