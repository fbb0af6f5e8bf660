"""Reductions over named dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.op import Op, Placement
from namedmesh.ir.operands import operand, require, several, takes
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.elementwise import cast, equal, exp, log, maximum, stop_gradient, where

_COMPUTE = {
    "sum": tf.reduce_sum, "max": tf.reduce_max, "min": tf.reduce_min, "prod": tf.reduce_prod,
    "any": tf.reduce_any, "all": tf.reduce_all,
}  # fmt: skip


@dataclass(eq=False)
class Reduce(Op):
    """Sum, max, min, prod, any or all over some dimensions."""

    function: str
    over: tuple[Dimension, ...]

    @property
    def kind(self) -> str:
        return self.function

    def results(self):
        (x,) = self.inputs
        takes(
            self.function,
            "bool" if self.function in ("any", "all") else "number",
            x,
            source=self.source,
        )
        return [(x.shape.without(*(dim.name for dim in self.over)), x.dtype)]

    def lower(self, context: Context, x):
        return _COMPUTE[self.function](
            x, [self.inputs[0].shape.position(dim.name) for dim in self.over]
        )

    def vjp(self, dy: Tensor):
        from namedmesh.ops.shape import broadcast

        (x,) = self.inputs
        if self.function == "sum":
            return [broadcast(dy, x.shape)]
        if self.function in ("max", "min"):
            winners = cast(equal(x, self.output), x.dtype)
            return [winners * (dy / sum(winners, over=self.over))]
        return [_prod_vjp(x, dy, self.over)]

    def flops(self) -> int:
        return self.inputs[0].shape.elements if self.inputs[0].floating else 0

    def placement(self) -> Placement:
        return Placement(reduced=frozenset(dim.name for dim in self.over))


def _prod_vjp(x: Tensor, dy: Tensor, over: Sequence[Dimension]) -> Tensor:
    """The product of all the other elements, without dividing by any: right also where some are zero."""
    zero = equal(x, 0.0)
    zeros = sum(cast(zero, x.dtype), over=over)
    others = prod(where(zero, 1.0, x), over=over)
    alone = where(equal(zeros, 1.0), others, 0.0)
    share = where(zero, alone, where(equal(zeros, 0.0), others, 0.0) / where(zero, 1.0, x))
    return dy * share


@dataclass(eq=False)
class ArgReduce(Op):
    """The index of the largest or smallest element along a dimension, the first at ties."""

    function: str
    over: Dimension

    @property
    def kind(self) -> str:
        return self.function

    @property
    def closed(self) -> bool:
        return True

    def results(self):
        return [(self.inputs[0].shape.without(self.over.name), "int32")]

    def lower(self, context: Context, x):
        compute = tf.argmax if self.function == "argmax" else tf.argmin
        return compute(x, self.inputs[0].shape.position(self.over.name), output_type=tf.int32)

    def vjp(self, dy: Tensor):
        return [None]

    def placement(self) -> Placement:
        return Placement(whole=frozenset([self.over.name]))


def _dims(
    what: str, x: Tensor, over: Dimension | Sequence[Dimension] | None
) -> tuple[Dimension, ...]:
    if over is None:
        return operand(what, x).shape.dims
    dims = several(over)
    require(what, x, *dims)
    for i, dim in enumerate(dims):
        if dim in dims[:i]:
            raise NamedMeshError(
                f"{what}: dimension {dim} is named twice in over=", str(x), fix="name it once"
            )
    return dims


def _float_dims(
    what: str, x: Tensor, over: Dimension | Sequence[Dimension] | None
) -> tuple[Dimension, ...]:
    dims = _dims(what, x, over)
    takes(what, "float", x)
    return dims


def _named_dims(
    what: str, x: Tensor, over: Dimension | Sequence[Dimension]
) -> tuple[Dimension, ...]:
    if over is None:
        raise NamedMeshError(
            f"{what}: over=None names no dimension",
            str(operand(what, x)),
            fix="name one, e.g. over=S",
        )
    return _float_dims(what, x, over)


def _reduce(function: str, x: Tensor, over: Dimension | Sequence[Dimension] | None) -> Tensor:
    dims = _dims(function, x, over)
    return Reduce((x,), function, dims).output if dims else x


def sum(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """The sum over some dimensions; over all without any."""
    return _reduce("sum", x, over)


def mean(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """The mean over some dimensions."""
    count = Shape(_float_dims("mean", x, over)).elements
    return sum(x, over) * (1.0 / count)


def max(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """The maximum over some dimensions."""
    return _reduce("max", x, over)


def min(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """The minimum over some dimensions."""
    return _reduce("min", x, over)


def prod(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """The product over some dimensions."""
    return _reduce("prod", x, over)


def any(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """Whether any element over some dimensions holds."""
    return _reduce("any", x, over)


def all(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """Whether all elements over some dimensions hold."""
    return _reduce("all", x, over)


def logsumexp(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """log of the sum of exponentials, without overflow."""
    dims = _float_dims("logsumexp", x, over)
    peak = stop_gradient(maximum(max(x, dims), _lowest(x)))
    return log(sum(exp(x - peak), dims)) + peak


def softmax(x: Tensor, over: Dimension | Sequence[Dimension]) -> Tensor:
    """Exponentials normalised to sum to one over some dimensions."""
    dims = _named_dims("softmax", x, over)
    e = exp(x - stop_gradient(max(x, dims)))
    return e / sum(e, dims)


def log_softmax(x: Tensor, over: Dimension | Sequence[Dimension]) -> Tensor:
    """The logarithm of softmax, without overflow."""
    dims = _named_dims("log_softmax", x, over)
    shifted = x - stop_gradient(max(x, dims))
    return shifted - log(sum(exp(shifted), dims))


def _lowest(x: Tensor) -> float:
    return -6e4 if x.dtype == "float16" else -1e38


def argmax(x: Tensor, over: Dimension) -> Tensor:
    """The index of the largest element along a dimension, the first at ties."""
    require("argmax", x, over)
    return ArgReduce((x,), "argmax", over).output


def argmin(x: Tensor, over: Dimension) -> Tensor:
    """The index of the smallest element along a dimension, the first at ties."""
    require("argmin", x, over)
    return ArgReduce((x,), "argmin", over).output
