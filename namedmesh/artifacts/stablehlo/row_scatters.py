"""ReduceScatters of rows in whole tiles, on TPUs.

Where the dimension that is scattered is the first with several rows on a core, as that of
`[1, seq, model]`, their compilers make an AllReduce of all rows and a slice, twice the bytes; or,
of weights, shards of more tiles, and CollectivePermutes. In a form of which each shard is a row,
`[shards, seq / shards, model]`, that a barrier keeps, it stays a ReduceScatter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from namedmesh.artifacts.stablehlo.editing import (
    ENTER,
    LEAVE,
    PLACE,
    SHARDING,
    call_target,
    is_manual,
    make_call,
    maker_of,
    ops_inside,
)
from namedmesh.artifacts.stablehlo.shardy import DimensionAxes, read_axes
from namedmesh.dims.hop import list_groups
from namedmesh.dims.mesh import Mesh

SCATTER = "namedmesh_scatter"  # of the first dimension
TILE = (8, 128)  # of TPUs' memory: what is no whole tiles would be copied
OVER_ALL = ("TPU v5 lite", "TPU v6 lite")  # whose compilers keep ReduceScatters over all cores
_SUM = ["stablehlo.add", "stablehlo.return"]
_Read = Callable[[str, int], DimensionAxes]


def scatter_rows(module: ir.Module, mesh: Mesh) -> None:
    """Make each sum of parts that is scattered by rows in whole tiles a ReduceScatter of shards."""
    read: _Read = functools.cache(lambda text, rank: read_axes(text, rank, mesh))
    sums = [one for one in ops_inside(module.operation) if one.name == "stablehlo.reduce"]
    for op in sums:
        with module.context, op.location, ir.InsertionPoint(op):
            _scatter(op, mesh, read)


def _scatter(op: ir.Operation, mesh: Mesh, read: _Read) -> None:
    """Replace a sum over the parts of all devices along some axes, if it is scattered by rows."""
    places = [use.owner.operation for use in op.results[0].uses]
    source = maker_of(op.operands[0])
    if source is not None and source.name == "stablehlo.pad":  # rows that did not divide
        source = maker_of(source.operands[0])
    adds = [view.operation.name for view in op.regions[0].blocks[0].operations] == _SUM
    first = [*ir.DenseI64ArrayAttr(op.attributes["dimensions"])] == [0]
    if source is None or is_manual(source) or not (adds and first):
        return
    if [call_target(one) for one in (source, *places)] != [PLACE, PLACE]:
        return
    before, after = _text(source), _text(places[0])
    whole, result = (ir.RankedTensorType(one.type) for one in (op.operands[0], op.results[0]))
    parts, *old = read(before, whole.rank)
    new = read(after, result.rank)
    changed = [i for i, axes in enumerate(new) if axes != old[i]]
    axes = new[changed[0]][len(old[changed[0]]) :] if changed else ()
    # Where the axes before are others, shards change their places, too.
    moves = len(changed) != 1 or new[changed[0]] != old[changed[0]] + axes
    if moves or {*axes} != {*parts} or not _stays_a_scatter(axes, mesh):
        return
    local, shard = _divide(whole.shape, (parts, *old), mesh), _divide(result.shape, new, mesh)
    at = changed[0]
    rows = [size for size in shard[at:] if size > 1]
    tiles = len(rows) == 2 and not any(n % tile for n, tile in zip(rows, TILE, strict=True))
    if not tiles or math.prod(local[: at + 1]) != 1 or shard[at] != rows[0]:
        return
    make = lambda sizes: ir.RankedTensorType.get(sizes, result.element_type)
    value = make_call(PLACE, op.operands[0], before)
    value = make_call(ENTER, value, "{manual}", make(local))
    value = _mark(stablehlo.ReshapeOp(make([mesh.size(axes), *rows]), value))
    value = _mark(stablehlo.OptimizationBarrierOp([value]))
    value = make_call(SCATTER, value, "{manual}", make([1, *rows]), "+".join(axes))
    value = _mark(stablehlo.ReshapeOp(make(shard), value))
    value = make_call(LEAVE, make_call(PLACE, value, "{manual}"), after, result)
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _stays_a_scatter(axes: Sequence[str], mesh: Mesh) -> bool:
    """Return whether compilers keep ReduceScatters along some axes.

    Those over all cores most make of AllReduces, and those over slices of what is added up in each.
    """
    cores = mesh.devices // mesh.slices
    first, *others = (list_groups(axes, mesh) // cores).T
    device = jax.sharding.get_abstract_mesh().abstract_device  # what is compiled for
    most = cores if device is not None and device.device_kind in OVER_ALL else cores - 1
    return 1 < mesh.size(axes) <= most and all((one == first).all() for one in others)


def _divide(sizes: Sequence[int], axes: DimensionAxes, mesh: Mesh) -> list[int]:
    """Return the sizes of a device's shard; zeros where it is padded."""
    ways = [mesh.size(on) for on in axes]
    return [0 if size % n else size // n for size, n in zip(sizes, ways, strict=True)]


def _text(op: ir.Operation) -> str:
    """Return the sharding that an annotation says."""
    return ir.StringAttr(op.attributes[SHARDING]).value


def _mark(view: Any) -> ir.Value:
    """Return what an op of a manual region makes, marked as such."""
    view.operation.attributes[SHARDING] = ir.StringAttr.get("{manual}")
    return view.operation.results[0]
