"""Activation functions, softmax among them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.operands import as_tuple
from namedmesh.ir.tensor import Operand, Over, Tensor, label_as
from namedmesh.ops.broadcast import sum
from namedmesh.ops.elementwise import elementwise, stop_gradient
from namedmesh.ops.logic import where
from namedmesh.ops.mathematics import erf, exp, is_finite, log, maximum, minimum
from namedmesh.ops.reduce import check_float_over, find_peak


@elementwise("tanh", lambda dy, y, x: [dy * (1.0 - y * y)], takes="float")
def tanh(x: Operand) -> Tensor:
    """Return the hyperbolic tangent of every element.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.tanh, x=(nm.dims("model=3"), [-20.0, 0.0, 20.0]))
        array([-1.,  0.,  1.], dtype=float32)
    """
    ...


@elementwise("sigmoid", lambda dy, y, x: [dy * y * (1.0 - y)], takes="float")
def sigmoid(x: Operand) -> Tensor:
    """Return the logistic function of every element, 1 / (1 + exp(-x)).

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.sigmoid, x=(nm.dims("model=3"), [-200.0, 0.0, 200.0]))
        array([0. , 0.5, 1. ], dtype=float32)
    """
    ...


@elementwise("math.softplus", lambda dy, y, x: [dy * sigmoid(x)], takes="float", long=True)
def softplus(x: Operand) -> Tensor:
    """Return log(1 + exp(x)) of every element, without overflow.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.softplus, x=(nm.dims("model=2"), [-1000.0, 1000.0]))
        array([   0., 1000.], dtype=float32)
    """
    ...


@elementwise("nn.relu", lambda dy, y, x: [where(y > 0, dy, 0.0)])
def relu(x: Operand) -> Tensor:
    """Return positive elements as they are, zero for all others; the gradient at zero is zero.

    Args:
        x: A tensor of numbers, or a number.

    Example:
        >>> nm.evaluate(nm.relu, x=(nm.dims("model=3"), [-1.0, 0.0, 2.0]))
        array([0., 0., 2.], dtype=float32)
    """
    ...


def gelu(x: Operand) -> Tensor:
    """Return the exact Gaussian error linear unit: x times the normal distribution of x.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.gelu, x=(nm.dims("model=2"), [0.0, 20.0]))
        array([ 0., 20.], dtype=float32)
    """
    x = as_tensor("gelu", x)
    return label_as("gelu", x * 0.5 * (erf(x * math.sqrt(0.5)) + 1.0))


def swish(x: Operand) -> Tensor:
    """Return every element times its sigmoid (also called SiLU).

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.swish, x=(nm.dims("model=2"), [0.0, 200.0]))
        array([  0., 200.], dtype=float32)
    """
    x = as_tensor("swish", x)
    return label_as("swish", x * sigmoid(x))


def leaky_relu(x: Operand, slope: float = 0.2) -> Tensor:
    """Return positive elements as they are, all others times a small slope.

    Args:
        x: A floating point tensor, or a number.
        slope: The factor of elements that are not positive.

    Example:
        >>> nm.evaluate(lambda x: nm.leaky_relu(x, slope=0.5), x=(nm.dims("model=2"), [-1.0, 2.0]))
        array([-0.5,  2. ], dtype=float32)
    """
    x = as_tensor("leaky_relu", x)
    return label_as("leaky_relu", where(x > 0, x, x * slope))


def elu(x: Operand) -> Tensor:
    """Return positive elements as they are, exp(x) - 1 of all others.

    Args:
        x: A floating point tensor, or a number.

    Example:
        >>> nm.evaluate(nm.elu, x=(nm.dims("model=3"), [-200.0, 0.0, 2.0]))
        array([-1.,  0.,  2.], dtype=float32)
    """
    x = as_tensor("elu", x)
    return label_as("elu", where(x > 0, x, exp(minimum(x, 0.0)) - 1.0))


def logsumexp(x: Tensor, over: Over = None, *, extra: Operand | None = None) -> Tensor:
    """Return log(sum(exp(x))), without overflow: AllReduces of the maximum and the sum if split.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.
        extra: One logit more: a number, or a tensor without these dimensions.

    Example:
        >>> nm.evaluate(nm.logsumexp, x=(nm.dims("model=2"), [1000.0, 0.0]))
        array(1000., dtype=float32)
    """
    dims = check_float_over("logsumexp", x, over)
    highest = _find_highest("logsumexp", x, dims, extra)
    # An infinite peak would make inf - inf of what equals it, which is nan.
    peak = where(is_finite(highest), highest, 0.0)
    return label_as("logsumexp", log(_total(exp(x - peak), dims, extra, peak)) + peak)


def softmax(
    x: Tensor, over: Dimension | Sequence[Dimension], *, extra: Operand | None = None
) -> Tensor:
    """Return exponentials normalised to sum to one; it communicates as `nm.logsumexp` does.

    Args:
        x: A floating point tensor.
        over: One dimension or several.
        extra: One logit more, whose share is left out: attention to nothing. A number, or a tensor
            without these dimensions.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.softmax(x, over=M), x=([M], [7.0, 7.0]))
        array([0.5, 0.5], dtype=float32)
    """
    dims = check_float_over("softmax", x, as_tuple(over))
    peak = _find_highest("softmax", x, dims, extra)
    exponentials = exp(x - peak)
    return label_as("softmax", exponentials / _total(exponentials, dims, extra, peak))


def _find_highest(what: str, x: Tensor, dims: Sequence[Dimension], extra: Operand | None) -> Tensor:
    """Return the largest logit, through which no gradient flows."""
    highest = find_peak(x, dims)
    if isinstance(extra, Tensor) and any(dim in extra.shape for dim in dims):
        problem = f"{what}: the extra logit {extra.label} has a dimension that is summed over"
        raise NamedMeshError(problem, str(extra), fix="give one logit, without that dimension")
    return stop_gradient(highest if extra is None else maximum(highest, extra))


def _total(
    exponentials: Tensor, dims: Sequence[Dimension], extra: Operand | None, peak: Tensor
) -> Tensor:
    """Add up exponentials, and that of one logit more."""
    total = sum(exponentials, dims)
    return total if extra is None else total + exp(extra - peak)


def log_softmax(x: Tensor, over: Dimension | Sequence[Dimension]) -> Tensor:
    """Return the logarithm of the softmax over dimensions, without overflow.

    Args:
        x: A floating point tensor.
        over: One dimension or several.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.log_softmax(x, over=M), x=([M], [1000.0, 0.0]))
        array([    0., -1000.], dtype=float32)
    """
    dims = check_float_over("log_softmax", x, as_tuple(over))
    shifted = x - stop_gradient(find_peak(x, dims))
    return label_as("log_softmax", shifted - log(sum(exp(shifted), dims)))
