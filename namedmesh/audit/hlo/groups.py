"""Which devices communicate with each other, in any of the notations HLO has for it."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np

from namedmesh.audit.hlo.array_types import UnreadableHlo

Groups = tuple[tuple[int, ...], ...]

_GROUP = re.compile(r"\{([\d,\s]*)\}")
_LISTED = re.compile(r"\{\s*(?:\{[\d,\s]*\}\s*,?\s*)*\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[(.*?)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{(.*?)\}")
_MESH_AXIS = re.compile(r"'([^']+)'=(\d+)")
_CHOSEN_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def parse_groups(text: str) -> Groups:
    """Read replica groups: listed, as a reshaped iota, or along the axes of a mesh."""
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
    """Read the pairs of devices between which a collective-permute sends."""
    pairs = []
    for group in parse_groups(text):
        if len(group) != 2:
            raise UnreadableHlo(f"source_target_pairs={text} are not pairs")
        pairs.append((group[0], group[1]))
    return tuple(pairs)


def _mesh_groups(
    axes: list[tuple[str, int]], ids: np.ndarray, chosen: list[tuple[str, str, str]]
) -> np.ndarray:
    """Groups along axes of a mesh, or along a part of one: (size before the part) and its size."""
    shape: list[int] = []
    inner: list[int] = []
    for name, size in axes:
        spans = []
        for axis, before, width in chosen:
            if axis == name:
                start = int(before) if before else 1
                spans.append((start, start * int(width) if width else size))
        cuts = sorted({1, size, *itertools.chain.from_iterable(spans)})
        for low, high in itertools.pairwise(cuts):
            if any(start <= low and high <= stop for start, stop in spans):
                inner.append(len(shape))
            shape.append(high // low)
    outer = [i for i in range(len(shape)) if i not in inner]
    width = math.prod(shape[i] for i in inner)
    return ids.reshape(shape or [1]).transpose(outer + inner).reshape(-1, width)


def _numbers(text: str | None) -> list[int]:
    """The numbers of a list such as 2,4."""
    return [int(number) for number in text.split(",")] if text else []


def _iota(base: list[int], order: list[int]) -> np.ndarray:
    """Device numbers in order, in a grid, transposed if there is an order."""
    ids = np.arange(math.prod(base)).reshape(base)
    return ids.transpose(order) if order else ids


def _as_tuples(groups: np.ndarray) -> Groups:
    """A row of the array for each group."""
    return tuple(map(tuple, groups.tolist()))
