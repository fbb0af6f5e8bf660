"""Arrays on disk: chunks with checksums, written by every process and read by any (tensorstore).

A checkpoint's arrays are Zarr 3 arrays in an OCDBT database. Each process writes a database of its
own; at the end the first process makes one that refers to the chunks of all of them. Every chunk,
and every node of the database, has a CRC-32C that tensorstore verifies when it is read.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from namedmesh.training.checkpoint_record import StoredArray

CHUNK_BYTES = 16 * 2**20  # of which one is read whole where a program needs a part of it
MANIFEST = "manifest.ocdbt"  # which tensorstore reads as a whole
Bounds = tuple[tuple[int, int], ...]  # where a shard begins and ends in each dimension


@dataclass(frozen=True)
class OwnShard:
    """A part of an array that this process writes."""

    name: str
    bounds: Bounds
    data: jax.Array

    @property
    def bytes(self) -> int:
        """The size of its values."""
        return self.data.nbytes


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
    arrays: Mapping[str, jax.Array], sizes: Mapping[str, Sequence[int]]
) -> dict[str, StoredArray]:
    """Say how each array is stored."""
    stored = {}
    for name, array in arrays.items():
        shard = array.sharding.shard_shape(array.shape)
        chunk = choose_chunk(shard, array.dtype.itemsize)
        stored[name] = StoredArray(tuple(sizes[name]), str(array.dtype), array.shape, chunk)
    return stored


def shards_to_write(arrays: Mapping[str, jax.Array]) -> Iterator[OwnShard]:
    """The shards that this process writes: together, all processes write every element once.

    Where several devices hold the same shard, they take turns, so that processes have equal work.
    """
    iteration = 0
    for name, array in arrays.items():
        local = {shard.device: shard.data for shard in array.addressable_shards}
        holders: dict[Bounds, list[Any]] = {}
        for device, index in array.sharding.devices_indices_map(array.shape).items():
            holders.setdefault(shard_bounds(index, array.shape), []).append(device)
        for bounds, devices in sorted(holders.items()):
            devices.sort(key=lambda device: device.id)
            writer = devices[iteration % len(devices)]
            iteration += 1
            if writer in local:
                yield OwnShard(name, bounds, local[writer])


def shard_bounds(index: Iterable[slice], shape: Sequence[int]) -> Bounds:
    """Where the shard at an index begins and ends in each dimension."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


class ChunkWriter:
    """Writes shards of arrays to the database of one process."""

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
            self._open(name, transaction, declare=True)
        self._undeclared = []
        copied = []
        for name, bounds, values in shards:
            place = tuple(slice(*ends) for ends in bounds)
            array = self._open(name, transaction)[place]
            copied.append(array.write(values, can_reference_source_data_indefinitely=True).copy)
        for future in copied:
            future.result()
        return transaction.commit_async()

    def _open(
        self, name: str, transaction: ts.Transaction, declare: bool = False
    ) -> ts.TensorStore:
        """Open one of the arrays for writing; declared, it is written what it is."""
        return ts.open(
            ts.Spec(array_spec(self._folder, name, self._arrays[name])),
            context=self._context,
            transaction=transaction,
            open=True,
            create=declare,
            assume_metadata=not declare,
        ).result()


def join_databases(folder: pathlib.Path, parts: Sequence[pathlib.Path]) -> None:
    """Make one database of those of all processes; no chunk is copied."""
    context, transaction = make_context(), ts.Transaction(atomic=True)
    whole = ts.KvStore.open(_database_spec(folder), context=context).result()
    for part in parts:
        if not (part / MANIFEST).exists():
            continue  # a process that holds no shard of any array
        store = ts.KvStore.open(_database_spec(part), context=context).result()
        store.experimental_copy_range_to(whole.with_transaction(transaction)).result()
    transaction.commit_sync()


def make_context() -> ts.Context:
    """A context with a cache for the nodes of the database, but none for values."""
    return ts.Context({"cache_pool#nodes": {"total_bytes_limit": 2**26}})


def _database_spec(folder: pathlib.Path) -> dict[str, Any]:
    """An OCDBT database in a folder."""
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
    """A Zarr 3 array in a database."""
    return {
        "driver": "zarr3",
        "kvstore": {**_database_spec(folder), "path": f"{name}/"},
        "metadata": {
            "shape": list(stored.shape),
            "data_type": stored.dtype,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": list(stored.chunk)},
            },
            "codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "crc32c"},
            ],
        },
        "recheck_cached_data": False,
        "recheck_cached_metadata": False,
        "store_data_equal_to_fill_value": True,
    }
