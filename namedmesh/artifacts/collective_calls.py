"""Collectives that ops make themselves: calls in an Artifact, StableHLO where it is loaded.

TensorFlow cannot write collectives, and their lists of devices grow with the mesh; an Artifact says
who sends to whom in one line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from namedmesh.artifacts.regions import blocks, call_target
from namedmesh.dims.hop import Hop, list_groups
from namedmesh.dims.mesh import Mesh

PERMUTE, GATHER = "namedmesh_permute", "namedmesh_gather"
ALL_TO_ALL, SUM = "namedmesh_all_to_all", "namedmesh_sum"
_BETWEEN_DEVICES = 1  # the type of a channel, as StableHLO numbers them


def write_collectives(module: ir.Module, mesh: Mesh) -> None:
    """Replace every call of a collective by the collective."""
    writers = {
        PERMUTE: _write_permute,
        GATHER: _write_gather,
        ALL_TO_ALL: _write_all_to_all,
        SUM: _write_sum,
    }
    calls = [
        view.operation
        for block in blocks(module.operation)
        for view in block.operations
        if call_target(view.operation) in writers
    ]
    for number, op in enumerate(calls, 1):
        config = ir.StringAttr(op.attributes["backend_config"]).value
        with module.context, op.location, ir.InsertionPoint(op):
            channel = stablehlo.ChannelHandle.get(number, _BETWEEN_DEVICES)
            made = writers[call_target(op)](op, config, channel, mesh)
        if "mhlo.sharding" in op.attributes:
            made.attributes["mhlo.sharding"] = op.attributes["mhlo.sharding"]
        op.result.replace_all_uses_with(made.result)
        op.erase()


def _write_permute(op: ir.Operation, config: str, channel: Any, mesh: Mesh) -> ir.Operation:
    """Write a permutation of devices, which the call describes as a hop."""
    pairs: Any = np.array(Hop.read(config).pairs(mesh), np.int64).reshape(-1, 2)
    made = stablehlo.CollectivePermuteOp(
        op.operands[0], ir.DenseElementsAttr.get(pairs), channel_handle=channel
    )
    return made.operation


def _write_gather(op: ir.Operation, config: str, channel: Any, mesh: Mesh) -> ir.Operation:
    """Write what puts values side by side along the first dimension, for which axes are named."""
    made = stablehlo.AllGatherOp(
        [op.result.type],
        [op.operands[0]],
        0,
        _write_groups(config, mesh),
        channel_handle=channel,
        use_global_device_ids=True,
    )
    return made.operation


def _write_all_to_all(op: ir.Operation, config: str, channel: Any, mesh: Mesh) -> ir.Operation:
    """Write what cuts values along one dimension and joins them along another."""
    axes, cut, join = config.split(" ")
    groups = _write_groups(axes, mesh)
    made = stablehlo.AllToAllOp(
        [op.operands[0]],
        int(cut),
        int(join),
        mesh.size(axes.split("+")),
        groups,
        channel_handle=channel,
    )
    return made.operation


def _write_sum(op: ir.Operation, config: str, channel: Any, mesh: Mesh) -> ir.Operation:
    """Write what adds up values along the axes that are named."""
    made = stablehlo.AllReduceOp(
        [op.result.type],
        [op.operands[0]],
        _write_groups(config, mesh),
        channel_handle=channel,
        use_global_device_ids=True,
    )
    scalar = ir.RankedTensorType.get([], ir.RankedTensorType(op.result.type).element_type)
    block = made.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([stablehlo.AddOp(*block.arguments).result])
    return made.operation


def _write_groups(axes: str, mesh: Mesh) -> ir.DenseElementsAttr:
    """Write which devices communicate along some axes."""
    groups: Any = np.ascontiguousarray(list_groups(axes.split("+"), mesh), np.int64)
    return ir.DenseElementsAttr.get(groups)
