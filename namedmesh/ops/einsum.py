"""Einsum over any number of operands, as a path of binary contractions with named results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import opt_einsum

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, name_all, suggest_names
from namedmesh.ir.context import Context
from namedmesh.ir.interface import check_dtype
from namedmesh.ir.op import Op
from namedmesh.ir.operands import (
    as_tuple,
    check_dimension,
    check_dtype_kind,
    check_one_dtype,
    check_same_sizes,
    check_tensors,
    make_shape,
)
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import BYTES, FLOATS, FLOATS8, Over, Tensor
from namedmesh.ops.broadcast import broadcast, sum
from namedmesh.ops.constants import range
from namedmesh.ops.elementwise import cast
from namedmesh.ops.logic import equal, where
from namedmesh.ops.matrices import diagonal
from namedmesh.ops.ring import SlicedProduct
from namedmesh.ops.shape import rename, transpose


class Einsum(Op):
    """A contraction of two operands; every dimension is in at least two of the three tensors."""

    by_name = True
    broadcasts = True
    linear_in = ((0,), (1,))
    sums = True
    kept_by_dots = True
    shape: Shape
    dtype: str  # in which products are added up
    slices: bool | None = None

    @property
    def sliced(self) -> str:
        return {None: "large", True: "all", False: "none"}[self.slices]

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.shape, self.dtype)]

    def lower(self, context: Context, a: Any, b: Any) -> Any:
        ring, shapes = context.ring, [*(x.shape for x in self.inputs), self.shape]
        if ring is None:
            return self._multiply(context, a, b, self.dtype)
        # Sums over all slices are rounded once, as they are without slices.
        summed = ring.tensor < 2 and ring.dim not in self.shape
        dtype = "float32" if summed and BYTES.get(self.dtype, 1) < 4 else self.dtype
        multiply = lambda a, b: self._multiply(context, a, b, dtype)
        product = SlicedProduct(context, ring, shapes, (a, b), multiply)
        value = product.scatter() if ring.tensor == 2 else product.gather()
        return context.tf.cast(value, context.dtype(self.dtype))

    def _multiply(self, context: Context, a: Any, b: Any, dtype: str) -> Any:
        """Multiply values, which may be those of one device's shards."""
        left, right = (tensor.shape for tensor in self.inputs)
        narrow = self.inputs[0].dtype in FLOATS8
        if narrow and context.compiled:
            # Where a backend multiplies in eight bits, its compiler takes these casts away again.
            a, b = (context.tf.cast(value, context.tf.bfloat16) for value in (a, b))
        if not context.compiled:
            letters = {name: chr(97 + i) for i, name in enumerate({*left.names, *right.names})}
            terms = (left.names, right.names, self.shape.names)
            first, second, result = ("".join(letters[name] for name in names) for names in terms)
            wide = context.dtype("float32" if narrow else dtype)
            a, b = (context.tf.cast(value, wide) for value in (a, b))
            product = context.tf.einsum(f"{first},{second}->{result}", a, b)
            return context.tf.cast(product, context.dtype(dtype))
        own = [name for name in self.shape.names if (name in left.names) != (name in right.names)]
        if own and own[-1] in left.names and own[0] in right.names:
            # Swapped, so that the product comes out in order and needs no transpose.
            a, b, left, right = b, a, right, left
        shared = [name for name in left.names if name in right.names]
        batch = [name for name in shared if name in self.shape.names]
        contracted = [name for name in shared if name not in self.shape.names]
        numbers = context.xla_data.DotDimensionNumbers(
            lhs_batch_dimensions=[left.position(name) for name in batch],
            rhs_batch_dimensions=[right.position(name) for name in batch],
            lhs_contracting_dimensions=[left.position(name) for name in contracted],
            rhs_contracting_dimensions=[right.position(name) for name in contracted],
        )
        level = getattr(context.xla_data.PrecisionConfig, context.precision.upper())
        precision = context.xla_data.PrecisionConfig(operand_precision=[level] * 2)
        preferred = None if context.dtype(dtype) == a.dtype else context.dtype(dtype)
        product = context.xla.dot_general(
            a, b, numbers, precision_config=precision, preferred_element_type=preferred
        )
        order = [*batch, *(name for name in (*left.names, *right.names) if name not in shared)]
        return context.arrange(product, self.shape.select(order), self.shape.names)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        a, b = self.inputs
        dy = cast(dy, a.dtype)  # back to what operands have, as their own gradients are
        pairs = ((b, a.shape), (a, b.shape))
        return [_contract_pair(dy, x, shape, slices=self.slices) for x, shape in pairs]

    def flops(self) -> int:
        dims = {dim.name: dim for tensor in self.inputs for dim in tensor.shape}
        return 2 * Shape(dims.values()).elements

    def placement(self) -> Placement:
        names = {name for tensor in self.inputs for name in tensor.shape.names}
        return Placement(reduced=names - {*self.shape.names})


