"""Collectives that ops make themselves: calls in an Artifact, StableHLO where it is loaded.

TensorFlow cannot write collectives, and their lists of devices grow with the mesh; an Artifact says
who sends to whom in one line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from namedmesh.dims.hop import Hop
from namedmesh.dims.mesh import Mesh
from namedmesh.runtime.regions import blocks, call_target

PERMUTE = "namedmesh_permute"
_BETWEEN_DEVICES = 1  # the type of a channel, as StableHLO numbers them


def write_collectives(module: ir.Module, mesh: Mesh) -> None:
    """Replaces every call of a collective by the collective.

    Args:
        module: The module, which is changed in place.
        mesh: The mesh it was lowered for.
    """
    calls = [
        view.operation
        for block in blocks(module.operation)
        for view in block.operations
        if call_target(view.operation) == PERMUTE
    ]
    for channel, op in enumerate(calls, 1):
        hop = Hop.read(ir.StringAttr(op.attributes["backend_config"]).value)
        pairs: Any = np.array(hop.pairs(mesh), np.int64).reshape(-1, 2)
        with module.context, op.location, ir.InsertionPoint(op):
            permute = stablehlo.CollectivePermuteOp(
                op.operands[0],
                ir.DenseElementsAttr.get(pairs),
                channel_handle=stablehlo.ChannelHandle.get(channel, _BETWEEN_DEVICES),
            )
        if "mhlo.sharding" in op.attributes:
            permute.operation.attributes["mhlo.sharding"] = op.attributes["mhlo.sharding"]
        op.result.replace_all_uses_with(permute.result)
        op.erase()
