"""Manual regions in StableHLO, closed so that XLA cannot mistake their edges.

XLA merges equal constants before it partitions, and a constant shared by a manual region and the code around it
has two shardings at once. So whatever an op of a region reads from outside enters it explicitly, constants too.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

_ENTER, _LEAVE, _PLACE = "SPMDFullToShardShape", "SPMDShardToFullShape", "Sharding"


def close_regions(module: ir.Module) -> None:
    """Marks every op of a manual region, and makes every value it reads enter the region."""
    with ir.Location.unknown(module.context):
        for block in blocks(module.operation):
            _close(block)


def blocks(op: ir.Operation) -> Iterator[ir.Block]:
    """Every block inside an op."""
    for region in op.regions:
        for block in region.blocks:
            yield block
            for inner in block.operations:
                yield from blocks(inner.operation)


def _target(op: ir.Operation) -> str:
    return (
        ir.StringAttr(op.attributes["call_target_name"]).value
        if "call_target_name" in op.attributes
        else ""
    )


def _close(block: ir.Block) -> None:
    """Closes the regions of one block: what reads a device's piece, up to where the whole is put together."""
    inside: set[ir.Value] = set()
    entered: dict[ir.Value, ir.Value] = {}
    for view in list(block.operations):
        op = view.operation
        given = list(op.operands)
        if _target(op) == _ENTER:
            inside.update(op.results)
        elif _target(op) != _LEAVE and any(value in inside for value in given):
            inside.update(op.results)
            if _target(op) != _PLACE:
                op.attributes["mhlo.sharding"] = ir.StringAttr.get("{manual}")
            for i, value in enumerate(given):
                if value not in inside:
                    if value not in entered:
                        with ir.InsertionPoint(op):
                            entered[value] = _call(
                                _ENTER, _call(_PLACE, value, "{replicated}"), "{manual}"
                            )
                    op.operands[i] = entered[value]


def _call(target: str, value: ir.Value, sharding: str) -> ir.Value:
    attributes = {"call_target_name": target, "backend_config": "", "mhlo.sharding": sharding}
    made = ir.Operation.create(
        "stablehlo.custom_call",
        results=[value.type],
        operands=[value],
        attributes={name: ir.StringAttr.get(text) for name, text in attributes.items()},
    )
    return made.result
