"""Eight bits: tensors as float8 with scales, products of such, and moves in eight bits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError, did_you_mean, name_all
from namedmesh.ir.differentiate import mark_cotangent
from namedmesh.ir.operands import check_dtype_kind, check_tensors
from namedmesh.ir.tensor import FLOATS8, Over, Tensor
from namedmesh.ops.custom import custom_vjp
from namedmesh.ops.einsum import einsum
from namedmesh.ops.elementwise import FUNCTIONS, Function, apply, cast, stop_gradient
from namedmesh.ops.logic import where
from namedmesh.ops.mathematics import absolute, clip, is_finite, maximum
from namedmesh.ops.move import reshard
from namedmesh.ops.reduce import check_over, find_peak
from namedmesh.ops.shape import reshape

Narrow = tuple[Tensor, Tensor]  # values in eight bits, and their scale
_LEAST_SCALE = 2.0**-126  # so that its inverse is a number, too


def _round_up_to_power(tf: Any, x: Any) -> Any:
    """Return the least powers of two that positive float32 numbers do not exceed."""
    bits = tf.bitcast(x, tf.int32) + 0x7FFFFF
    return tf.bitcast(tf.bitwise.bitwise_and(bits, 0x7F800000), x.dtype)


FUNCTIONS["power_of_two"] = Function(_round_up_to_power, takes="float")


def quantize(
    x: Tensor,
    dtype: str = "float8_e4m3fn",
    *,
    over: Over = None,
    blocks: Mapping[Dimension, int] | None = None,
    largest: Tensor | None = None,
) -> Narrow:
    """Return a tensor in eight bits, and the scale by which its values are to be multiplied.

    A scale is the least power of two that lets the largest magnitude fit, so that scaling itself
    rounds nothing. No gradient flows through either; `nm.scaled_einsum` has its own.

    Args:
        x: A floating point tensor.
        dtype: `"float8_e4m3fn"`, of up to 448 and 4 significant bits, or `"float8_e5m2"`, of up to
            57,344 and 3 bits.
        over: The dimensions that share a scale, all by default; the scale has the others.
        blocks: How many elements of a dimension share a scale, `{M: 128}`; the scale then has that
            dimension too, at the number of blocks.
        largest: The magnitude to fit in place of the tensor's own, with the dimensions of the
            scale: finite numbers that exceed it are cut off.

    Returns:
        The values, and the scale in float32.

    Example:
        >>> M = nm.Dimension("model", 3)
        >>> values, scale = nm.evaluate(nm.quantize, x=([M], [1.0, 1000.0, -3.3]))
        >>> print(values, scale)
        [0.25 256 -0.8125] 4.0
    """
    check_dtype_kind("quantize", "float", x)
    greatest = float(ml_dtypes.finfo(_check_narrow("quantize", dtype)).max)
    y, blocks = x, blocks or {}
    for dim, size in blocks.items():
        y = _cut(y, dim, size)
    if largest is None:
        shared = check_over("quantize", x, over) if over is not None or not blocks else ()
        inner = [dim for dim in y.shape if dim.name not in x.shape.names]
        most = find_peak(absolute(y), [*(dim for dim in shared if dim not in blocks), *inner])
    else:
        most = largest
    most = stop_gradient(cast(most, "float32"))
    scale = apply("power_of_two", maximum(most / greatest, _LEAST_SCALE))
    scale = where(most > 0.0, scale, 1.0)
    y = cast(y, "float32") if y.dtype == "float16" else y  # whose inverse scales do not fit
    y = y * cast(1.0 / scale, y.dtype)
    if largest is not None:
        y = where(is_finite(y), clip(y, -greatest, greatest), math.nan)  # infinity stays an alarm
    values = _join(cast(y, dtype), x)
    return values if values.name else values.describe(name=x.name), scale


def dequantize(values: Tensor, scale: Tensor, dtype: str = "float32") -> Tensor:
    """Return a floating point tensor of one in eight bits and its scale, by tensor or by blocks.

    Args:
        values: The values that `nm.quantize` returned.
        scale: The scale that it returned with them.
        dtype: Of the result.

    Example:
        >>> M = nm.Dimension("model", 3)
        >>> nm.evaluate(lambda x: nm.dequantize(*nm.quantize(x)), x=([M], [1.0, 1000.0, -3.3]))
        array([ 1.000e+00,  1.024e+03, -3.250e+00], dtype=float32)
    """
    wide = "float32" if dtype == "float16" else dtype
    sizes = {dim.name: dim.size for dim in scale.shape}
    y = values
    for dim in values.shape:
        if sizes.get(dim.name, dim.size) != dim.size:
            y = _cut(y, dim, dim.size // sizes[dim.name])
    return cast(_join(cast(y, wide) * cast(scale, wide), values), dtype)


def scaled_einsum(
    operands: Sequence[Tensor],
    dims: Sequence[Dimension],
    *,
    dtype: str = "float8_e4m3fn",
    gradients: str = "float8_e5m2",
    block: int = 0,
    largest: Sequence[Tensor | None] = (None, None),
) -> Tensor:
    """Return `nm.einsum` of two tensors that are quantized before they are multiplied.

    Products are added up in float32 and returned in the first tensor's dtype. The derivative
    multiplies the quantized cotangent with the quantized operands, which are what is kept for it.
    GPUs that multiply float8 do so; elsewhere the same numbers are multiplied as bfloat16.

    Args:
        operands: Two floating point tensors.
        dims: The dimensions of the result, in order.
        dtype: The dtype that operands are quantized to.
        gradients: The dtype that cotangents are quantized to.
        block: How many elements share a scale along the last dimension that is summed over, or
            the most up to that which divide its size. By default all of a tensor do, but for
            dimensions that both operands and the result have. Scales of blocks are applied before
            the product, which is then of the first tensor's dtype.
        largest: The magnitudes to fit of both operands in place of their own (delayed scaling).

    Example:
        >>> M, H = nm.dims("model=2 hidden=2")
        >>> x, w = ([M], [1.0, 2.0]), ([M, H], [[1.0, 0.0], [1.0, 1.0]])
        >>> nm.evaluate(lambda x, w: nm.scaled_einsum([x, w], [H]), x=x, w=w)
        array([3., 2.], dtype=float32)
    """
    a, b = _check_pair(operands, dims)
    kinds = _check_narrow("scaled_einsum", dtype), _check_narrow("scaled_einsum", gradients)
    if block:
        return _multiply_blocks(a, b, dims, kinds, block)
    both = [dim for dim in dims if dim in a.shape and dim in b.shape]

    def narrow(x: Tensor, kind: str, most: Tensor | None = None) -> Narrow:
        return quantize(x, kind, over=[dim for dim in x.shape if dim not in both], largest=most)

    def forward(a: Tensor, b: Tensor) -> tuple[Tensor, Sequence[Narrow]]:
        kept = [narrow(x, dtype, most) for x, most in zip((a, b), largest, strict=True)]
        return _multiply_narrow(kept[0], kept[1], dims, a.dtype), kept

    def backward(kept: Sequence[Narrow], dy: Tensor) -> list[Tensor]:
        sent, pairs = narrow(dy, gradients), ((kept[1], a), (kept[0], b))
        return [_multiply_narrow(sent, x, of.shape.dims, dy.dtype, of) for x, of in pairs]

    return custom_vjp(forward, backward)(a, b)


def _multiply_narrow(
    a: Narrow, b: Narrow, dims: Sequence[Dimension], dtype: str, primal: Tensor | None = None
) -> Tensor:
    """Multiply values in eight bits, then their scales; of a cotangent, in its primal's dtype."""
    # Powers of two change no digit of a product; float16 alone has too few of them.
    wide = "float32" if dtype == "float16" else dtype
    y = einsum([a[0], b[0]], dims, preferred=wide)
    if primal is None:
        return cast(y * cast(a[1] * b[1], wide), dtype)
    # Partial sums are added up where the primal is, in shards of weights at rest.
    y = mark_cotangent(y, primal) * cast(a[1] * b[1], wide)
    return _cast_to_primal(cast(y, dtype), primal)


