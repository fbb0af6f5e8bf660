"""How far elements lie apart: variance and standard deviation."""

from __future__ import annotations

from collections.abc import Sequence

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.operands import check_int
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.arithmetic import maximum
from namedmesh.ops.broadcast import sum
from namedmesh.ops.mathematics import sqrt, square
from namedmesh.ops.reduce import check_float_over, count_where, mean


def var(
    x: Tensor,
    over: Dimension | Sequence[Dimension] | None = None,
    *,
    correction: int = 0,
    where: Tensor | None = None,
) -> Tensor:
    """Take the variance over some dimensions: the mean of squared distances from the mean.

    Over a split dimension this takes two AllReduces: of the sum, then of the squares.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.
        correction: What is taken off the number of elements before dividing by it: 1 for the
            unbiased variance of a sample.
        where: A bool tensor, by name: where it is False, an element does not count.

    Returns:
        A tensor without those dimensions, of the same dtype.

    Raises:
        NamedMeshError: `x` is not floating point or does not have a dimension of `over`, or there
            are no more elements than `correction`.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 4)
        >>> nm.evaluate(lambda x: nm.var(x), x=([M], [1.0, 2.0, 3.0, 4.0]))
        array(1.25, dtype=float32)
    """
    return _spread("var", x, over, correction, where)


def std(
    x: Tensor,
    over: Dimension | Sequence[Dimension] | None = None,
    *,
    correction: int = 0,
    where: Tensor | None = None,
) -> Tensor:
    """Take the standard deviation over some dimensions: the square root of `nm.var`.

    Its gradient is infinite where all elements are equal.

    Args:
        x: A floating point tensor.
        over: One dimension or several; all of them by default.
        correction: As for `nm.var`.
        where: As for `nm.var`.

    Returns:
        A tensor without those dimensions, of the same dtype.

    Raises:
        NamedMeshError: As for `nm.var`.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.std(x), x=([M], [1.0, 5.0]))
        array(2., dtype=float32)
    """
    return sqrt(_spread("std", x, over, correction, where))


def _spread(
    what: str,
    x: Tensor,
    over: Dimension | Sequence[Dimension] | None,
    correction: int,
    where: Tensor | None,
) -> Tensor:
    """Take the variance, in the name of a function."""
    dims = check_float_over(what, x, over)
    count = Shape(dims).elements - check_int(what, "correction", correction, x)
    if count < 1:
        raise NamedMeshError(
            f"{what}: correction {correction} leaves nothing of {Shape(dims).elements} elements",
            str(x),
            fix="give a smaller correction, or more elements",
        )
    squares = sum(square(x - mean(x, dims, where=where)), dims, where=where)
    if where is None:
        return squares * (1.0 / count)
    return squares / maximum(count_where(x, dims, where) - float(correction), 0.0)
