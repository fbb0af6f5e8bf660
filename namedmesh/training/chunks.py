"""A checkpoint's arrays on disk: Zarr 3 arrays in an OCDBT database, by tensorstore.

Each process writes its own database, and process 0 makes one that refers to the chunks of all.
Every chunk, and every node of the database, has a CRC-32C that tensorstore verifies on reading."""

from __future__ import annotations

import math
import os
import pathlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore as ts

from namedmesh.files import check_tree, open_file
from namedmesh.training.saved_variables import SavedVariable

CHUNK_BYTES = 16 * 2**20  # a chunk is read whole, even for a part of it
LARGEST_FILE = 64 * 2**20  # bytes of files that are read whole; a larger one is not ours
MANIFEST = "manifest.ocdbt"  # which tensorstore reads whole
_TOKEN = ".token"  # the key of a text that the record has too; no variable has this name
_ALIGNMENT = 64  # bytes
Bounds = tuple[tuple[int, int], ...]  # where a shard begins and ends in each dimension


@dataclass(frozen=True)
class StoredArray:
    """An array in a checkpoint: sizes without and with padding, dtype, sizes of its chunks."""

    sizes: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    dims: tuple[str, ...] = ()

    @property
    def variable(self) -> SavedVariable:
        """The variable, without padding."""
        return SavedVariable(self.sizes, self.dtype, self.dims)


def choose_chunk(shard: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Cut shards into equal chunks of at most `CHUNK_BYTES`, if their sizes have divisors for it.

    >>> choose_chunk((4096, 4096), 4), choose_chunk((7, 5), 4)
    ((1024, 4096), (7, 5))
    """
    chunk = list(shard)
    for axis, size in enumerate(shard):
        excess = math.ceil(math.prod(chunk) * itemsize / CHUNK_BYTES)
        # A divisor far above what is needed would make thousands of small chunks.
        parts = (one for one in range(excess, min(size, 4 * excess) + 1) if size % one == 0)
        chunk[axis] = size // next(parts, 1)
    return tuple(chunk)


def describe_arrays(
    arrays: Mapping[str, jax.Array], variables: Mapping[str, SavedVariable]
) -> dict[str, StoredArray]:
    """Describe how each array will be stored."""
    stored = {}
    for name, array in arrays.items():
        shard = array.sharding.shard_shape(array.shape)
        chunk = choose_chunk(shard, array.dtype.itemsize)
        one = variables[name]
        stored[name] = StoredArray(one.sizes, one.dtype, array.shape, chunk, one.dims)
    return stored


def shards_to_write(arrays: Mapping[str, jax.Array]) -> Iterator[tuple[str, Bounds, jax.Array]]:
    """Yield the shards that this process writes; together, processes write every element once."""
    count = 0
    for name, array in arrays.items():
        local = {shard.device: shard.data for shard in array.addressable_shards}
        indices = array.sharding.devices_indices_map(array.shape)
        for bounds, devices in sorted(_group_replicas(indices, array.shape).items()):
            devices.sort(key=lambda device: device.id)
            writer = devices[count % len(devices)]  # replicas alternate: equal work for processes
            count += 1
            if writer in local:
                yield name, bounds, local[writer]


def shard_bounds(index: Iterable[slice], shape: Sequence[int]) -> Bounds:
    """Return where the shard at an index begins and ends in each dimension."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _group_replicas(
    indices: Mapping[Any, Iterable[slice] | None], shape: Sequence[int]
) -> dict[Bounds, list[Any]]:
    """Group devices by the shard that they have."""
    devices: dict[Bounds, list[Any]] = {}
    for device, index in indices.items():
        devices.setdefault(shard_bounds(index or (), shape), []).append(device)
    return devices


class ChunkWriter:
    """Write shards of arrays to the database of one process."""

    def __init__(
        self, folder: pathlib.Path, arrays: Mapping[str, StoredArray], *, declares: bool = True
    ):
        self._context = make_context()
        self._folder, self._arrays = folder, arrays
        self._undeclared = list(arrays) if declares else []

    def write(self, shards: Iterable[tuple[str, Bounds, np.ndarray]]) -> ts.Future:
        """Start to write some shards."""
        transaction = ts.Transaction(atomic=True)
        for name in self._undeclared:
            self._open(name, transaction=transaction, create=True)
        self._undeclared = []
        copied = []
        for name, bounds, values in shards:
            place = tuple(slice(*ends) for ends in bounds)
            array = self._open(name, transaction=transaction, assume_metadata=True)[place]
            copied.append(array.write(values, can_reference_source_data_indefinitely=True).copy)
        for future in copied:
            future.result()
        return transaction.commit_async()

    def _open(self, name: str, **options: Any) -> ts.TensorStore:
        """Open one of the arrays for writing; create it to write its metadata."""
        spec = array_spec(self._folder, name, self._arrays[name])
        return ts.open(ts.Spec(spec), context=self._context, open=True, **options).result()


