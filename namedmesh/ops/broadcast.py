"""Broadcasting and summing, each the other's derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.ir.context import Context
from namedmesh.ir.literal import align_array
from namedmesh.ir.op import Op
from namedmesh.ir.operands import (
    as_tuple,
    check_dtype_kind,
    check_has_dims,
    check_same_sizes,
    check_tensor,
    make_shape,
)
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import OPERATORS, Over, Tensor
from namedmesh.ops.shape import transpose


class Broadcast(Op):
    """A tensor repeated along new dimensions, all in order."""

    linear_in = ((0,),)
    by_name = True
    elementwise = True
    copies = True
    constant = True  # a loop may start with one: it is then placed as the layout has it
    shape: Shape

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        aligned = context.align(x, self.inputs[0].shape, self.shape)
        return context.tf.broadcast_to(aligned, context.sizes(self.shape))

    def fold(self, *arrays: Any) -> Any:
        array = align_array(arrays[0], self.inputs[0].shape, self.shape)
        return np.broadcast_to(array, self.shape.sizes)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [fit(dy, self.inputs[0].shape)]


def widen(dtype: str) -> str:
    """Return the dtype in which TensorFlow's kernels reduce numbers: narrow ones in 32 bits."""
    wider = {"bfloat16": "float32", "float16": "float32", "int8": "int32", "uint8": "uint32"}
    return wider.get(dtype, dtype)


class Sum(Op):
    """The sum over some dimensions."""

    linear_in = ((0,),)
    by_name = True
    sums = True
    over: tuple[Dimension, ...]

    @property
    def summed_in(self) -> str:
        return widen(self.output.dtype)

    def results(self) -> list[tuple[Shape, str]]:
        (x,) = self.inputs
        check_dtype_kind("sum", "complex", x, source=self.source)
        return [(x.shape.without(*(dim.name for dim in self.over)), x.dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        at = [self.inputs[0].shape.position(dim.name) for dim in self.over]
        return context.tf.reduce_sum(x, at)

    def fold(self, *arrays: Any) -> Any:
        return fold_sum(np.sum, arrays[0], self.inputs[0].shape, self.over)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [broadcast(dy, self.inputs[0].shape)]

    def flops(self) -> int:
        return self.inputs[0].shape.elements if self.inputs[0].floating else 0

    def placement(self) -> Placement:
        return Placement(reduced=[dim.name for dim in self.over])


def fold_sum(reduce: Any, array: Any, shape: Shape, over: Sequence[Dimension]) -> Any:
    """Reduce an array over some dimensions by a function of NumPy, floats in double precision."""
    at = tuple(shape.position(dim.name) for dim in over)
    wide = array.dtype if array.dtype.kind in "biu" else np.float64
    return reduce(array.astype(wide), at).astype(array.dtype)


def broadcast(x: Tensor, dims: Sequence[Dimension]) -> Tensor:
    """Return a tensor repeated along the dimensions it lacks, `x` itself if it lacks none.

    Ops broadcast by name: this is for results that must have a dimension. It moves no data.

    Args:
        x: The tensor.
        dims: Every dimension of the result, in order: those of `x` and the new ones.

    Example:
        >>> M = nm.Dimension("model", 3)
        >>> nm.evaluate(lambda x: nm.broadcast(x, [M]), x=([], 7))
        array([7, 7, 7], dtype=int32)
    """
    shape = make_shape("broadcast", dims, check_tensor("broadcast", x))
    check_same_sizes("broadcast", x, result=shape)
    missing = [dim.name for dim in x.shape if dim.name not in shape.names]
    if missing:
        problem = f"broadcast: the result lacks dimension {', '.join(missing)} of {x.label}"
        fix = f"add {', '.join(missing)} to the result, or sum over it first"
        raise NamedMeshError(problem, str(x), f"the result: {shape}", fix=fix)
    return x if shape == x.shape else Broadcast((x,), shape).output


def check_over(what: str, x: Tensor, over: Over) -> tuple[Dimension, ...]:
    """Return the dimensions to reduce over (all for None), each checked to be there once."""
    if over is None:
        return check_tensor(what, x).shape.dims
    dims = as_tuple(over)
    check_has_dims(what, x, *dims)
    twice = list(dict.fromkeys(str(dim) for i, dim in enumerate(dims) if dim in dims[:i]))
    if twice:
        verb = "is" if len(twice) == 1 else "are"
        problem = f"{what}: {name_all('dimension', twice)} {verb} named twice in over="
        fix = "name it once" if len(twice) == 1 else "name each once"
        raise NamedMeshError(problem, str(x), fix=fix)
    return dims


def leave_out(what: str, x: Tensor, where: Tensor | None, other: float | int | bool) -> Tensor:
    """Replace masked elements by a number that changes nothing."""
    if where is None:
        return x
    check_dtype_kind(f"{what}: where", "bool", check_tensor(f"{what}: where", where))
    return OPERATORS["where"](where, check_tensor(what, x), other)


def sum(x: Tensor, over: Over = None, *, where: Tensor | None = None) -> Tensor:
    """Return the sum over dimensions: partial sums and an AllReduce where they are split.

    Args:
        x: A tensor of numbers, added up in their dtype, or of bools, which are counted as int32.
        over: One dimension or several; all of them by default.
        where: A bool tensor, broadcast by name: elements where it is False do not count.

    Example:
        >>> nm.evaluate(nm.sum, x=(nm.dims("model=3"), [1, 2, 3]))
        array(6, dtype=int32)
    """
    x = OPERATORS["cast"](x, "int32") if check_tensor("sum", x).dtype == "bool" else x
    x = leave_out("sum", x, where, 0)
    dims = check_over("sum", x, over)
    return Sum((x,), dims).output if dims else x


def fit(dx: Tensor, shape: Shape) -> Tensor:
    """Bring a cotangent to its primal's shape: sums extra dimensions, broadcasts missing ones."""
    extra = [dim for dim in dx.shape if dim.name not in shape.names]
    if extra:
        dx = sum(dx, over=extra)
    if len(dx.shape) < len(shape):
        return broadcast(dx, shape)
    return dx if dx.shape == shape else transpose(dx, shape)


def group_by_missing(
    tensors: Sequence[Tensor], over: Sequence[Dimension]
) -> dict[tuple[Dimension, ...], list[int]]:
    """Group floating point tensors' positions by the dimensions they lack, to sum over."""
    groups: dict[tuple[Dimension, ...], list[int]] = {}
    for i, tensor in enumerate(tensors):
        if tensor.floating:
            groups.setdefault(tuple(dim for dim in over if dim not in tensor.shape), []).append(i)
    return groups
