"""Groups and pairs of devices that communicate, in HLO's notations and as axes of a mesh."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

from namedmesh.audit.hlo.array_types import UnreadableHlo
from namedmesh.dims.hop import list_groups
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
    inner: dict[int, list[int]] = {}  # by place among those chosen, in whose order devices are
    for name, size in axes:
        spans = {
            i: (int(before or 1), int(before or 1) * int(width) if width else size)
            for i, (axis, before, width) in enumerate(chosen)
            if axis == name
        }
        cuts = sorted({1, size, *itertools.chain.from_iterable(spans.values())})
        for low, high in itertools.pairwise(cuts):
            for i, (start, stop) in spans.items():
                if start <= low and high <= stop:
                    inner.setdefault(i, []).append(len(shape))
            shape.append(high // low)
    order = [place for i in sorted(inner) for place in inner[i]]
    outer = [i for i in range(len(shape)) if i not in order]
    width = math.prod(shape[i] for i in order)
    return ids.reshape(shape or [1]).transpose(outer + order).reshape(-1, width)


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


def order_of_groups(groups: Groups, mesh: Mesh, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Find the axes that number the devices of every group, the slowest first; () if none do."""
    grid = np.indices(tuple(mesh.axes.values())).reshape(len(mesh.axes), -1)
    members, names = np.array(groups), list(mesh.axes)
    # The first device of a group that differs from its first along an axis is as far behind as the
    # axes that vary faster have places.
    first = {axis: grid[names.index(axis), members[0]] for axis in axes}
    steps = {axis: int((places != places[0]).argmax()) for axis, places in first.items()}
    order = tuple(sorted(axes, key=lambda axis: -steps[axis]))
    expected = list_groups(order, mesh)
    expected, members = (rows[rows[:, 0].argsort()] for rows in (expected, members))
    return order if np.array_equal(expected, members) else ()


def reordering_pairs(order: Sequence[str], receivers: Sequence[str], mesh: Mesh) -> Pairs:
    """Find who sends to whom where shards, numbered by axes in an order, are so by another."""
    # Those that stay where they are do not count.
    before, after = (list_groups(axes, mesh).ravel().tolist() for axes in (order, receivers))
    return frozenset(pair for pair in zip(before, after, strict=True) if pair[0] != pair[1])
