"""Matrices along two dimensions of a tensor: their diagonals, and what is on either side."""

from __future__ import annotations

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.interface import check_dtype
from namedmesh.ir.operands import check_dimension, check_has_dims, check_int
from namedmesh.ir.tensor import Tensor, label_as
from namedmesh.ops.constants import range as count
from namedmesh.ops.elementwise import cast
from namedmesh.ops.gather import gather
from namedmesh.ops.logic import equal, where
from namedmesh.ops.shape import transpose
from namedmesh.ops.slices import slice


def eye(rows: Dimension, columns: Dimension, dtype: str = "float32") -> Tensor:
    """Return ones where row and column are the same number, and zeros elsewhere.

    Args:
        rows: The first dimension.
        columns: The second one.
        dtype: The dtype of the result.

    Example:
        >>> nm.evaluate(lambda: nm.eye(*nm.dims("row=2 column=3"), "int32"))
        array([[1, 0, 0],
               [0, 1, 0]], dtype=int32)
    """
    _check_pair("eye", rows, columns)
    return cast(equal(count(rows), count(columns)), check_dtype(dtype))


def tril(x: Tensor, rows: Dimension, columns: Dimension, offset: int = 0) -> Tensor:
    """Return a tensor with zeros above a diagonal of its rows and columns.

    Args:
        x: The tensor.
        rows: The dimension of its rows.
        columns: The dimension of its columns.
        offset: The diagonal that is kept: 0 the main one, 1 the one above it.

    Example:
        >>> R, C = nm.dims("row=2 column=2")
        >>> nm.evaluate(lambda x: nm.tril(x, R, C), x=([R, C], [[1, 2], [3, 4]]))
        array([[1, 0],
               [3, 4]], dtype=int32)
    """
    return _keep("tril", x, rows, columns, offset)


def triu(x: Tensor, rows: Dimension, columns: Dimension, offset: int = 0) -> Tensor:
    """Return a tensor with zeros below a diagonal of its rows and columns.

    Args:
        x: The tensor.
        rows: The dimension of its rows.
        columns: The dimension of its columns.
        offset: The diagonal that is kept: 0 the main one, 1 the one above it.

    Example:
        >>> R, C = nm.dims("row=2 column=2")
        >>> nm.evaluate(lambda x: nm.triu(x, R, C), x=([R, C], [[1, 2], [3, 4]]))
        array([[1, 2],
               [0, 4]], dtype=int32)
    """
    return _keep("triu", x, rows, columns, offset)


def diagonal(x: Tensor, rows: Dimension, columns: Dimension) -> Tensor:
    """Return the elements whose row and column are the same number, along the rows.

    Args:
        x: The tensor.
        rows: The dimension of its rows; the result has as many as there are on the diagonal.
        columns: The dimension of its columns, which the result lacks.

    Example:
        >>> R, C = nm.dims("row=2 column=2")
        >>> nm.evaluate(lambda x: nm.diagonal(x, R, C), x=([R, C], [[1, 2], [3, 4]]))
        array([1, 4], dtype=int32)
    """
    _check_pair("diagonal", rows, columns, x)
    if rows.size > columns.size:
        x, rows = slice(x, rows, 0, columns.size), rows.resized(columns.size)
    found = gather(x, count(rows), columns)
    return label_as("diagonal", transpose(found, x.shape.without(columns.name)))


def _keep(what: str, x: Tensor, rows: Dimension, columns: Dimension, offset: int) -> Tensor:
    """Keep what is on one side of a diagonal, and on it."""
    _check_pair(what, rows, columns, x)
    above = count(columns) - count(rows) - check_int(what, "offset", offset, x)
    kept = above <= 0 if what == "tril" else above >= 0
    zero = False if x.dtype == "bool" else 0
    return label_as(what, transpose(where(kept, x, zero), x.shape))


def _check_pair(what: str, rows: Dimension, columns: Dimension, x: Tensor | None = None) -> None:
    """Raise unless rows and columns are two dimensions, of a tensor if there is one."""
    check_dimension(what, rows)
    if rows.name == check_dimension(what, columns).name:
        raise NamedMeshError(
            f"{what}: rows and columns are both {rows.name}", fix="give two dimensions"
        )
    if x is not None:
        check_has_dims(what, x, rows, columns)
