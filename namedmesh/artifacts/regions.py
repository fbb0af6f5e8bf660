"""Manual regions in StableHLO, closed so that XLA cannot mistake their edges.

XLA merges equal constants before it partitions, and a constant shared by a manual region and the
code around it has two shardings at once. So whatever an op of a region reads from outside enters
the region explicitly, constants too.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

_ENTER, _LEAVE, _PLACE = "SPMDFullToShardShape", "SPMDShardToFullShape", "Sharding"


def close_regions(module: ir.Operation) -> None:
    """Mark every op of a manual region, and makes every value it reads enter the region."""
    with ir.Location.unknown(module.context):
        for block in blocks(module):
            _close(block)


def blocks(op: ir.Operation) -> Iterator[ir.Block]:
    """Every block inside an op."""
    for region in op.regions:
        for block in region.blocks:
            yield block
            for inner in block.operations:
                yield from blocks(inner.operation)


def _close(block: ir.Block) -> None:
    """Close the regions of one block, from a device's shard to where the whole is put together."""
    inside: set[ir.Value] = set()
    entered: dict[ir.Value, ir.Value] = {}
    for view in list(block.operations):
        op = view.operation
        operands = list(op.operands)
        if call_target(op) == _ENTER:
            inside.update(op.results)
        elif call_target(op) != _LEAVE and any(value in inside for value in operands):
            inside.update(op.results)
            if call_target(op) != _PLACE:
                op.attributes["mhlo.sharding"] = ir.StringAttr.get("{manual}")
            for i, value in enumerate(operands):
                if value not in inside:
                    if value not in entered:
                        with ir.InsertionPoint(op):
                            replicated = _custom_call(_PLACE, value, "{replicated}")
                            entered[value] = _custom_call(_ENTER, replicated, "{manual}")
                    op.operands[i] = entered[value]


def call_target(op: ir.Operation) -> str:
    """What a custom call calls; empty for other ops."""
    if "call_target_name" not in op.attributes:
        return ""
    return ir.StringAttr(op.attributes["call_target_name"]).value


def _custom_call(target: str, value: ir.Value, sharding: str) -> ir.Value:
    """A custom call that passes a value on under a sharding."""
    attributes = {"call_target_name": target, "backend_config": "", "mhlo.sharding": sharding}
    call = ir.Operation.create(
        "stablehlo.custom_call",
        results=[value.type],
        operands=[value],
        attributes={name: ir.StringAttr.get(text) for name, text in attributes.items()},
    )
    return call.result
