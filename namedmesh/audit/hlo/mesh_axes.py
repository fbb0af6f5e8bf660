"""From groups and pairs of devices to the axes of a mesh along which they communicate."""

from __future__ import annotations

import functools
import itertools

import numpy as np

from namedmesh.audit.hlo.groups import Groups
from namedmesh.dims.mesh import Mesh

Pairs = frozenset[tuple[int, int]]


def axes_of_groups(groups: Groups, mesh: Mesh) -> tuple[str, ...] | None:
    """Find the mesh axes along which the devices of each group differ."""
    members = [device for group in groups for device in group]
    if sorted(members) != list(range(mesh.devices)) or len({len(group) for group in groups}) > 1:
        return None
    axes = _differing_axes(np.array(groups), mesh)
    return axes if len(groups[0]) == mesh.size(axes) else None


def axes_of_pairs(pairs: Pairs, mesh: Mesh) -> tuple[str, ...] | None:
    """Find the mesh axes along which any device sends."""
    if any(not 0 <= device < mesh.devices for pair in pairs for device in pair):
        return None
    return _differing_axes(np.array(sorted(pairs)), mesh) if pairs else ()


def _differing_axes(groups: np.ndarray, mesh: Mesh) -> tuple[str, ...]:
    """The axes along which devices of one row differ."""
    grid = np.indices(tuple(mesh.axes.values())).reshape(len(mesh.axes), -1)
    places = grid[:, groups]
    differ = (places != places[:, :, :1]).any(axis=(1, 2))
    return tuple(axis for axis, differs in zip(mesh.axes, differ, strict=True) if differs)


@functools.lru_cache(maxsize=256)
def reordering_pairs(axes: tuple[str, ...], mesh: Mesh) -> frozenset[Pairs]:
    """Every way in which shards move when a dimension's axes are put in another order.

    A dimension that is split along several axes numbers its shards by the axes in some order.
    Changing the order sends each shard to the device that has its number in the new order; shards
    that stay are left out.
    """
    names = list(mesh.axes)
    grid = np.arange(mesh.devices).reshape(tuple(mesh.axes.values()))
    others = [names.index(name) for name in names if name not in axes]
    # Row: the devices that share a place along other axes; column: the number of the shard.
    numbered = [
        grid.transpose([*others, *(names.index(name) for name in order)]).reshape(
            -1, mesh.size(axes)
        )
        for order in itertools.permutations(axes)
    ]
    moves = set()
    for before, after in itertools.permutations(numbered, 2):
        sent = zip(before.ravel().tolist(), after.ravel().tolist(), strict=True)
        moves.add(frozenset(pair for pair in sent if pair[0] != pair[1]))
    return frozenset(moves - {frozenset()})
