"""Products of a single row, as writing text one token at a time has them, on GPUs.

XLA makes those of matrices below ten million numbers multiplications whose results it writes to
memory and sums up, where a matrix product reads the matrix once. Two equal rows are a matrix
product, with the same numbers in each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from namedmesh.artifacts.stablehlo.editing import ops_inside

SIZES = range(2**16, 10_000_000)  # of matrices, in numbers: larger ones XLA multiplies as such


def double_single_rows(module: ir.Module) -> None:
    """Make every product of one row and a matrix one of two equal rows, and take the first."""
    for op in ops_inside(module.operation):
        if op.name in ("stablehlo.dot", "stablehlo.dot_general"):
            with module.context, op.location, ir.InsertionPoint(op):
                _double(op)


def _double(op: ir.Operation) -> None:
    """Double the row of a product, if an operand is one."""
    shapes = [list(ir.RankedTensorType(value.type).shape) for value in op.operands]
    contracted = _find_contracted(op, shapes)
    sizes = [math.prod(shape) for shape in shapes]
    depth = math.prod(shapes[0][dim] for dim in contracted[0])
    if not contracted[0] or depth not in sizes:
        return
    which = sizes.index(depth)
    if sizes[1 - which] not in SIZES:
        return
    operands: list[ir.Value] = list(op.operands)
    operands[which] = _repeat(operands[which])
    contracted[which] = [dim + 1 for dim in contracted[which]]
    result = ir.RankedTensorType(op.result.type)
    # The new dimension is the first of those of its operand that are left.
    place = which * (len(shapes[0]) - len(contracted[0]))
    shape = [*result.shape[:place], 2, *result.shape[place:]]
    rows = stablehlo.DotGeneralOp(
        ir.RankedTensorType.get(shape, result.element_type),
        *operands,
        stablehlo.DotDimensionNumbers.get([], [], *contracted),  # type: ignore[call-arg]
        precision_config=op.attributes.get("precision_config"),
    )
    ends = [1 if i == place else size for i, size in enumerate(shape)]
    first = stablehlo.SliceOp(rows.result, _numbers([0] * len(shape)), _numbers(ends), _ones(shape))
    op.result.replace_all_uses_with(stablehlo.ReshapeOp(result, first.result).result)
    op.erase()


def _find_contracted(op: ir.Operation, shapes: list[list[int]]) -> list[list[int]]:
    """Return the contracted dimensions of both operands; none of what has batches of products."""
    if op.name == "stablehlo.dot":
        return [[len(shapes[0]) - 1], [0]]
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    if numbers.lhs_batching_dimensions:
        return [[], []]
    return [[*numbers.lhs_contracting_dimensions], [*numbers.rhs_contracting_dimensions]]


def _repeat(value: ir.Value) -> ir.Value:
    """Repeat a value along a new first dimension of size two."""
    kind = ir.RankedTensorType(value.type)
    twice = ir.RankedTensorType.get([2, *kind.shape], kind.element_type)
    places = _numbers(range(1, len(kind.shape) + 1))
    return stablehlo.BroadcastInDimOp(twice, value, places).result


def _ones(shape: list[int]) -> Any:
    """Return a stride for each dimension."""
    return _numbers([1] * len(shape))


def _numbers(values: Iterable[int]) -> Any:
    """Return whole numbers as an attribute."""
    return ir.DenseI64ArrayAttr.get([*values])