def join_databases(folder: pathlib.Path, parts: Sequence[pathlib.Path], token: str) -> None:
    """Make one database of those of all processes, without copying chunks, and note its token."""
    context, transaction = make_context(), ts.Transaction(atomic=True)
    whole = ts.KvStore.open(_database_spec(folder), context=context).result()
    for part in parts:
        if not (part / MANIFEST).exists():
            continue  # this process had no shard to write
        store = ts.KvStore.open(_database_spec(part), context=context).result()
        store.experimental_copy_range_to(whole.with_transaction(transaction)).result()
    whole.with_transaction(transaction).write(_TOKEN, token.encode()).result()
    transaction.commit_sync()


def make_context() -> ts.Context:
    """Make a context with a cache for the nodes of the database, but none for values."""
    return ts.Context({"cache_pool#nodes": {"total_bytes_limit": 2**26}})


def _database_spec(folder: pathlib.Path) -> dict[str, Any]:
    """Describe an OCDBT database in a folder."""
    return {
        "driver": "ocdbt",
        "base": {"driver": "file", "path": f"{folder}/"},
        "config": {
            "max_inline_value_bytes": 1024,
            "max_decoded_node_bytes": 10**8,
            "manifest_kind": "single",
            "compression": None,
        },
        "assume_config": True,
        "cache_pool": "cache_pool#nodes",
    }


def array_spec(folder: pathlib.Path, name: str, stored: StoredArray) -> dict[str, Any]:
    """Describe a Zarr 3 array in a database."""
    return {
        "driver": "zarr3",
        "kvstore": {**_database_spec(folder), "path": f"{name}/"},
        "metadata": {
            "shape": list(stored.shape),
            "data_type": stored.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(stored.chunk)}},
            "codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "crc32c"},
            ],
        },
        "recheck_cached_data": False,
        "recheck_cached_metadata": False,
        "store_data_equal_to_fill_value": True,
    }


@dataclass(frozen=True)
class ArrayTarget:
    """An array to restore: how it is stored, and the shape and sharding that it gets."""

    stored: StoredArray
    shape: tuple[int, ...]
    sharding: jax.sharding.Sharding


def read_arrays(
    folder: pathlib.Path, token: str, targets: Mapping[str, ArrayTarget], window: int
) -> dict[str, jax.Array]:
    """Read arrays, each device its own shard, with at most `window` bytes in host memory."""
    check_tree(folder)  # tensorstore would wait for a pipe, and read a device without end
    os.close(open_file(folder / MANIFEST, LARGEST_FILE))
    context, in_flight = make_context(), 0
    _check_token(folder, token, context)
    reads: deque[tuple[str, Sequence[Any], np.ndarray, ts.Future]] = deque()
    shards: dict[str, list[jax.Array]] = {name: [] for name in targets}

    def finish_one() -> int:
        name, devices, values, read = reads.popleft()
        read.result()
        shards[name] += [jax.device_put(values, device) for device in devices]
        return values.nbytes

    for name, target in targets.items():
        array = _open(folder, name, target.stored, context)
        indices = target.sharding.addressable_devices_indices_map(target.shape)
        for bounds, devices in _group_replicas(indices, target.shape).items():
            count = math.prod(stop - start for start, stop in bounds)
            size = count * jnp.dtype(target.stored.dtype).itemsize
            while reads and in_flight + size > window:
                in_flight -= finish_one()
            reads.append((name, devices, *_start_read(array, bounds)))
            in_flight += size
    while reads:
        finish_one()
    return {
        name: jax.make_array_from_single_device_arrays(
            target.shape, target.sharding, shards[name], dtype=jnp.dtype(target.stored.dtype)
        )
        for name, target in targets.items()
    }


def _check_token(folder: pathlib.Path, token: str, context: ts.Context) -> None:
    """Raise unless a database is the one that was written with a record."""
    database = ts.KvStore.open(_database_spec(folder), context=context).result()
    if bytes(database.read(_TOKEN).result().value) != token.encode():
        raise ValueError("its arrays are those of another checkpoint")


def clear_padding(array: jax.Array, sizes: Sequence[int], saved: Sequence[int]) -> jax.Array:
    """Set to zero what was padding when the array was saved, unless the padding is the same now."""
    # Padding of the same size stays as it was: a resumed run continues bit for bit.
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
    """Open an array as the record describes it, whatever the database's metadata is."""
    spec = array_spec(folder, name, stored) | {"fill_missing_data_reads": False}
    return ts.open(
        ts.Spec(spec), context=context, open=True, read=True, assume_metadata=True
    ).result()


def _start_read(array: ts.TensorStore, bounds: Bounds) -> tuple[np.ndarray, ts.Future]:
    """Start to read a shard; padding that the stored array does not have is zero."""
    ends = [
        (min(start, size), min(stop, size))
        for (start, stop), size in zip(bounds, array.shape, strict=True)
    ]
    sizes = tuple(stop - start for start, stop in bounds)
    inside = tuple(slice(stop - start) for start, stop in ends)
    values = _allocate(sizes, array.dtype.numpy_dtype)
    stored_part = values[(*inside, ...)]  # a view, also of an array without dimensions
    if stored_part.shape != sizes:
        values[...] = 0
    stored = array[tuple(slice(*one) for one in ends)]
    return values, ts.array(stored_part).write(stored[ts.d[:].translate_to[0]]).commit


def _allocate(sizes: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate aligned memory, which a CPU device uses without a copy."""
    count = math.prod(sizes) * dtype.itemsize
    memory = np.empty(count + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + count].view(dtype).reshape(sizes)
