"""A digest of a state that does not depend on its sharding.

Every element is mixed with its index in the whole array into 64 bits, and these are added up, so
that the sum over shards is the same however the array is sharded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from namedmesh.artifacts.description import TensorSpec, dtype_of
from namedmesh.errors.errors import NamedMeshError
from namedmesh.processes.processes import current_processes
from namedmesh.runtime.arrays import unpadded_bounds

_CHUNK = 2**20  # elements mixed at once
Sums = dict[str, dict[str, dict[str, int]]]  # by variable, the start of a shard, and device


def digest_state(arrays: Mapping[str, jax.Array], specs: Mapping[str, TensorSpec]) -> str:
    """Return the digest of a state; every process must call it, and gets the same."""
    own = {name: sum_shards(array, specs[name].sizes) for name, array in arrays.items()}
    totals, whole = total_sums("digest of the state", own), hashlib.sha256()
    for name in sorted(arrays):
        whole.update(f"{name} {specs[name].text} {totals[name]:016x}\n".encode())
    return whole.hexdigest()[:16]


def total_sums(what: str, own: Sums) -> dict[str, int]:
    """Return the sum of each variable from the sums of the shards in all processes."""
    everyone = [json.loads(text) for text in current_processes().exchange(what, json.dumps(own))]
    return {
        name: sum(_merge(name, [one[name] for one in everyone]).values()) % 2**64 for name in own
    }


def _merge(name: str, parts: list[dict[str, dict[str, int]]]) -> dict[str, int]:
    """Return the sum of every shard of a variable; raise if replicas of one differ."""
    shards: dict[str, dict[str, int]] = {}
    for index, part in enumerate(parts):
        whose = f" of process {index}" if len(parts) > 1 else ""
        for start, by_device in part.items():
            named = {f"{device}{whose}": value for device, value in by_device.items()}
            shards.setdefault(start, {}).update(named)
    for start, by_device in shards.items():
        if len(set(by_device.values())) > 1:
            owners: dict[int, list[str]] = {}
            for device, value in by_device.items():
                owners.setdefault(value, []).append(device)
            groups = sorted(owners.values(), key=len)
            raise NamedMeshError(
                f"copies of a shard of {name} differ between devices",
                f"the shard that starts at [{start}]",
                *(f"devices {', '.join(group)}: one value" for group in groups[:4]),
                fix="restore the last checkpoint; if it comes again, the hardware of the devices "
                "in the smaller group is suspect",
            )
    return {start: next(iter(by_device.values())) for start, by_device in shards.items()}


def sum_shards(
    array: jax.Array, sizes: tuple[int, ...], dtype: str | None = None
) -> dict[str, dict[str, int]]:
    """Return the sums of this process's shards, cast, by the start of the shard and device."""
    sums: dict[str, dict[str, int]] = {}
    for shard in array.addressable_shards:
        bounds = unpadded_bounds(shard, array, sizes)
        inside = tuple(slice(stop - start) for start, stop in bounds)
        starts = [start for start, _ in bounds]
        values = np.asarray(shard.data)[inside]
        values = values if dtype is None else values.astype(dtype_of(dtype), copy=False)
        value = sum_elements(values, starts, sizes)
        key = ", ".join(map(str, starts))
        sums.setdefault(key, {})[str(shard.device.id)] = value
    return sums


def sum_elements(shard: np.ndarray, starts: list[int], sizes: tuple[int, ...]) -> int:
    """Return the sum over a shard's elements, each mixed with its index in the whole array."""
    total = 0
    for bits, places in _chunks(shard, starts, sizes):
        mixed = bits + (places + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        total += int(mixed.sum(dtype=np.uint64))
    return total % 2**64


def _chunks(
    shard: np.ndarray, starts: list[int], sizes: tuple[int, ...]
) -> Iterator[tuple[Any, Any]]:
    """Yield the bits of a shard's elements with their indices in the whole array, in chunks."""
    flat = np.ascontiguousarray(shard).reshape(-1)
    if flat.dtype.itemsize > 8:  # complex128: two numbers each
        flat, shard = flat.view(np.uint64), shard.view(np.uint64).reshape(*shard.shape, 2)
        starts, sizes = [*starts, 0], (*sizes, 2)
    bits = flat.view(f"u{flat.dtype.itemsize}")
    for first in range(0, bits.size, _CHUNK):
        numbers = np.arange(first, min(first + _CHUNK, bits.size))
        local = np.unravel_index(numbers, shard.shape) if shard.shape else ()
        places = np.zeros(numbers.size, np.uint64)
        for one, start, size in zip(local, starts, sizes, strict=True):
            places = places * np.uint64(size) + (one + start).astype(np.uint64)
        yield bits[first : first + _CHUNK].astype(np.uint64), places
