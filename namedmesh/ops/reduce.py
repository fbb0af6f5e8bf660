"""Reductions over named dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.op import Op, Placement
from namedmesh.ir.operands import check_dtype_kind, check_has_dims, check_tensor
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.arithmetic import maximum
from namedmesh.ops.broadcast import check_over, sum
from namedmesh.ops.elementwise import cast, stop_gradient
from namedmesh.ops.logic import equal, where
from namedmesh.ops.mathematics import exp, log


class Reduce(Op):
    """The maximum, minimum or product over some dimensions, or whether any or all elements hold."""

    function: str
    over: tuple[Dimension, ...]

    @property
    def kind(self) -> str:
        return self.function

    def results(self):
        (x,) = self.inputs
        check_dtype_kind(
            self.function,
            "bool" if self.function in ("any", "all") else "number",
            x,
            source=self.source,
        )
        return [(x.shape.without(*(dim.name for dim in self.over)), x.dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        at = [self.inputs[0].shape.position(dim.name) for dim in self.over]
        return getattr(context.tf, f"reduce_{self.function}")(x, at)

    def vjp(self, dy: Tensor):
        (x,) = self.inputs
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

    def lower(self, context: Context, x: Any) -> Any:
        tf = context.tf
        compute = tf.argmax if self.function == "argmax" else tf.argmin
        return compute(x, self.inputs[0].shape.position(self.over.name), output_type=tf.int32)

    def vjp(self, dy: Tensor):
        return [None]

    def placement(self) -> Placement:
        return Placement(whole=frozenset([self.over.name]))


def _check_float(
    what: str, x: Tensor, over: Dimension | Sequence[Dimension] | None
) -> tuple[Dimension, ...]:
    dims = check_over(what, x, over)
    check_dtype_kind(what, "float", x)
    return dims


def _check_named(
    what: str, x: Tensor, over: Dimension | Sequence[Dimension]
) -> tuple[Dimension, ...]:
    if over is None:
        raise NamedMeshError(
            f"{what}: over=None names no dimension",
            str(check_tensor(what, x)),
            fix="name one, e.g. over=S",
        )
    return _check_float(what, x, over)


def _reduce(function: str, x: Tensor, over: Dimension | Sequence[Dimension] | None) -> Tensor:
    dims = check_over(function, x, over)
    return Reduce((x,), function, dims).output if dims else x


def mean(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """The mean over some dimensions."""
    count = Shape(_check_float("mean", x, over)).elements
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
    dims = _check_float("logsumexp", x, over)
    peak = stop_gradient(maximum(max(x, dims), _lowest(x)))
    return log(sum(exp(x - peak), dims)) + peak


def softmax(x: Tensor, over: Dimension | Sequence[Dimension]) -> Tensor:
    """Exponentials normalised to sum to one over some dimensions."""
    dims = _check_named("softmax", x, over)
    e = exp(x - stop_gradient(max(x, dims)))
    return e / sum(e, dims)


def log_softmax(x: Tensor, over: Dimension | Sequence[Dimension]) -> Tensor:
    """The logarithm of softmax, without overflow."""
    dims = _check_named("log_softmax", x, over)
    shifted = x - stop_gradient(max(x, dims))
    return shifted - log(sum(exp(shifted), dims))


def _lowest(x: Tensor) -> float:
    return -6e4 if x.dtype == "float16" else -1e38


def argmax(x: Tensor, over: Dimension) -> Tensor:
    """The index of the largest element along a dimension, the first at ties."""
    check_has_dims("argmax", x, over)
    return ArgReduce((x,), "argmax", over).output


def argmin(x: Tensor, over: Dimension) -> Tensor:
    """The index of the smallest element along a dimension, the first at ties."""
    check_has_dims("argmin", x, over)
    return ArgReduce((x,), "argmin", over).output