def einsum(
    operands: Sequence[Tensor],
    dims: Sequence[Dimension] | None = None,
    *,
    over: Over = None,
    preferred: str | None = None,
    slices: bool | None = None,
    same: Mapping[Dimension, Dimension] | None = None,
) -> Tensor:
    """Return the product of tensors by name, summed over every dimension not in the result.

    Three and more operands are contracted in pairs, in the cheapest order. Over a split dimension
    every device sums its own shard, and an AllReduce adds the partial sums.

    In slices, an operand that has to be gathered, or a result that has to be scattered, goes round
    the devices by CollectivePermutes: as many bytes, never more than a few shards on a device, and
    products are computed while the next shards arrive. The derivative is in slices, too.

    Args:
        operands: The tensors, all of one dtype of numbers.
        dims: The dimensions of the result, in order.
        over: In place of `dims`: one dimension or several to sum over.
        preferred: A wider dtype in which products are added up and returned: float32 of bfloat16.
            Products of eight-bit integers are int32 by default, those of float8, of one kind or of
            both, float32.
        slices: True to gather and scatter in slices, False not to; by default where more than the
            layout's limit (`slices=64MiB` in it, or 4 GiB) would be whole on a device.
        same: Dimensions that go with others, `{C: R}`: of an operand that has both the diagonal is
            taken, and a result that has both is zero beside its diagonal.

    Example:
        >>> M, H = nm.dims("model=2 hidden=2")
        >>> x, w = ([M], [1, 2]), ([M, H], [[1, 0], [1, 1]])
        >>> nm.evaluate(lambda x, w: nm.einsum([x, w], [H]), x=x, w=w)
        array([3, 2], dtype=int32)
    """
    tensors = check_tensors("einsum", operands, "nm.einsum([x, w], [B, H])")
    if same:
        options = {"preferred": preferred, "slices": slices}
        return _multiply_diagonals(tensors, dims, over, same, **options)
    dims = _result_dims(tensors, dims, over)
    shape = make_shape("einsum", dims, *tensors)
    check_same_sizes("einsum", *tensors, result=shape)
    known = {dim.name for tensor in tensors for dim in tensor.shape}
    unknown = [name for name in shape.names if name not in known]
    if unknown:
        verb = "is" if len(unknown) == 1 else "are"
        problem = f"einsum: result {name_all('dimension', unknown)} {verb} in none of the operands"
        fix = f"{suggest_names(unknown, known)} (to add a dimension use nm.broadcast)"
        raise NamedMeshError(problem, *map(str, tensors), f"the result: {shape}", fix=fix)
    check_dtype_kind("einsum", "factor", *tensors)
    if not all(tensor.dtype in FLOATS8 for tensor in tensors):
        check_one_dtype("einsum", *tensors)
    dtype = _check_preferred(tensors[0], preferred)
    for left, right in _find_path(tensors, shape):
        a, b = tensors[left], tensors[right]
        rest = [tensor for i, tensor in enumerate(tensors) if i not in (left, right)]
        product = shape if not rest else _product_shape(a, b, rest, shape)
        pair = _contract_pair(a, b, product, dtype, slices)
        if rest and pair.name is None and pair is not a and pair is not b:
            pair.describe(name=f"{a.label}*{b.label}")
        tensors = [*rest, pair]
    (result,) = tensors
    return transpose(_sum_others(cast(result, dtype), {*shape.names}), shape)


def _multiply_diagonals(
    tensors: Sequence[Tensor],
    dims: Sequence[Dimension] | None,
    over: Over,
    same: Mapping[Dimension, Dimension],
    **options: Any,
) -> Tensor:
    """Multiply tensors of which some dimensions go with others."""
    for second, first in same.items():
        taken = []
        for x in tensors:
            if second in x.shape:
                x = diagonal(x, first, second) if first in x.shape else rename(x, second, first)
            taken.append(x)
        tensors = taken
    if dims is None:
        return einsum(tensors, over=over, **options)
    inner = {same.get(dim, dim): None for dim in dims}
    product = einsum(tensors, [*inner], **options)
    for second, first in same.items():
        if second in dims and first in dims:
            product = where(equal(range(first), range(second)), product, 0)
        elif second in dims:
            product = rename(product, first, second)
    return transpose(product, dims)


