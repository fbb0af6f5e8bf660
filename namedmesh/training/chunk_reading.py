"""Reading a checkpoint's arrays: each device its own shard, chunks verified, memory bounded."""

from __future__ import annotations

import math
import pathlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore as ts

from namedmesh.training.checkpoint_record import StoredArray, check_file_size
from namedmesh.training.chunk_store import (
    MANIFEST,
    Bounds,
    array_spec,
    make_context,
    shard_bounds,
)

_ALIGNMENT = 64  # bytes


@dataclass(frozen=True)
class ArrayTarget:
    """An array to restore: how it is stored, and the shape and place that it gets."""

    stored: StoredArray
    shape: tuple[int, ...]
    sharding: jax.sharding.Sharding


@dataclass(frozen=True)
class _Shard:
    """A shard that this process needs."""

    name: str
    bounds: Bounds
    devices: Sequence[Any]
    bytes: int


def read_arrays(
    folder: pathlib.Path, targets: Mapping[str, ArrayTarget], window: int
) -> dict[str, jax.Array]:
    """Read arrays; what the stored array does not have is padding, of zeros."""
    check_file_size(folder / MANIFEST)
    context, held = make_context(), 0
    reads: deque[tuple[_Shard, np.ndarray, ts.Future]] = deque()
    placed: dict[str, list[jax.Array]] = {name: [] for name in targets}

    def finish_one() -> int:
        shard, values, read = reads.popleft()
        read.result()
        placed[shard.name] += [jax.device_put(values, device) for device in shard.devices]
        return shard.bytes

    for name, target in targets.items():
        array = _open(folder, name, target.stored, context)
        for shard in _find_shards(name, target):
            while reads and held + shard.bytes > window:
                held -= finish_one()
            reads.append((shard, *_start_read(array, shard.bounds)))
            held += shard.bytes
    while reads:
        finish_one()
    return {
        name: jax.make_array_from_single_device_arrays(
            target.shape, target.sharding, placed[name], dtype=jnp.dtype(target.stored.dtype)
        )
        for name, target in targets.items()
    }


def clear_padding(array: jax.Array, sizes: Sequence[int], saved: Sequence[int]) -> jax.Array:
    """Set to zero what was padding when the array was saved and is padding of another size now.

    Padding of the same size stays as it was, so that a resumed run continues bit for bit.
    """
    common = [min(now, before) for now, before in zip(array.shape, saved, strict=True)]
    cut = all(count <= size for count, size in zip(common, sizes, strict=True))
    if cut or array.shape == tuple(saved):
        return array

    def clear(values: jax.Array) -> jax.Array:
        inside = jnp.ones((), bool)
        for axis, size in enumerate(sizes):
            inside &= jax.lax.broadcasted_iota(jnp.int32, values.shape, axis) < size
        return jnp.where(inside, values, jnp.zeros((), values.dtype))

    return jax.jit(clear, out_shardings=array.sharding)(array)


def _open(
    folder: pathlib.Path, name: str, stored: StoredArray, context: ts.Context
) -> ts.TensorStore:
    """Open an array as the record describes it, whatever the database says that it is."""
    spec = array_spec(folder, name, stored) | {"fill_missing_data_reads": False}
    return ts.open(
        ts.Spec(spec), context=context, open=True, read=True, assume_metadata=True
    ).result()


def _find_shards(name: str, target: ArrayTarget) -> Iterator[_Shard]:
    """The shards of an array that this process needs, each once."""
    devices: dict[Bounds, list[Any]] = {}
    indices = target.sharding.addressable_devices_indices_map(target.shape)
    for device, index in indices.items():
        devices.setdefault(shard_bounds(index or (), target.shape), []).append(device)
    itemsize = jnp.dtype(target.stored.dtype).itemsize
    for bounds, holders in devices.items():
        count = math.prod(stop - start for start, stop in bounds)
        yield _Shard(name, bounds, holders, count * itemsize)


def _start_read(array: ts.TensorStore, bounds: Bounds) -> tuple[np.ndarray, ts.Future]:
    """Start to read a shard; what the stored array does not have is zero."""
    ends = [
        (min(start, size), min(stop, size))
        for (start, stop), size in zip(bounds, array.shape, strict=True)
    ]
    sizes = tuple(stop - start for start, stop in bounds)
    inside = tuple(slice(stop - start) for start, stop in ends)
    values = _allocate(sizes, array.dtype.numpy_dtype)
    there = values[(*inside, ...)]  # a view, also of an array without dimensions
    if there.shape != sizes:
        values[...] = 0
    stored = array[tuple(slice(*one) for one in ends)]
    return values, ts.array(there).write(stored[ts.d[:].translate_to[0]]).commit


def _allocate(sizes: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory that a CPU device takes as it is; it would copy what begins elsewhere."""
    count = math.prod(sizes) * dtype.itemsize
    memory = np.empty(count + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + count].view(dtype).reshape(sizes)
