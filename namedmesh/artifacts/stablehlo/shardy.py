"""Shardy: GSPMD annotations, which are tile assignments, rewritten as `sdy` ones, which name axes.

`Sharding` calls become `sdy.sharding_constraint`; ops between `SPMDFullToShardShape` and
`SPMDShardToFullShape` calls become `sdy.manual_computation`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from namedmesh.artifacts.stablehlo.editing import (
    ENTER,
    LEAVE,
    PLACE,
    SHARDING,
    blocks,
    call_target,
    is_manual,
    maker_of,
)
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError

_AGAIN = 'export the program again with nm.export, or use partitioner="gspmd"'
DimensionAxes = tuple[tuple[str, ...], ...]  # the axes of each dimension, the major one first

_TILED = re.compile(
    r"\{devices=\[(?P<tiles>[\d,]+)\]"
    r"(?:<=\[(?P<iota>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?|(?P<devices>[\d,]+))"
    r"(?P<copies> last_tile_dim_replicate)?\}"
)


class ShardyWriter:
    """Writes the `sdy` attributes of one mesh, each kind of sharding once."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        # A mesh within the attribute needs no symbol, which jax could not merge into its module;
        # jax lifts such meshes itself.
        self._mesh = sdy.MeshAttr.get(
            [sdy.MeshAxisAttr.get(name, size) for name, size in mesh.axes.items()]
        )
        self._shardings: dict[tuple[str, int], ir.Attribute] = {}
        self.manual_axes = sdy.ManualAxesAttr.get([ir.StringAttr.get(name) for name in mesh.axes])

    def sharding(self, text: str, rank: int) -> ir.Attribute:
        """Return the attribute for the text of an HLO sharding."""
        key = text, rank
        if key not in self._shardings:
            axes = [[*map(sdy.AxisRefAttr.get, one)] for one in read_axes(text, rank, self.mesh)]
            dimensions = [sdy.DimensionShardingAttr.get(one, is_closed=True) for one in axes]
            self._shardings[key] = sdy.TensorShardingAttr.get(self._mesh, dimensions)
        return self._shardings[key]


def use_shardy_annotations(module: ir.Module, mesh: Mesh) -> None:
    """Write every GSPMD annotation of a module as an `sdy` one."""
    with module.context, ir.Location.unknown():
        everything = list(blocks(module.operation))
        if mesh.devices == 1:
            # XLA runs no partitioner for one device, and knows no manual computation without one.
            for block in everything:
                _drop_annotations(block)
            return
        writer = ShardyWriter(mesh)
        # Inner blocks go first: building a region copies its ops and erases the originals.
        for block in reversed(everything):
            if LEAVE in [call_target(op.operation) for op in block.operations]:
                _Regions(block, writer).build()
            for view in list(block.operations):
                _constrain(view.operation, writer)


def _drop_annotations(block: ir.Block) -> None:
    """Remove a block's annotations: on one device every shard is whole."""
    for view in list(block.operations):
        op = view.operation
        if call_target(op) in (PLACE, ENTER, LEAVE):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        elif SHARDING in op.attributes:
            del op.attributes[SHARDING]


def _constrain(op: ir.Operation, writer: ShardyWriter) -> None:
    """Rewrite one op's own annotation."""
    if SHARDING not in op.attributes:
        return
    text = _sharding_text(op)
    if call_target(op) != PLACE:
        raise NamedMeshError(
            f"{op.name} has the sharding {text}, which is not an annotation of namedmesh",
            fix=_AGAIN,
        )
    rank = ir.RankedTensorType(op.results[0].type).rank
    with ir.InsertionPoint(op), op.location:
        constraint = sdy.ShardingConstraintOp(op.operands[0], writer.sharding(text, rank))
    op.results[0].replace_all_uses_with(constraint.result)
    op.erase()


