"""Shardy: a module's GSPMD annotations written as `sdy` ones, which name the axes of the mesh.

TensorFlow writes shardings as tile assignments, so Artifacts hold those. Where Shardy partitions a
module, `Sharding` calls become `sdy.sharding_constraint`, and what lies between
`SPMDFullToShardShape` and `SPMDShardToFullShape` calls becomes `sdy.manual_computation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from namedmesh.artifacts.tile_assignment import read_axes
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError

PLACE, ENTER, LEAVE = "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"
_ATTRIBUTE = "mhlo.sharding"


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
        """The attribute that says the same as the text of an HLO sharding."""
        key = text, rank
        if key not in self._shardings:
            dimensions = [
                sdy.DimensionShardingAttr.get(
                    [sdy.AxisRefAttr.get(axis) for axis in axes], is_closed=True
                )
                for axes in read_axes(text, rank, self.mesh)
            ]
            self._shardings[key] = sdy.TensorShardingAttr.get(self._mesh, dimensions)
        return self._shardings[key]


def use_shardy_annotations(module: ir.Module, mesh: Mesh) -> None:
    """Write every GSPMD annotation of a module as an `sdy` one."""
    with module.context, ir.Location.unknown():
        blocks = list(_blocks(module.operation))
        if mesh.devices == 1:
            # XLA runs no partitioner for one device, and knows no manual computation without one.
            for block in blocks:
                _drop_annotations(block)
            return
        writer = ShardyWriter(mesh)
        # Inner blocks go first: building a region copies its ops and erases the originals.
        for block in reversed(blocks):
            calls = [_call_target(op.operation) for op in block.operations]
            if LEAVE in calls:
                _Regions(block, writer).build()
            for view in list(block.operations):
                _constrain(view.operation, writer)


def _drop_annotations(block: ir.Block) -> None:
    """Take a block's annotations out: on one device every shard is whole."""
    for view in list(block.operations):
        op = view.operation
        if _call_target(op) in (PLACE, ENTER, LEAVE):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        elif _ATTRIBUTE in op.attributes:
            del op.attributes[_ATTRIBUTE]


def _constrain(op: ir.Operation, writer: ShardyWriter) -> None:
    """Write one op's own annotation."""
    if _ATTRIBUTE not in op.attributes:
        return
    text = _sharding_text(op)
    if _call_target(op) != PLACE:
        raise NamedMeshError(
            f"{op.name} has the sharding {text}, which no annotation of ours gives it",
            fix='export the program again with nm.export, or use partitioner="gspmd"',
        )
    rank = ir.RankedTensorType(op.results[0].type).rank
    with ir.InsertionPoint(op), op.location:
        constraint = sdy.ShardingConstraintOp(op.operands[0], writer.sharding(text, rank))
    op.results[0].replace_all_uses_with(constraint.result)
    op.erase()


