"""Products of a single row, as writing text one token at a time has them, on GPUs.

What they take is reading the matrix, and cuBLAS and XLA begin and end as if there were more to do.
Where a loop multiplies by the same matrix in each iteration, the matrix is laid out once so that
each number of the result is a sum along its rows, which XLA reads at the memory's rate and fuses
with what follows; products of one row with several matrices become one.

Elsewhere the row is doubled: XLA makes products of a single row and a matrix of fewer than ten
million numbers multiplications whose results it writes to memory and sums up, where a matrix
product reads the matrix once. Two equal rows are a matrix product, with the same numbers in each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from namedmesh.artifacts.stablehlo.editing import ops_inside

SMALLEST = 2**16  # numbers of a matrix: smaller ones take no time to read
LARGEST_DOUBLED = 10_000_000  # larger matrices XLA multiplies as such
FLOATS = ("bf16", "f16", "f32")
PRODUCTS = ("stablehlo.dot", "stablehlo.dot_general")


@dataclass(frozen=True)
class Product:
    """A product of one row and a matrix."""

    op: ir.Operation
    which: int  # the operand that is the row
    shapes: list[list[int]]
    contracted: list[list[int]]

    @property
    def row(self) -> ir.Value:
        """The row."""
        return self.op.operands[self.which]

    @property
    def matrix(self) -> ir.Value:
        """The matrix."""
        return self.op.operands[1 - self.which]

    @property
    def depth(self) -> int:
        """The numbers of the row."""
        return math.prod(self.shapes[self.which])

    @property
    def size(self) -> int:
        """The numbers of the matrix."""
        return math.prod(self.shapes[1 - self.which])

    @classmethod
    def read(cls, op: ir.Operation) -> Product | None:
        """Describe a product; None of more rows than one, and of batches."""
        shapes = [_sizes(value) for value in op.operands]
        contracted = _find_contracted(op, shapes)
        sizes = [math.prod(shape) for shape in shapes]
        depth = math.prod(shapes[0][dim] for dim in contracted[0])
        if not contracted[0] or depth not in sizes:
            return None
        return cls(op, sizes.index(depth), shapes, contracted)


def multiply_single_rows(module: ir.Module) -> None:
    """Multiply single rows by matrices as it takes a GPU the least time."""
    for op in ops_inside(module.operation):
        # A matrix is laid out before the loop, which in a loop around it would be done often.
        outside = op.parent.name if op.parent else ""
        if op.name == "stablehlo.while" and outside == "func.func":
            _sum_rows(op)
    for op in ops_inside(module.operation):
        product = Product.read(op) if op.name in PRODUCTS else None
        if product and product.size in range(SMALLEST, LARGEST_DOUBLED):
            with module.context, op.location, ir.InsertionPoint(op):
                _double(product)


def _sum_rows(loop: ir.Operation) -> None:
    """Make products of single rows with matrices that a loop does not change sums of rows."""
    condition, body = (region.blocks[0] for region in loop.regions)
    *ops, end = (view.operation for view in body.operations)
    # Matrices of the loop alone: the layout of their places may change.
    own: dict[ir.Value, int] = {
        argument: i
        for i, argument in enumerate(body.arguments)
        if end.operands[i] == argument and not [*loop.results[i].uses, *condition.arguments[i].uses]
    }
    groups: dict[Any, list[Product]] = {}
    for op in ops:
        product = Product.read(op) if op.name in PRODUCTS else None
        if not product or product.size < SMALLEST or not _is_float(op) or product.matrix not in own:
            continue
        others = (use.owner.operation for use in product.matrix.uses)
        if product.row != product.matrix and all(other in (op, end) for other in others):
            kind = str(ir.RankedTensorType(product.matrix.type).element_type)
            key = product.row, kind, *product.contracted[product.which]
            groups.setdefault(key, []).append(product)
    for group in groups.values():
        first = group[0]
        with loop.context, first.op.location:
            with ir.InsertionPoint(loop):
                parts = [_lay_out(product, loop.operands[own[product.matrix]]) for product in group]
                matrix = parts[0] if len(parts) == 1 else stablehlo.ConcatenateOp(parts, 0).result
            # The matrices take the place of the first.
            place = own[first.matrix]
            loop.operands[place] = matrix
            for value in (condition.arguments[place], body.arguments[place], loop.results[place]):
                value.set_type(matrix.type)
            with ir.InsertionPoint(first.op):
                total, start = _sum_products(body.arguments[place], first), 0
                for product, part in zip(group, parts, strict=True):
                    count = _sizes(part)[0]
                    sums = stablehlo.SliceOp(
                        total, _numbers([start]), _numbers([start + count]), _numbers([1])
                    ).result
                    start += count
                    result = ir.RankedTensorType(product.op.result.type)
                    sums = stablehlo.ConvertOp(_tensor([count], result.element_type), sums).result
                    own_shape = stablehlo.ReshapeOp(result, sums).result
                    product.op.result.replace_all_uses_with(own_shape)
        for product in group:
            product.op.erase()


def _is_float(op: ir.Operation) -> bool:
    """Return whether operands and result are of dtypes whose sums are float32."""
    values = (*op.operands, op.result)
    return all(str(ir.RankedTensorType(value.type).element_type) in FLOATS for value in values)


def _lay_out(product: Product, matrix: ir.Value) -> ir.Value:
    """Return a matrix with what is summed over last, in two dimensions."""
    contracted, shape = product.contracted[1 - product.which], product.shapes[1 - product.which]
    rest = [dim for dim in range(len(shape)) if dim not in contracted]
    matrix = stablehlo.TransposeOp(matrix, _numbers([*rest, *contracted])).result
    kind = ir.RankedTensorType(matrix.type).element_type
    sizes = [product.size // product.depth, product.depth]
    return stablehlo.ReshapeOp(_tensor(sizes, kind), matrix).result


def _sum_products(matrix: ir.Value, product: Product) -> ir.Value:
    """Return the sums of a matrix's rows times the row of a product, in float32."""
    wide, contracted = ir.F32Type.get(), product.contracted[product.which]
    rest = [dim for dim in range(len(product.shapes[product.which])) if dim not in contracted]
    row = stablehlo.TransposeOp(product.row, _numbers([*contracted, *rest])).result
    kind = ir.RankedTensorType(row.type).element_type
    row = stablehlo.ReshapeOp(_tensor([product.depth], kind), row).result
    row = stablehlo.ConvertOp(_tensor([product.depth], wide), row).result
    every = _tensor(_sizes(matrix), wide)
    rows = stablehlo.BroadcastInDimOp(every, row, _numbers([1])).result
    products = stablehlo.MulOp(stablehlo.ConvertOp(every, matrix).result, rows).result
    scalar = _tensor([], wide)
    zero = stablehlo.ConstantOp(
        ir.DenseElementsAttr.get_splat(scalar, ir.FloatAttr.get(wide, 0.0))
    ).result
    sums = stablehlo.ReduceOp(
        [_tensor(_sizes(matrix)[:1], wide)], [products], [zero], _numbers([1])
    )
    block = sums.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([stablehlo.AddOp(*block.arguments).result])
    return sums.results[0]


