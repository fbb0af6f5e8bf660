"""Arrays back from the devices: whole, or the shards that this process has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from namedmesh.errors.errors import NamedMeshError
from namedmesh.runtime.failure import report_failure
from namedmesh.runtime.padding import unpadded_sizes


@dataclass(frozen=True)
class Shard:
    """A shard of an array that lies on devices of this process, without padding.

    Attributes:
        index: Where it lies in the whole array, a slice for each dimension.
        data: Its elements.
        devices: The numbers of the devices of this process that have it, as jax counts them.

    Example:
        >>> import numpy as np
        >>> import namedmesh as nm
        >>> (B,) = nm.dims("batch=4")
        >>> def step(x):
        ...     nm.assign(nm.state("total", [B]), x)
        >>> compiled = nm.compile(step, nm.spec([B]), mesh=nm.Mesh(data=2), layout="batch:data")
        >>> state = compiled.place({"total": np.arange(4, dtype=np.float32)})
        >>> for shard in state.shards("total"):
        ...     print(shard.index, shard.data, shard.devices)
        (slice(0, 2, None),) [0. 1.] (0,)
        (slice(2, 4, None),) [2. 3.] (1,)
    """

    index: tuple[slice, ...]
    data: np.ndarray
    devices: tuple[int, ...]


def fetch_array(array: Any, sizes: tuple[int, ...] | None = None) -> np.ndarray:
    """An array whole on this host; if it lies in several processes, each must call it."""
    if not isinstance(array, jax.Array):
        if isinstance(array, (np.ndarray, np.generic, bool, int, float, complex)):
            return np.asarray(array)
        raise NamedMeshError(
            f"fetch was given a {type(array).__name__}, not an array",
            fix="give results of a step, or a part of them",
        )
    if array.is_deleted() or jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        what = "that a step has used up" if array.is_deleted() else f"of dtype {array.dtype}"
        raise NamedMeshError(
            f"fetch was given an array {what}", fix="give results of the latest step"
        )
    with report_failure("an array cannot be fetched from the devices"):
        if array.is_fully_addressable:
            whole = np.asarray(array)
        elif array.is_fully_replicated:
            whole = np.asarray(array.addressable_data(0))
        else:
            whole = np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return whole[tuple(slice(size) for size in sizes or unpadded_sizes(array))]


def fetch_nested(results: Any) -> Any:
    """Nested results with every array whole on this host; every process must call it."""
    return jax.tree.map(fetch_array, results)


def own_shards(array: jax.Array, sizes: tuple[int, ...]) -> list[Shard]:
    """The different shards of an array that devices of this process have."""
    holders: dict[tuple[tuple[int, int], ...], list[Any]] = {}
    for shard in array.addressable_shards:
        bounds = (one.indices(size)[:2] for one, size in zip(shard.index, array.shape, strict=True))
        inside = tuple(
            (min(start, size), min(stop, size))
            for (start, stop), size in zip(bounds, sizes, strict=True)
        )
        holders.setdefault(inside, []).append(shard)
    shards = []
    for inside, copies in sorted(holders.items(), key=lambda item: item[0]):
        if all(start < stop for start, stop in inside):
            data = np.asarray(copies[0].data)[tuple(slice(b - a) for a, b in inside)]
            devices = tuple(sorted(copy.device.id for copy in copies))
            shards.append(Shard(tuple(slice(a, b) for a, b in inside), data, devices))
    return shards