def _result_dims(
    tensors: Sequence[Tensor], dims: Sequence[Dimension] | None, over: Over
) -> Sequence[Dimension]:
    """Return the dimensions of the result, named by themselves or by those to sum over."""
    if (dims is None) == (over is None):
        problem = "einsum: the result is given by its dimensions, or by those to sum over"
        fix = "write nm.einsum([x, w], [B, H]) or nm.einsum([x, w], over=M)"
        raise NamedMeshError(problem, *map(str, tensors), fix=fix)
    if dims is not None:
        return dims
    summed = as_tuple(over)
    every = {dim.name: dim for tensor in tensors for dim in tensor.shape}
    unknown = [dim for dim in summed if check_dimension("einsum", dim).name not in every]
    if unknown:
        names = [dim.name for dim in unknown]
        problem = f"einsum: over={name_all('dimension', names)} is in none of the operands"
        fix = suggest_names(names, every)
        raise NamedMeshError(problem, *map(str, tensors), fix=fix)
    check_same_sizes("einsum", *tensors, result=Shape(summed))
    return [dim for dim in every.values() if dim not in summed]


def _check_preferred(x: Tensor, preferred: str | None) -> str:
    """Return the dtype in which products are added up, at least as wide as the operands'."""
    if preferred is None:
        wide = {"int8": "int32", "uint8": "int32", **dict.fromkeys(FLOATS8, "float32")}
        return wide.get(x.dtype, x.dtype)
    preferred = check_dtype(preferred)
    alike = (preferred in FLOATS) == (x.floating or x.dtype in FLOATS8)
    if not alike or BYTES.get(preferred, 1) < x.itemsize or preferred == "bool":
        problem = f"einsum: preferred={preferred!r} does not hold the products of {x.dtype}"
        fix = "give a wider dtype of the same kind, or leave it out"
        raise NamedMeshError(problem, str(x), fix=fix)
    return preferred


def _product_shape(a: Tensor, b: Tensor, rest: list[Tensor], shape: Shape) -> Shape:
    """Return the dimensions of a product that the result or another operand has."""
    needed = {*shape.names, *(name for tensor in rest for name in tensor.shape.names)}
    order = [dim for dim in shape if dim.name in {*a.shape.names, *b.shape.names}]
    dims = (*a.shape, *b.shape)
    others = {dim.name: dim for dim in dims if dim.name in needed and dim not in order}
    return Shape([*order, *others.values()])


def _find_path(operands: list[Tensor], shape: Shape) -> list[tuple[int, int]]:
    """Find the cheapest order of binary contractions."""
    if len(operands) < 3:
        return [(0, 1)] if len(operands) == 2 else []
    letters: dict[str, str] = {}
    for operand in operands:
        for name in operand.shape.names:
            letters.setdefault(name, opt_einsum.get_symbol(len(letters)))
    terms = ",".join("".join(letters[name] for name in operand.shape.names) for operand in operands)
    equation = f"{terms}->{''.join(letters[name] for name in shape.names)}"
    sizes = [operand.shape.sizes for operand in operands]
    path, _ = opt_einsum.contract_path(equation, *sizes, shapes=True)
    pairs: list[tuple[int, int]] = []
    for step in path:
        left, *others = sorted(step)
        pairs += [(left, right) for right in others]
    return pairs


def _sum_others(x: Tensor, names: set[str]) -> Tensor:
    """Sum over all dimensions but some."""
    return sum(x, over=[dim for dim in x.shape if dim.name not in names])


def _contract_pair(
    a: Tensor, b: Tensor, shape: Shape, dtype: str | None = None, slices: bool | None = None
) -> Tensor:
    """Contract two operands to a shape, in the dtype of the first by default."""
    dtype = dtype or a.dtype
    shared = {*a.shape.names} & {*b.shape.names}
    summed = {*a.shape.names} ^ {*b.shape.names}
    # XLA adds products of narrow floats and int8 up in a wide dtype; all else is made wide before.
    narrow = a.dtype in FLOATS8 and b.dtype in FLOATS8
    contracts = a.floating or narrow or (a.dtype, dtype) == ("int8", "int32")
    alike = narrow or a.dtype == b.dtype
    if not (contracts and shared and alike and summed <= {*shape.names}):
        a, b = cast(a, dtype), cast(b, dtype)
        contracts = a.floating
    # Dimensions of one operand alone are summed before, those of neither are broadcast after.
    a = _sum_others(a, {*shape.names, *b.shape.names})
    b = _sum_others(b, {*shape.names, *a.shape.names})
    present = Shape(dim for dim in shape if dim.name in {*a.shape.names, *b.shape.names})
    if not shared or not contracts:
        # Without a shared dimension there is nothing to contract; a contraction takes floats.
        product = transpose(_sum_others(a * b, {*present.names}), present)
    else:
        product = Einsum((a, b), present, dtype, slices).output
    return product if present == shape else broadcast(product, shape)
