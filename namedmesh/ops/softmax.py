"""Softmax and its kin: exponentials normalised over named dimensions, without overflow."""

from __future__ import annotations

from collections.abc import Sequence

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.operands import check_tensor
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.broadcast import sum
from namedmesh.ops.elementwise import stop_gradient
from namedmesh.ops.logic import where
from namedmesh.ops.mathematics import exp, log
from namedmesh.ops.reduce import check_float_over, find_peak
from namedmesh.ops.rounding import is_finite


def logsumexp(x: Tensor, over: Dimension | Sequence[Dimension] | None = None) -> Tensor:
    """Take the logarithm of the sum of exponentials over some dimensions, without overflow.

    Over a split dimension this is two AllReduces, of the maximum and of the sum.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.

    Returns:
        A tensor without those dimensions, of the same dtype.

    Raises:
        NamedMeshError: `x` is not floating point, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.logsumexp(x), x=([M], [1000.0, 0.0]))
        array(1000., dtype=float32)
    """
    dims = check_float_over("logsumexp", x, over)
    highest = stop_gradient(find_peak(x, dims))
    # An infinite peak would make inf - inf of what equals it, which is nan.
    peak = where(is_finite(highest), highest, 0.0)
    return log(sum(exp(x - peak), dims)) + peak


def softmax(x: Tensor, over: Dimension | Sequence[Dimension]) -> Tensor:
    """Take exponentials, normalised to sum to one over some dimensions, without overflow.

    Over a split dimension this is two AllReduces, of the maximum and of the sum.

    Args:
        x: A floating point tensor.
        over: One dimension or several.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.softmax(x, over=M), x=([M], [7.0, 7.0]))
        array([0.5, 0.5], dtype=float32)
    """
    dims = _check_named("softmax", x, over)
    exponentials = exp(x - stop_gradient(find_peak(x, dims)))
    return exponentials / sum(exponentials, dims)


def log_softmax(x: Tensor, over: Dimension | Sequence[Dimension]) -> Tensor:
    """Take the logarithm of the softmax over some dimensions, without overflow.

    Over a split dimension this is two AllReduces, of the maximum and of the sum.

    Args:
        x: A floating point tensor.
        over: One dimension or several.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` is not floating point, or does not have a dimension of `over`.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.log_softmax(x, over=M), x=([M], [1000.0, 0.0]))
        array([    0., -1000.], dtype=float32)
    """
    dims = _check_named("log_softmax", x, over)
    shifted = x - stop_gradient(find_peak(x, dims))
    return shifted - log(sum(exp(shifted), dims))


def _check_named(
    what: str, x: Tensor, over: Dimension | Sequence[Dimension]
) -> tuple[Dimension, ...]:
    """Return the dimensions of a normalisation, which must be named, or raises."""
    if over is None:
        raise NamedMeshError(
            f"{what}: over=None names no dimension",
            str(check_tensor(what, x)),
            fix="name one, e.g. over=S",
        )
    return check_float_over(what, x, over)