class _Regions:
    """The manual regions of one block.

    Ops between entering and leaving calls are spread over the block, and a value that enters once
    may be read by regions that depend on each other. So regions go by depth: how many times a
    value's history has left a region. All local ops of one depth become one manual computation,
    which depends on ops of that depth or less, and nothing of that depth depends on it.
    """

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
        """Note the depth of an op, and on which side of a region's edge it is."""
        reads = list(_reads(op))
        depth = max((self.depth.get(value, 0) for value in reads), default=0)
        target = _call_target(op)
        if target == LEAVE:
            self.leaving.setdefault(depth, []).append(op)
            depth += 1
        elif (
            target == ENTER
            or any(value in self.inner for value in reads)
            or (target == PLACE and _sharding_text(op) == "{manual}")  # a constant of a region
        ):
            self.inner.update(dict.fromkeys(op.results, number))
        else:
            self.outer.setdefault(depth, []).append(op)
        self.depth.update(dict.fromkeys(op.results, depth))

    def build(self) -> None:
        """Put a manual computation in the place of each depth's local ops."""
        end = self.ops[-1]
        for depth in range(max([*self.outer, *self.leaving], default=0) + 1):
            for op in self.outer.get(depth, ()):
                op.move_before(end)
            if depth in self.leaving:
                with ir.InsertionPoint(end):
                    self._build_region(self.leaving[depth])
        for op in reversed(self.ops[:-1]):
            if _call_target(op) == LEAVE or any(value in self.inner for value in op.results):
                op.erase()

    def _build_region(self, leaving: Sequence[ir.Operation]) -> None:
        """Make one manual computation of all that some values need which leave it."""
        body = self._needed([op.operands[0] for op in leaving])
        entering = [op for op in body if _call_target(op) == ENTER]
        operands = [op.operands[0] for op in entering]
        placed = set(operands)
        captured = [
            value
            for value in dict.fromkeys(value for op in body for value in _reads(op))
            if value not in self.inner and value not in placed
        ]
        shardings = [self._entering_sharding(op) for op in entering]
        shardings += [self._sharding("{replicated}", value) for value in captured]
        computation = sdy.ManualComputationOp(
            [op.results[0].type for op in leaving],
            operands + captured,
            sdy.TensorShardingPerValueAttr.get(shardings),
            sdy.TensorShardingPerValueAttr.get(
                [self._sharding(_sharding_text(op), op.results[0]) for op in leaving]
            ),
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
        """The local ops that values follow from, in the block's order."""
        pending, needed = list(values), set[int]()
        while pending:
            number = self.inner[pending.pop()]
            if number not in needed:
                needed.add(number)
                pending += [value for value in _reads(self.ops[number]) if value in self.inner]
        return [self.ops[number] for number in sorted(needed)]

    def _entering_sharding(self, op: ir.Operation) -> ir.Attribute:
        """Where a value lies that enters a region: it was placed just before."""
        owner = op.operands[0].owner
        place = None if isinstance(owner, ir.Block) else owner.operation
        if place is None or _call_target(place) != PLACE:
            raise NamedMeshError(
                "a value enters a manual region from an unknown place",
                fix='export the program again with nm.export, or use partitioner="gspmd"',
            )
        return self._sharding(_sharding_text(place), op.operands[0])

    def _sharding(self, text: str, value: ir.Value) -> ir.Attribute:
        """The attribute of a sharding of a value."""
        return self.writer.sharding(text, ir.RankedTensorType(value.type).rank)


def _copy_inside(op: ir.Operation, inside: dict[ir.Value, ir.Value]) -> None:
    """Copy a local op into a region; `inside` has what its operands are called there."""
    target = _call_target(op)
    if target == ENTER:
        return
    if target == PLACE:
        inside[op.results[0]] = inside[op.operands[0]]
        return
    copy = op.clone().operation
    if _ATTRIBUTE in copy.attributes:
        del copy.attributes[_ATTRIBUTE]
    for part in (copy, *_inner_ops(copy)):
        for i, value in enumerate(part.operands):
            if value in inside:
                part.operands[i] = inside[value]
    inside.update(zip(op.results, copy.results, strict=True))


def _reads(op: ir.Operation) -> Iterator[ir.Value]:
    """What an op reads: its operands, and what the ops inside it read from outside."""
    yield from op.operands
    if len(op.regions):
        inner = list(_inner_ops(op))
        bound = {value for block in _blocks(op) for value in block.arguments}
        bound |= {value for part in inner for value in part.results}
        for part in inner:
            yield from (value for value in part.operands if value not in bound)


def _inner_ops(op: ir.Operation) -> Iterator[ir.Operation]:
    """Every op inside an op."""
    for block in _blocks(op):
        for view in block.operations:
            yield view.operation


def _blocks(op: ir.Operation) -> Iterator[ir.Block]:
    """Every block inside an op, each before those inside it."""
    for region in op.regions:
        for block in region.blocks:
            yield block
            for inner in block.operations:
                yield from _blocks(inner.operation)


def _call_target(op: ir.Operation) -> str:
    """What a custom call calls; empty for other ops."""
    if "call_target_name" not in op.attributes:
        return ""
    return ir.StringAttr(op.attributes["call_target_name"]).value


def _sharding_text(op: ir.Operation) -> str:
    """The sharding of an op as HLO writes it."""
    return ir.StringAttr(op.attributes[_ATTRIBUTE]).value