def _cast_to_primal(y: Tensor, primal: Tensor) -> Tensor:
    """Return a cotangent in its primal's dtype; its sums are moved in its own."""
    return y if y.dtype == primal.dtype else cast(mark_cotangent(y, primal), primal.dtype)


def _multiply_blocks(
    a: Tensor, b: Tensor, dims: Sequence[Dimension], kinds: tuple[str, str], block: int
) -> Tensor:
    """Multiply tensors that are rounded in blocks along the last dimension that is summed over."""

    def multiply(pairs: Sequence[tuple[Tensor, str]], dims: Sequence[Dimension]) -> Tensor:
        (x, _), (y, _) = pairs
        summed = [dim for dim in x.shape if dim in y.shape and dim not in dims]
        blocks = {dim: _find_block(block, dim) for dim in summed[-1:]}
        narrow = (quantize(one, kind, blocks=blocks) for one, kind in pairs)
        return einsum([dequantize(*one, x.dtype) for one in narrow], dims)

    def forward(a: Tensor, b: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return multiply([(a, kinds[0]), (b, kinds[0])], dims), (a, b)

    def backward(kept: tuple[Tensor, Tensor], dy: Tensor) -> list[Tensor]:
        pairs = ((kept[1], a), (kept[0], b))
        several = [multiply([(dy, kinds[1]), (x, kinds[0])], of.shape.dims) for x, of in pairs]
        return [_cast_to_primal(y, x) for y, x in zip(several, (a, b), strict=True)]

    return custom_vjp(forward, backward)(a, b)


def _find_block(most: int, dim: Dimension) -> int:
    """Return the largest number of elements, up to some, that divides the size of a dimension."""
    most = min(most, dim.size)
    size = next(one for one in range(most, 0, -1) if dim.size % one == 0)
    if size == 1 < most:
        raise NamedMeshError(
            f"scaled_einsum: {dim} is summed over and cannot be cut into blocks of 2 to {most}",
            fix=f"give block= a divisor of {dim.size}, or {dim.size} for one block, "
            "or change the size",
        )
    return size


def send_in_8_bits(
    x: Tensor, *dims: Dimension, dtype: str = "float8_e4m3fn", gradients: str = "float8_e5m2"
) -> Tensor:
    """Return `nm.reshard` of a tensor that is sent in eight bits, and its cotangent back likewise.

    Args:
        x: A floating point tensor.
        *dims: The dimensions that take the axes the layout gives them.
        dtype: The dtype that the tensor is sent in.
        gradients: The dtype that the cotangent is sent in.

    Example:
        >>> G, E = nm.dims("group=8 expert=8")
        >>> program = nm.trace(lambda x: nm.send_in_8_bits(x, E), x=nm.spec([G, E], whole=[E]))
        >>> plan = nm.plan(program, nm.Mesh(all=8), "group:all, expert:all")
        >>> [(one.kind, one.dtype) for one in plan.collectives]
        [('AllReduce', 'float32'), ('AllToAll', 'float8_e4m3fn')]
    """
    for one in (dtype, gradients):
        _check_narrow("send_in_8_bits", one)

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        values, scale = quantize(x, dtype)
        return dequantize(reshard(values, *dims), scale, x.dtype), values

    def backward(values: Tensor, dy: Tensor) -> Tensor:
        sent, scale = quantize(dy, gradients)
        # As the cotangent of what was sent, it goes to where that came from.
        return dequantize(mark_cotangent(sent, values), scale, dy.dtype)

    return custom_vjp(forward, backward)(x)


def _check_narrow(what: str, dtype: str) -> str:
    """Return the name of a dtype of eight bits, or raise."""
    if dtype not in FLOATS8:
        fix = did_you_mean(str(dtype), FLOATS8)
        raise NamedMeshError(f"{what}: {dtype!r} is not a floating point dtype of 8 bits", fix=fix)
    return dtype


def _check_pair(operands: Sequence[Tensor], dims: Sequence[Dimension]) -> Sequence[Tensor]:
    """Return two operands; raise if a dimension of one is in neither the other nor the result."""
    tensors = check_tensors("scaled_einsum", operands, "nm.scaled_einsum([x, w], [B, H])")
    check_dtype_kind("scaled_einsum", "float", *tensors)
    problem = fix = ""
    if len(tensors) != 2:
        problem = f"{len(tensors)} operands, not two"
        fix = "multiply in pairs: rounding to eight bits depends on their order"
    else:
        a, b = ({*x.shape.names} for x in tensors)
        alone = sorted((a ^ b).difference(dim.name for dim in dims))
        if alone:
            problem = f"{name_all('dimension', alone)} of one operand alone is not in the result"
            fix = "sum over it before, with nm.sum"
    if problem:
        raise NamedMeshError(f"scaled_einsum: {problem}", *map(str, tensors), fix=fix)
    return tensors


def _cut(x: Tensor, dim: Dimension, size: int) -> Tensor:
    """Split a dimension into blocks, which keep its name and so its mesh axes."""
    if dim not in x.shape or not 0 < size <= dim.size or dim.size % size:
        problem = f"quantize: {x.label} cannot be cut along {dim} into blocks of {size}"
        fix = "name a dimension that it has, and a number that divides its size"
        raise NamedMeshError(problem, str(x), fix=fix)
    blocks = Dimension(dim.name, dim.size // size)
    return reshape(x, dim, [blocks, Dimension(f"{dim.name}_in_block", size)])


def _join(y: Tensor, like: Tensor) -> Tensor:
    """Merge what was split into blocks."""
    for dim in like.shape:
        if dim not in y.shape:
            parts = (y.shape.named(dim.name), y.shape.named(f"{dim.name}_in_block"))
            y = reshape(y, [part for part in parts if part is not None], dim)
    return y
