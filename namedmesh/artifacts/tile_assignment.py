"""Tile assignments: which mesh axes the text of an HLO sharding means."""

from __future__ import annotations

import math
import re

import numpy as np

from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError

DimensionAxes = tuple[tuple[str, ...], ...]  # the axes of each dimension, the major one first

_TILED = re.compile(
    r"\{devices=\[(?P<tiles>[\d,]+)\]"
    r"(?:<=\[(?P<iota>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?|(?P<devices>[\d,]+))"
    r"(?P<copies> last_tile_dim_replicate)?\}"
)


def read_axes(text: str, rank: int, mesh: Mesh) -> DimensionAxes:
    """The mesh axes that each dimension of a tensor lies on, by the text of its HLO sharding.

    Each axis of more than one device has a stride of its own in the numbers of the devices, so a
    tile assignment over whole axes can mean only one list of axes a dimension. Axes of size 1
    split nothing, and are left out.
    """
    if text == "{replicated}" or (mesh.devices == 1 and text.startswith("{maximal")):
        return ((),) * rank
    match = _TILED.fullmatch(text)
    if match is None:
        raise _unreadable(text, mesh)
    tiles = _numbers(match["tiles"])
    if match["devices"]:
        devices = np.array(_numbers(match["devices"]))
    else:
        iota = _numbers(match["iota"])
        order = _numbers(match["order"]) if match["order"] else range(len(iota))
        devices = np.arange(math.prod(iota)).reshape(iota).transpose(*order)
    if devices.size != mesh.devices or math.prod(tiles) != mesh.devices:
        raise _unreadable(text, mesh)
    if len(tiles) != rank + bool(match["copies"]):
        raise _unreadable(text, mesh)
    grid = devices.reshape(tiles)
    axes = tuple(_axes_along(np.moveaxis(grid, i, 0), text, mesh) for i in range(rank))
    if _number_tiles(axes, mesh) != [int(number) for number in _firsts(grid, rank)]:
        raise _unreadable(text, mesh)
    return axes


def _axes_along(grid: np.ndarray, text: str, mesh: Mesh) -> tuple[str, ...]:
    """The axes that the first dimension of a grid of devices runs along, the major one first."""
    line = grid.reshape(len(grid), -1)[:, 0]
    strides = _strides(mesh)
    axes: list[str] = []
    step = 1
    while step < len(line):
        stride = int(line[step] - line[0])
        fitting = [axis for axis in strides if strides[axis] == stride]
        if not fitting or len(line) % (step * mesh.axes[fitting[0]]):
            raise _unreadable(text, mesh)
        axes.insert(0, fitting[0])
        step *= mesh.axes[fitting[0]]
    return tuple(axes)


def _strides(mesh: Mesh) -> dict[str, int]:
    """How far apart the numbers of neighbours along each axis of several devices are."""
    sizes = list(mesh.axes.values())
    return {
        axis: math.prod(sizes[i + 1 :])
        for i, (axis, size) in enumerate(mesh.axes.items())
        if size > 1
    }


def _firsts(grid: np.ndarray, rank: int) -> np.ndarray:
    """The first device of each tile."""
    return grid.reshape(*grid.shape[:rank], -1).min(axis=-1).ravel()


def _number_tiles(axes: DimensionAxes, mesh: Mesh) -> list[int]:
    """The first device of each tile if dimensions lay on these axes."""
    strides = _strides(mesh)
    numbers = np.zeros((), np.int64)
    for on in axes:
        along = np.zeros((), np.int64)
        for axis in on:
            along = np.add.outer(along, np.arange(mesh.axes[axis]) * strides[axis])
        numbers = np.add.outer(numbers, along.ravel())
    return [int(number) for number in numbers.ravel()]


def _numbers(text: str) -> list[int]:
    """Whole numbers separated by commas."""
    return [int(number) for number in text.split(",")]


def _unreadable(text: str, mesh: Mesh) -> NamedMeshError:
    """The error for a sharding that does not lie on whole axes."""
    return NamedMeshError(
        f"cannot read the sharding {text} as axes of the mesh",
        f"mesh: {mesh}",
        fix='export the program again with nm.export, or use partitioner="gspmd"',
    )