def _double(product: Product) -> None:
    """Make a product of one row one of two equal rows, and take the first."""
    op, which = product.op, product.which
    operands: list[ir.Value] = list(op.operands)
    operands[which] = _repeat(operands[which])
    contracted = [[dim + (i == which) for dim in dims] for i, dims in enumerate(product.contracted)]
    result = ir.RankedTensorType(op.result.type)
    # The new dimension is the first of those of its operand that are left.
    place = which * (len(product.shapes[0]) - len(contracted[0]))
    shape = [*result.shape[:place], 2, *result.shape[place:]]
    rows = stablehlo.DotGeneralOp(
        _tensor(shape, result.element_type),
        *operands,
        stablehlo.DotDimensionNumbers.get([], [], *contracted),  # type: ignore[call-arg]
        precision_config=op.attributes.get("precision_config"),
    )
    ends = [1 if i == place else size for i, size in enumerate(shape)]
    starts, strides = _numbers([0] * len(shape)), _numbers([1] * len(shape))
    first = stablehlo.SliceOp(rows.result, starts, _numbers(ends), strides)
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
    places = _numbers(range(1, len(kind.shape) + 1))
    return stablehlo.BroadcastInDimOp(
        _tensor([2, *kind.shape], kind.element_type), value, places
    ).result


def _tensor(sizes: Sequence[int], kind: ir.Type) -> ir.RankedTensorType:
    """Return the type of a tensor."""
    return ir.RankedTensorType.get([*sizes], kind)


def _sizes(value: ir.Value) -> list[int]:
    """Return the sizes of a value's dimensions."""
    return [*ir.RankedTensorType(value.type).shape]


def _numbers(values: Iterable[int]) -> Any:
    """Return whole numbers as an attribute."""
    return ir.DenseI64ArrayAttr.get([*values])
