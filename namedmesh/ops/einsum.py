"""Einsum over any number of operands, as a path of binary contractions with named results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import opt_einsum

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError, name_all, suggest_names
from namedmesh.ir.context import Context
from namedmesh.ir.op import Op
from namedmesh.ir.operands import (
    check_dtype_kind,
    check_one_dtype,
    check_same_sizes,
    check_tensors,
    make_shape,
)
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.broadcast import broadcast, sum
from namedmesh.ops.shape import transpose


class Einsum(Op):
    """A contraction of two operands; every dimension is in at least two of the three tensors."""

    sums = True
    kept_by_dots = True
    shape: Shape

    @property
    def linear(self) -> str:
        return "each"

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.shape, self.inputs[0].dtype)]

    def lower(self, context: Context, a: Any, b: Any) -> Any:
        left, right = (tensor.shape for tensor in self.inputs)
        if not context.compiled:
            letters = {name: chr(97 + i) for i, name in enumerate({*left.names, *right.names})}
            terms = (left.names, right.names, self.shape.names)
            first, second, result = ("".join(letters[name] for name in names) for names in terms)
            return context.tf.einsum(f"{first},{second}->{result}", a, b)
        own = [name for name in self.shape.names if (name in left.names) != (name in right.names)]
        if own and own[-1] in left.names and own[0] in right.names:
            # Swapped, so that the product comes out in order and needs no transpose.
            a, b, left, right = b, a, right, left
        batch = [name for name in left.names if name in right.names and name in self.shape.names]
        contracted = [
            name for name in left.names if name in right.names and name not in self.shape.names
        ]
        numbers = context.xla_data.DotDimensionNumbers(
            lhs_batch_dimensions=[left.position(name) for name in batch],
            rhs_batch_dimensions=[right.position(name) for name in batch],
            lhs_contracting_dimensions=[left.position(name) for name in contracted],
            rhs_contracting_dimensions=[right.position(name) for name in contracted],
        )
        level = getattr(context.xla_data.PrecisionConfig, context.precision.upper())
        precision = context.xla_data.PrecisionConfig(operand_precision=[level] * 2)
        product = context.xla.dot_general(a, b, numbers, precision_config=precision)
        shared = {*batch, *contracted}
        order = [*batch, *(name for name in (*left.names, *right.names) if name not in shared)]
        return context.arrange(product, self.shape.select(order), self.shape.names)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        a, b = self.inputs
        return [_contract_pair(dy, b, a.shape), _contract_pair(dy, a, b.shape)]

    def flops(self) -> int:
        dims = {dim.name: dim for tensor in self.inputs for dim in tensor.shape}
        return 2 * Shape(dims.values()).elements

    def placement(self) -> Placement:
        names = {name for tensor in self.inputs for name in tensor.shape.names}
        return Placement(reduced=names - {*self.shape.names})


def einsum(operands: Sequence[Tensor], dims: Sequence[Dimension]) -> Tensor:
    """Multiplies tensors by name and sums over every dimension that is not in the result.

    Three and more operands are contracted in pairs, in the cheapest order. Where a dimension that
    is summed over is split, every device sums its own piece, and an AllReduce adds the partial
    sums.

    Args:
        operands: The tensors, all of one dtype of numbers.
        dims: The dimensions of the result, in order.

    Returns:
        A tensor with exactly these dimensions and the operands' dtype.

    Raises:
        NamedMeshError: A dimension of the result is in none of the operands, one name has two
            sizes, or the dtypes differ or are bool.

    Example:
        >>> import namedmesh as nm
        >>> B, M, H = nm.dims("batch=2 model=2 hidden=2")
        >>> def layer(x, w):
        ...     return nm.einsum([x, w], [B, H])
        >>> nm.evaluate(layer, x=([B, M], [[1, 2], [3, 4]]), w=([M, H], [[1, 0], [1, 1]]))
        array([[3, 2],
               [7, 4]], dtype=int32)
    """
    tensors = check_tensors("einsum", operands, "nm.einsum([x, w], [B, H])")
    shape = make_shape("einsum", dims, *tensors)
    check_same_sizes("einsum", *tensors, result=shape)
    known = {dim.name for tensor in tensors for dim in tensor.shape}
    unknown = [name for name in shape.names if name not in known]
    if unknown:
        verb = "is" if len(unknown) == 1 else "are"
        raise NamedMeshError(
            f"einsum: result {name_all('dimension', unknown)} {verb} in none of the operands",
            *map(str, tensors),
            f"the result: {shape}",
            fix=f"{suggest_names(unknown, known)} (to add a dimension use nm.broadcast)",
        )
    check_dtype_kind("einsum", "number", *tensors)
    check_one_dtype("einsum", *tensors)
    for left, right in _find_path(tensors, shape):
        a, b = tensors[left], tensors[right]
        rest = [tensor for i, tensor in enumerate(tensors) if i not in (left, right)]
        product = shape if not rest else _product_shape(a, b, rest, shape)
        pair = _contract_pair(a, b, product)
        if rest and pair.name is None and pair is not a and pair is not b:
            pair.describe(name=f"{a.label}*{b.label}")
        tensors = [*rest, pair]
    (result,) = tensors
    return _reorder(_sum_others(result, {*shape.names}), shape)


def _product_shape(a: Tensor, b: Tensor, rest: list[Tensor], shape: Shape) -> Shape:
    """Returns what the product of two operands keeps: what the result or another operand has."""
    needed = {*shape.names, *(name for tensor in rest for name in tensor.shape.names)}
    order = [dim for dim in shape if dim.name in {*a.shape.names, *b.shape.names}]
    dims = (*a.shape, *b.shape)
    others = {dim.name: dim for dim in dims if dim.name in needed and dim not in order}
    return Shape([*order, *others.values()])


def _find_path(operands: list[Tensor], shape: Shape) -> list[tuple[int, int]]:
    """Finds the cheapest order of binary contractions."""
    if len(operands) < 3:
        return [(0, 1)] if len(operands) == 2 else []
    letters: dict[str, str] = {}
    for operand in operands:
        for name in operand.shape.names:
            letters.setdefault(name, opt_einsum.get_symbol(len(letters)))
    terms = ",".join("".join(letters[name] for name in operand.shape.names) for operand in operands)
    equation = f"{terms}->{''.join(letters[name] for name in shape.names)}"
    path, _ = opt_einsum.contract_path(
        equation,
        *(operand.shape.sizes for operand in operands),
        shapes=True,
        optimize="auto",
        memory_limit=None,
    )
    pairs: list[tuple[int, int]] = []
    for step in path:
        left, *others = sorted(step)
        pairs += [(left, right) for right in others]
    return pairs


def _sum_others(x: Tensor, names: set[str]) -> Tensor:
    """Sums over all dimensions but some."""
    others = [dim for dim in x.shape if dim.name not in names]
    return sum(x, over=others) if others else x


def _reorder(x: Tensor, shape: Shape) -> Tensor:
    """Puts the dimensions in the order of a shape."""
    return x if x.shape == shape else transpose(x, shape)


def _contract_pair(a: Tensor, b: Tensor, shape: Shape) -> Tensor:
    """Contracts two operands to a shape.

    Dimensions that only one operand has are summed before, those that neither has are broadcast
    after.
    """
    a = _sum_others(a, {*shape.names, *b.shape.names})
    b = _sum_others(b, {*shape.names, *a.shape.names})
    present = Shape(dim for dim in shape if dim.name in {*a.shape.names, *b.shape.names})
    if not {*a.shape.names} & {*b.shape.names} or not a.floating:
        # Without a shared dimension there is nothing to contract; a contraction takes floats.
        product = _reorder(_sum_others(a * b, {*present.names}), present)
    else:
        product = Einsum((a, b), present).output
    return product if present == shape else broadcast(product, shape)
