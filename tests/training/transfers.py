"""Random pairs of placements of a state, and what moving between them takes at least."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

import namedmesh as nm
from namedmesh.dims.sharding import Sharding
from namedmesh.processes.devices import device_mesh
from namedmesh.runtime import State, VariableSpec
from namedmesh.runtime.compiling import named_sharding

MESHES = [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 5}, {"a": 8}, {"a": 2, "b": 2}, {"a": 2, "b": 3},
          {"a": 4, "b": 2}, {"a": 2, "b": 4}, {"a": 2, "b": 2, "c": 2}]  # fmt: skip


@functools.cache
def empty() -> nm.Artifact:
    """An Artifact whose mesh and variables are exchanged."""
    return nm.export(nm.trace(lambda: nm.param("w", [], nm.constant_init(1.0)) * 2), nm.Mesh(a=1))


def random_program(random: np.random.Generator, sizes: list[tuple[int, ...]]) -> nm.Artifact:
    """A mesh, perhaps of devices in another order, and variables sharded at random."""
    axes = MESHES[random.integers(len(MESHES))]
    count = int(np.prod([*axes.values()]))
    order = random.permutation(count).tolist() if random.random() < 0.5 else None
    variables = []
    for i, shape in enumerate(sizes):
        dims = nm.dims(" ".join(f"d{k}={size}" for k, size in enumerate(shape)) or "d=1")
        held: dict[str, list[str]] = {}
        for axis in random.permutation([*axes]).tolist():
            k = int(random.integers(-1, len(shape)))
            if k >= 0:
                held.setdefault(f"d{k}", []).append(axis)
        shape_of = nm.Shape(dims if shape else ())
        spec = VariableSpec(f"v{i}", shape_of, "float32", Sharding.of(held), True, True)
        variables.append(spec)
    return dataclasses.replace(empty(), mesh=nm.Mesh(order, **axes), variables=tuple(variables))


def shardings(program: nm.Artifact) -> dict[str, NamedSharding]:
    """The sharding of each variable in jax's terms."""
    mesh = device_mesh(program.mesh)
    return {spec.name: named_sharding(mesh, spec) for spec in program.variables}


def place(program: nm.Artifact, values: dict[str, np.ndarray], padding: float = 7.0) -> State:
    """Lay values out, with padding that is not zero."""
    arrays: dict[str, Any] = {}
    for spec in program.variables:
        whole = np.full(spec.padded(program.mesh), padding, values[spec.name].dtype)
        whole[tuple(map(slice, spec.sizes))] = values[spec.name]
        arrays[spec.name] = jax.device_put(whole, shardings(program)[spec.name])
    return State(arrays, {spec.name: spec for spec in program.variables})


def boxes(program: nm.Artifact, spec: VariableSpec) -> dict[int, np.ndarray]:
    """Which elements of a variable each device has, as jax says."""
    padded, masks = spec.padded(program.mesh), {}
    numbers = {device: i for i, device in enumerate(jax.devices())}
    indices = shardings(program)[spec.name].devices_indices_map(padded)
    for device, index in indices.items():
        mask = np.zeros(padded, bool)
        mask[index] = True
        masks[numbers[device]] = mask[tuple(map(slice, spec.sizes))]
    return masks


def least_bytes(before: nm.Artifact, after: nm.Artifact, inside: int) -> tuple[int, int]:
    """The bytes that are not there already: on each device, and in each host of so many devices."""
    total = between = 0
    for old, new in zip(before.variables, after.variables, strict=True):
        held, wanted = boxes(before, old), boxes(after, new)
        size = np.dtype(np.float32).itemsize
        total += size * sum(
            int((mask & ~held.get(device, np.zeros_like(mask))).sum())
            for device, mask in wanted.items()
        )
        for host in {device // inside for device in wanted}:
            none = np.zeros(new.sizes, bool)
            there = sum((m for d, m in held.items() if d // inside == host), none)
            needed = sum((m for d, m in wanted.items() if d // inside == host), none)
            between += size * int((np.asarray(needed) & ~np.asarray(there)).sum())
    return total, between
