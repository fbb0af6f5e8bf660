"""Rows of larger arrays that a kernel reads where they lie, instead of a copy in another order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from namedmesh.artifacts.stablehlo.editing import ENTER, PLACE, call_target, maker_of

# How ops on numbers are computed; None for those that move them alone.
_FOLDED: dict[str, Callable[..., Any] | None] = {
    "stablehlo.add": np.add,
    "stablehlo.multiply": np.multiply,
    "stablehlo.minimum": np.minimum,
    "stablehlo.maximum": np.maximum,
    "stablehlo.broadcast_in_dim": None,
    "stablehlo.slice": None,
    "stablehlo.reshape": None,
    "stablehlo.concatenate": None,
}


def open_rows(
    op: ir.Operation, reads: Sequence[ir.Value]
) -> tuple[list[ir.Value], list[dict[str, Any]]]:
    """Return the arrays that values are rows of, each with its first row, and how they lie there.

    Of one device alone: moves and shardings are passed over.
    """
    with op.context, op.location, ir.InsertionPoint(op):
        opened = [_open(value) for value in reads]
    return [value for values, _ in opened for value in values], [how for _, how in opened]


def _open(value: ir.Value) -> tuple[tuple[ir.Value, ir.Value], dict[str, Any]]:
    """Return the array that a value is rows of and the first, and how the value lies in it."""
    sizes = _sizes(value)
    order, first, along = [*range(len(sizes))], None, None
    while op := maker_of(value):
        if call_target(op) in (PLACE, ENTER):
            value = op.operands[0]
        elif op.name == "stablehlo.transpose":
            permutation = [*ir.DenseI64ArrayAttr(op.attributes["permutation"])]
            order = [permutation[dim] for dim in order]
            along = None if along is None else permutation[along]
            value = op.operands[0]
        elif op.name == "stablehlo.dynamic_slice" and first is None:
            whole = _sizes(op.operands[0])
            cut = [dim for dim, size in enumerate(_sizes(value)) if size < whole[dim]]
            if len(cut) != 1 or str(op.operands[1 + cut[0]].type) != "tensor<i32>":
                break
            along, first, value = cut[0], op.operands[1 + cut[0]], op.operands[0]
        else:
            break
    known = np.int64(0) if first is None else _compute(first)
    if known is not None:
        kind = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        number: Any = np.array(known, np.int32)
        first = stablehlo.ConstantOp(
            ir.DenseElementsAttr.get(number, type=kind.element_type)
        ).result
    assert first is not None
    return (value, first), {"sizes": sizes, "order": order, "along": along}


def _compute(value: ir.Value) -> Any:
    """Compute what a value is; None if it depends on more than constants."""
    # A layer that is written out knows its number, as one of a range, which XLA does not fold.
    if (op := maker_of(value)) is None:
        return None
    if op.name == "stablehlo.constant":
        return np.array(ir.DenseElementsAttr(op.attributes["value"]))
    if op.name == "stablehlo.iota" and len(_sizes(value)) == 1:
        return np.arange(_sizes(value)[0])
    passes = call_target(op) in (PLACE, ENTER) or op.name in _FOLDED
    operands: list[Any] = [_compute(one) for one in op.operands] if passes else [None]
    if any(one is None for one in operands):
        return None
    if op.name == "stablehlo.slice":
        names = ("start_indices", "limit_indices", "strides")
        ends = zip(*(ir.DenseI64ArrayAttr(op.attributes[name]) for name in names), strict=True)
        return operands[0][tuple(slice(*one) for one in ends)]
    if op.name == "stablehlo.broadcast_in_dim":
        return np.full(_sizes(value), operands[0]) if operands[0].ndim == 0 else None
    if op.name == "stablehlo.concatenate":
        return np.concatenate(operands, ir.IntegerAttr(op.attributes["dimension"]).value)
    compute = _FOLDED.get(op.name)
    return operands[0].reshape(_sizes(value)) if compute is None else compute(*operands)


def _sizes(value: ir.Value) -> list[int]:
    """Return the sizes of a value's dimensions."""
    return [*ir.RankedTensorType(value.type).shape]
