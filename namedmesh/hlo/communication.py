"""The collectives of a compiled module, in the terms of a plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from namedmesh.dims.mesh import Mesh
from namedmesh.hlo.array_types import ArrayType
from namedmesh.hlo.groups import Groups
from namedmesh.hlo.module import Computation, Instruction, Module
from namedmesh.hlo.trip_counts import count_runs

COLLECTIVE_KINDS = {
    "all-to-all": "AllToAll",
    "all-gather": "AllGather",
    "all-reduce": "AllReduce",
    "reduce-scatter": "ReduceScatter",
    "collective-permute": "CollectivePermute",
    "ragged-all-to-all": "AllToAll",
    "collective-broadcast": "CollectiveBroadcast",
}


@dataclass(frozen=True)
class CompiledCollective:
    """One tensor that compiled code communicates.

    Attributes:
        kind: The collective by the name a plan has for it, such as `AllReduce`.
        axes: The mesh axes along which it runs; None if its groups are not those of any axes.
        elements: The elements that one device sends or receives, whichever is more.
        dtype: The dtype they are sent in.
        op_name: The op it was compiled from, by the compiler's metadata.
        name: The name of its instruction.
        times: How often it runs in one step.
    """

    kind: str
    axes: tuple[str, ...] | None
    elements: int
    dtype: str
    op_name: str
    name: str
    times: int = 1


def find_collectives(module: Module, mesh: Mesh) -> list[CompiledCollective]:
    """Every collective of a module; of several tensors in one collective, each counts.

    Args:
        module: A compiled module.
        mesh: The mesh it was compiled for.

    Returns:
        The collectives in the order of the text.

    Example:
        >>> from namedmesh.hlo.parse import parse_module
        >>> module = parse_module('''HloModule total
        ... ENTRY %main (x: f32[4]) -> f32[4] {
        ...   %x = f32[4]{0} parameter(0)
        ...   ROOT %r = f32[4]{0} all-reduce(%x), replica_groups=[2,2]<=[4], to_apply=%add
        ... }
        ... ''')
        >>> [(one.kind, one.axes) for one in find_collectives(module, Mesh(data=2, model=2))]
        [('AllReduce', ('model',))]
    """
    runs = count_runs(module)
    known_axes: dict[tuple[str, Groups], tuple[str, ...] | None] = {}
    collectives = []
    for computation, instruction in module.instructions():
        kind = COLLECTIVE_KINDS.get(instruction.opcode.removesuffix("-start"))
        if kind is None:
            continue
        groups = instruction.pairs if kind == "CollectivePermute" else instruction.groups
        key = (kind, groups or (tuple(range(mesh.devices)),))
        if key not in known_axes:
            known_axes[key] = _axes(*key, mesh)
        axes = None if kind == "CollectivePermute" and groups is None else known_axes[key]
        for dtype, elements in _tensors(kind, computation, instruction):
            collectives.append(
                CompiledCollective(
                    kind,
                    axes,
                    elements,
                    dtype,
                    instruction.op_name,
                    instruction.name,
                    runs.get(computation.name, 1),
                )
            )
    return collectives


def _tensors(
    kind: str, computation: Computation, instruction: Instruction
) -> list[tuple[str, int]]:
    """Dtype and elements of each tensor a collective communicates, on its larger side."""
    results = list(instruction.type.arrays)
    operands: list[ArrayType] = [
        array for type in computation.operand_types(instruction) for array in type.arrays
    ]
    if instruction.opcode.endswith("-start") and operands and len(results) > len(operands):
        results = results[len(operands) :]  # what starts one holds its operands, then its results
    larger = operands if kind in ("ReduceScatter", "AllReduce") and operands else results
    tensors = [(array.element.dtype, array.elements) for array in larger]
    if kind == "AllToAll" and tensors:  # a tuple has one piece for each device of a group
        return [(tensors[0][0], sum(elements for _, elements in tensors))]
    return tensors[:1] if kind == "CollectivePermute" else tensors


def _axes(kind: str, groups: Groups, mesh: Mesh) -> tuple[str, ...] | None:
    """The mesh axes along which the devices of one group differ."""
    if len({len(group) for group in groups}) > 1:
        return None
    grid = np.indices(tuple(mesh.axes.values())).reshape(len(mesh.axes), -1)
    places = grid[:, np.array(groups)]
    differ = (places != places[:, :, :1]).any(axis=(1, 2))
    axes = tuple(axis for axis, differs in zip(mesh.axes, differ, strict=True) if differs)
    # Which axes a permutation seems to run along depends on the devices it leaves alone.
    return axes if kind == "CollectivePermute" or len(groups[0]) == mesh.size(axes) else None
