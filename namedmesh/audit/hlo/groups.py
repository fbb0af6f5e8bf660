"""Groups and pairs of devices that communicate, in HLO's notations and as axes of a mesh."""

from __future__ import annotations

import functools
import itertools
import math
import re

import numpy as np

from namedmesh.audit.hlo.array_types import UnreadableHlo
from namedmesh.dims.mesh import Mesh

Groups = tuple[tuple[int, ...], ...]
Pairs = frozenset[tuple[int, int]]

_GROUP = re.compile(r"\{([\d,\s]*)\}")
_LISTED = re.compile(r"\{\s*(?:\{[\d,\s]*\}\s*,?\s*)*\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[(.*?)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{(.*?)\}")
_MESH_AXIS = re.compile(r"'([^']+)'=(\d+)")
_CHOSEN_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def parse_groups(text: str) -> Groups:
    """Parse replica groups: listed, as a reshaped iota, or along the axes of a mesh."""
    if _LISTED.fullmatch(text):
        return tuple(
            tuple(int(number) for number in group[1].split(",") if number.strip())
            for group in _GROUP.finditer(text, 1)
        )
    iota = _IOTA.fullmatch(text)
    if iota:
        shape, base, order = (_numbers(part) for part in iota.groups())
        if math.prod(shape) != math.prod(base) or len(shape) != 2:
            raise UnreadableHlo(f"replica_groups={text} do not cover their devices")
        return _as_tuples(_iota(base, order).reshape(shape))
    mesh = _MESH.fullmatch(text)
    if mesh:
        axes, base, order, chosen = mesh.groups()
        sizes = [(name, int(size)) for name, size in _MESH_AXIS.findall(axes)]
        devices = math.prod(size for _, size in sizes)
        ids = _iota(_numbers(base) or [devices], _numbers(order))
        return _as_tuples(_mesh_groups(sizes, ids, _CHOSEN_AXIS.findall(chosen)))
    raise UnreadableHlo(f"replica_groups={text} are in an unknown notation")


def parse_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Parse the pairs of devices between which a collective-permute sends."""
    groups = parse_groups(text)
    if any(len(group) != 2 for group in groups):
        raise UnreadableHlo(f"source_target_pairs={text} are not pairs")
    return tuple((source, target) for source, target in groups)


def _mesh_groups(
    axes: list[tuple[str, int]], ids: np.ndarray, chosen: list[tuple[str, str, str]]
) -> np.ndarray:
    """Make groups along axes of a mesh, or along a part of one: its offset and its size."""
    shape: list[int] = []
    inner: list[int] = []
    for name, size in axes:
        spans = [
            (int(before or 1), int(before or 1) * int(width) if width else size)
            for axis, before, width in chosen
            if axis == name
        ]
        cuts = sorted({1, size, *itertools.chain.from_iterable(spans)})
        for low, high in itertools.pairwise(cuts):
            if any(start <= low and high <= stop for start, stop in spans):
                inner.append(len(shape))
            shape.append(high // low)
    outer = [i for i in range(len(shape)) if i not in inner]
    width = math.prod(shape[i] for i in inner)
    return ids.reshape(shape or [1]).transpose(outer + inner).reshape(-1, width)


def _numbers(text: str | None) -> list[int]:
    """Parse a list of numbers such as 2,4."""
    return [int(number) for number in text.split(",")] if text else []


def _iota(base: list[int], order: list[int]) -> np.ndarray:
    """Number devices in a grid, transposed if there is an order."""
    ids = np.arange(math.prod(base)).reshape(base)
    return ids.transpose(order) if order else ids


def _as_tuples(groups: np.ndarray) -> Groups:
    """Return the rows of an array as groups."""
    return tuple(map(tuple, groups.tolist()))


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
    """Find the axes along which the devices of a row differ."""
    grid = np.indices(tuple(mesh.axes.values())).reshape(len(mesh.axes), -1)
    places = grid[:, groups]
    differ = (places != places[:, :, :1]).any(axis=(1, 2))
    return tuple(axis for axis, differs in zip(mesh.axes, differ, strict=True) if differs)


@functools.lru_cache(maxsize=256)
def reordering_pairs(axes: tuple[str, ...], mesh: Mesh) -> frozenset[Pairs]:
    """Find every permutation that moves shards when a dimension's axes change their order."""
    # A dimension that is sharded over several axes numbers its shards by the axes in some order.
    # A new order sends each shard to the device that has its number then; those that stay do not
    # count.
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
