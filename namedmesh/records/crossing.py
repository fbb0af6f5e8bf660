"""Crossing: the bytes that the devices of one host, or of one slice, send to those of others."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from namedmesh.dims.hop import Hop
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding
from namedmesh.records.collective import count_passes

Move = tuple[Sharding, Sharding]  # before and after a CollectivePermute


def count_crossing_bytes(
    kind: str,
    bytes: int,
    axes: tuple[str, ...],
    mesh: Mesh,
    blocks: int,
    way: Hop | Move | None = None,
) -> int:
    """Count what leaves one block of the mesh, such as a host, in one run of a collective."""
    # Gathers and reductions go through two rings: across hosts between devices that are the same
    # member of their host, each with its own part of the buffer, and inside every host. A device
    # sends as much as in one ring, and no byte enters a host twice. In an AllToAll every device
    # sends to every other one.
    if blocks == 1:
        return 0
    group, near = mesh.size(axes), mesh.members_of_block(axes, blocks)
    inside = mesh.devices // blocks
    if group == near:
        return 0
    if kind == "CollectivePermute":
        return bytes * _count_senders(axes, mesh, blocks, way)
    if kind == "AllToAll":
        return bytes * inside * (group - near) // group
    return count_passes(kind) * bytes * (inside // near) * (group - near) // group


@lru_cache(maxsize=4096)
def _count_senders(axes: tuple[str, ...], mesh: Mesh, blocks: int, way: Hop | Move | None) -> int:
    """Count the devices of a block that send to other blocks, in the block where most do."""
    if way is None:
        way = Hop(1, 0, mesh.size(axes) - 1, cyclic=True, axes=axes)
    pairs = way.pairs(mesh) if isinstance(way, Hop) else find_moves(mesh, *way)
    homes = np.array([*pairs]).reshape(-1, 2) // (mesh.devices // blocks)
    leaving = homes[homes[:, 0] != homes[:, 1], 0]
    return int(np.bincount(leaving, minlength=1).max())


def find_moves(mesh: Mesh, before: Sharding, after: Sharding) -> Iterable[tuple[int, int]]:
    """Find who sends to whom where devices exchange shards of a tensor."""
    owners = np.argsort(_number_shards(mesh, before))
    senders = owners[_number_shards(mesh, after)].tolist()
    return ((sender, place) for place, sender in enumerate(senders) if sender != place)


def _number_shards(mesh: Mesh, sharding: Sharding) -> np.ndarray:
    """Number each device's shard; copies of a shard have different numbers too."""
    places = np.indices(tuple(mesh.axes.values())).reshape(len(mesh.axes), -1)
    at = dict(zip(mesh.axes, places, strict=True))
    held = [axis for _, axes in sharding.held for axis in axes]
    numbers = np.zeros(mesh.devices, np.int64)
    for axis in (*held, *(axis for axis in mesh.axes if axis not in held)):
        numbers = numbers * mesh.axes[axis] + at[axis]
    return numbers