class _Regions:
    """The manual regions of one block."""

    # Ops between entering and leaving calls are spread over the block, and a value that enters
    # once may be read by regions that depend on each other. So regions go by depth: how many times
    # a value's history has left a region. All local ops of one depth become one manual
    # computation, which depends on ops of that depth or less, and nothing of that depth on it.

    def __init__(self, block: ir.Block, writer: ShardyWriter):
        self.writer = writer
        self.ops = [view.operation for view in block.operations]
        self.depth: dict[ir.Value, int] = {}
        self.outer: dict[int, list[ir.Operation]] = {}
        self.inner: dict[ir.Value, int] = {}  # a local value: the number of the op that makes it
        self.leaving: dict[int, list[ir.Operation]] = {}
        for number, op in enumerate(self.ops[:-1]):
            self._sort(number, op)

    def _sort(self, number: int, op: ir.Operation) -> None:
        """Note the depth of an op, and whether it is inside a region."""
        reads = list(_reads(op))
        depth = max((self.depth.get(value, 0) for value in reads), default=0)
        target = call_target(op)
        if target == LEAVE:
            self.leaving.setdefault(depth, []).append(op)
            depth += 1
        elif is_manual(op) or any(value in self.inner for value in reads):
            self.inner.update(dict.fromkeys(op.results, number))
        else:
            self.outer.setdefault(depth, []).append(op)
        self.depth.update(dict.fromkeys(op.results, depth))

    def build(self) -> None:
        """Replace the local ops of each depth by a manual computation."""
        end = self.ops[-1]
        for depth in range(max([*self.outer, *self.leaving], default=0) + 1):
            for op in self.outer.get(depth, ()):
                op.move_before(end)
            if depth in self.leaving:
                with ir.InsertionPoint(end):
                    self._build_region(self.leaving[depth])
        for op in reversed(self.ops[:-1]):
            if call_target(op) == LEAVE or any(value in self.inner for value in op.results):
                op.erase()

    def _build_region(self, leaving: Sequence[ir.Operation]) -> None:
        """Build the manual computation of some values that leave a region."""
        body = self._needed([op.operands[0] for op in leaving])
        entering = [op for op in body if call_target(op) == ENTER]
        operands = [op.operands[0] for op in entering]
        placed = set(operands)
        reads = dict.fromkeys(value for op in body for value in _reads(op))
        captured = [one for one in reads if one not in self.inner and one not in placed]
        shardings = [self._entering_sharding(op) for op in entering]
        shardings += [self._sharding("{replicated}", value) for value in captured]
        results = [self._sharding(_sharding_text(op), op.results[0]) for op in leaving]
        computation = sdy.ManualComputationOp(
            [op.results[0].type for op in leaving],
            operands + captured,
            sdy.TensorShardingPerValueAttr.get(shardings),
            sdy.TensorShardingPerValueAttr.get(results),
            self.writer.manual_axes,
        )
        outside = [op.results[0] for op in entering] + captured
        block = ir.Block.create_at_start(computation.body, [value.type for value in outside])
        inside: dict[ir.Value, ir.Value] = dict(zip(outside, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for op in body:
                _copy_inside(op, inside)
            sdy.return_([inside[op.operands[0]] for op in leaving])
        for op, result in zip(leaving, computation.results, strict=True):
            op.results[0].replace_all_uses_with(result)

    def _needed(self, values: Sequence[ir.Value]) -> list[ir.Operation]:
        """Return the local ops that values depend on, in the block's order."""
        pending, needed = list(values), set[int]()
        while pending:
            number = self.inner[pending.pop()]
            if number not in needed:
                needed.add(number)
                pending += [value for value in _reads(self.ops[number]) if value in self.inner]
        return [self.ops[number] for number in sorted(needed)]

    def _entering_sharding(self, op: ir.Operation) -> ir.Attribute:
        """Return the sharding of a value that enters a region: it was annotated just before."""
        place = maker_of(op.operands[0])
        if place is None or call_target(place) != PLACE:
            raise NamedMeshError("a value enters a manual region without a sharding", fix=_AGAIN)
        return self._sharding(_sharding_text(place), op.operands[0])

    def _sharding(self, text: str, value: ir.Value) -> ir.Attribute:
        """Return the attribute of a sharding of a value."""
        return self.writer.sharding(text, ir.RankedTensorType(value.type).rank)


def _copy_inside(op: ir.Operation, inside: dict[ir.Value, ir.Value]) -> None:
    """Copy a local op into a region; `inside` maps values to those of the region."""
    if call_target(op) in (ENTER, PLACE):
        if call_target(op) == PLACE:
            inside[op.results[0]] = inside[op.operands[0]]
        return
    copy = op.clone().operation
    if SHARDING in copy.attributes:
        del copy.attributes[SHARDING]
    for part in (copy, *_inner_ops(copy)):
        for i, value in enumerate(part.operands):
            if value in inside:
                part.operands[i] = inside[value]
    inside.update(zip(op.results, copy.results, strict=True))


def _reads(op: ir.Operation) -> Iterator[ir.Value]:
    """Yield an op's operands, and the values from outside that the ops inside it read."""
    yield from op.operands
    if len(op.regions):
        inner = list(_inner_ops(op))
        bound = {value for block in blocks(op) for value in block.arguments}
        bound |= {value for part in inner for value in part.results}
        for part in inner:
            yield from (value for value in part.operands if value not in bound)


def _inner_ops(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yield every op inside an op."""
    for block in blocks(op):
        for view in block.operations:
            yield view.operation


def _sharding_text(op: ir.Operation) -> str:
    """Return the sharding of an op as HLO writes it."""
    return ir.StringAttr(op.attributes[SHARDING]).value


def read_axes(text: str, rank: int, mesh: Mesh) -> DimensionAxes:
    """Return the mesh axes of each dimension, from the text of an HLO sharding."""
    # Each axis of more than one device has a stride of its own in the numbers of the devices, so a
    # tile assignment over whole axes means one list of axes a dimension. Axes of size 1 are left
    # out.
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
    dimensions = len(tiles) == rank + bool(match["copies"])
    if not dimensions or not devices.size == mesh.devices == math.prod(tiles):
        raise _unreadable(text, mesh)
    grid = devices.reshape(tiles)
    axes = tuple(_axes_along(np.moveaxis(grid, i, 0), text, mesh) for i in range(rank))
    firsts = grid.reshape(*grid.shape[:rank], -1).min(axis=-1)  # the first device of each tile
    if not np.array_equal(_number_tiles(axes, mesh), firsts.ravel()):
        raise _unreadable(text, mesh)
    return axes


def _axes_along(grid: np.ndarray, text: str, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes that the first dimension of a grid of devices runs along, major first."""
    line = grid.reshape(len(grid), -1)[:, 0]
    by_stride = {stride: axis for axis, stride in _strides(mesh).items()}
    axes: list[str] = []
    step = 1
    while step < len(line):
        axis = by_stride.get(int(line[step] - line[0]))
        if axis is None or len(line) % (step * mesh.axes[axis]):
            raise _unreadable(text, mesh)
        axes.insert(0, axis)
        step *= mesh.axes[axis]
    return tuple(axes)


def _strides(mesh: Mesh) -> dict[str, int]:
    """Return the stride of each axis of several devices in the numbers of the devices."""
    sizes = list(mesh.axes.values())
    strides = {axis: math.prod(sizes[i + 1 :]) for i, axis in enumerate(mesh.axes)}
    return {axis: stride for axis, stride in strides.items() if mesh.axes[axis] > 1}


def _number_tiles(axes: DimensionAxes, mesh: Mesh) -> np.ndarray:
    """Return the first device of each tile if dimensions were sharded over these axes."""
    strides = _strides(mesh)
    numbers = np.zeros((), np.int64)
    # Axes follow each other in the order of the dimensions, the major one of each first.
    for axis in (axis for on in axes for axis in on):
        numbers = np.add.outer(numbers, np.arange(mesh.axes[axis]) * strides[axis])
    return numbers.ravel()


def _numbers(text: str) -> list[int]:
    """Parse whole numbers separated by commas."""
    return [int(number) for number in text.split(",")]


def _unreadable(text: str, mesh: Mesh) -> NamedMeshError:
    """Make the error for a sharding that is not over whole axes."""
    problem = f"cannot read the sharding {text} as axes of the mesh"
    return NamedMeshError(problem, f"mesh: {mesh}", fix=_AGAIN)
