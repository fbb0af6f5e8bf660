"""Einsum over any number of operands, as a path of binary contractions whose every intermediate has names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import opt_einsum

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.ir.context import Context
from namedmesh.ir.op import Op, Placement
from namedmesh.ir.operands import (
    check_dtype_kind,
    check_one_dtype,
    check_same_sizes,
    check_tensors,
    make_shape,
)
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.broadcast import broadcast, sum
from namedmesh.ops.shape import transpose


class Einsum(Op):
    """A contraction of two operands; every dimension is in at least two of the three tensors."""

    kept_by_dots = True
    shape: Shape

    def results(self):
        return [(self.shape, self.inputs[0].dtype)]

    def lower(self, context: Context, a: Any, b: Any) -> Any:
        left, right = (tensor.shape for tensor in self.inputs)
        if not context.compiled:
            letters = {name: chr(97 + i) for i, name in enumerate({*left.names, *right.names})}
            spell = lambda names: "".join(letters[name] for name in names)
            return context.tf.einsum(
                f"{spell(left.names)},{spell(right.names)}->{spell(self.shape.names)}", a, b
            )
        own = [name for name in self.shape.names if (name in left.names) != (name in right.names)]
        if (
            own and own[-1] in left.names and own[0] in right.names
        ):  # so that the product comes out in order
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
        made = context.xla.dot_general(a, b, numbers, precision_config=precision)
        shared = {*batch, *contracted}
        order = [*batch, *(name for name in (*left.names, *right.names) if name not in shared)]
        return context.arrange(
            made, Shape(self.shape.named(name) for name in order), self.shape.names
        )  # type: ignore[arg-type]

    def vjp(self, dy: Tensor):
        a, b = self.inputs
        return [_contract(dy, b, a.shape), _contract(dy, a, b.shape)]

    def flops(self) -> int:
        return (
            2
            * Shape(
                {dim.name: dim for tensor in self.inputs for dim in tensor.shape}.values()
            ).elements
        )

    def placement(self) -> Placement:
        names = {name for tensor in self.inputs for name in tensor.shape.names}
        return Placement(reduced=frozenset(names - {*self.shape.names}))


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
    operands = check_tensors("einsum", operands, "nm.einsum([x, w], [B, H])")
    shape = make_shape("einsum", dims, *operands)
    check_same_sizes("einsum", *operands, result=shape)
    known = {dim.name for operand in operands for dim in operand.shape}
    for dim in shape:
        if dim.name not in known:
            raise NamedMeshError(
                f"einsum: result dimension {dim.name} is in none of the operands",
                *map(str, operands),
                f"the result: {shape}",
                fix=did_you_mean(dim.name, known) + " (to add a dimension use nm.broadcast)",
            )
    check_dtype_kind("einsum", "number", *operands)
    check_one_dtype("einsum", *operands)
    for left, right in _path(operands, shape):
        a, b = operands[left], operands[right]
        rest = [operand for i, operand in enumerate(operands) if i not in (left, right)]
        kept = {*shape.names, *(name for operand in rest for name in operand.shape.names)}
        order = [dim for dim in shape if dim.name in {*a.shape.names, *b.shape.names}]
        others = {
            dim.name: dim for dim in (*a.shape, *b.shape) if dim.name in kept and dim not in order
        }
        operands = [
            *rest,
            _contract(a, b, Shape(shape if not rest else [*order, *others.values()])),
        ]
    (result,) = operands
    return _reordered(_summed(result, {*shape.names}), shape)


def _path(operands: list[Tensor], shape: Shape) -> list[tuple[int, int]]:
    """The cheapest order of binary contractions."""
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
    pairs = []
    for step in path:
        left, *others = sorted(step)
        pairs += [(left, right) for right in others]
    return pairs


def _summed(x: Tensor, kept: set[str]) -> Tensor:
    gone = [dim for dim in x.shape if dim.name not in kept]
    return sum(x, over=gone) if gone else x


def _reordered(x: Tensor, shape: Shape) -> Tensor:
    return x if x.shape == shape else transpose(x, shape)


def _contract(a: Tensor, b: Tensor, shape: Shape) -> Tensor:
    """Two operands contracted to a shape; what only one of them has is summed before, what neither has broadcast after."""
    a = _summed(a, {*shape.names, *b.shape.names})
    b = _summed(b, {*shape.names, *a.shape.names})
    present = Shape(dim for dim in shape if dim.name in {*a.shape.names, *b.shape.names})
    if not {*a.shape.names} & {*b.shape.names} or not a.floating:
        made = _reordered(_summed(a * b, {*present.names}), present)
    else:
        made = Einsum((a, b), present).output
    return made if present == shape else broadcast(made, shape)
