"""The elements that a mask selects, moved to the front of a dimension of fixed size."""

from __future__ import annotations

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.operands import check_dimension, check_dtype_kind, check_has_dims, check_tensor
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.cumulative import cumsum
from namedmesh.ops.elementwise import cast
from namedmesh.ops.index import scatter_add
from namedmesh.ops.logic import where
from namedmesh.ops.shape import transpose


def compress(x: Tensor, mask: Tensor, dim: Dimension, into: Dimension) -> Tensor:
    """Take the elements along a dimension that a mask selects, in order.

    How many there are is known only when the step runs, so the result has a size of its own:
    zeros follow those that there are, and those for which there is no room are left out. Count
    them with `nm.sum(nm.cast(mask, "int32"), over=dim)`.

    Args:
        x: The tensor.
        mask: A bool tensor that has the dimension, and perhaps others of `x`, for each of which it
            selects by itself.
        dim: The dimension.
        into: The dimension that takes its place, of any size.

    Returns:
        A tensor of the dtype of `x`, with `into` in the place of `dim`.

    Raises:
        NamedMeshError: `x` or the mask lacks the dimension, the mask is not bool or has a dimension
            that `x` has not, or `x` has `into` already.

    Example:
        >>> import namedmesh as nm
        >>> S, K = nm.dims("seq=5 kept=3")
        >>> def positive(x):
        ...     return nm.compress(x, x > 0, S, K)
        >>> nm.evaluate(positive, x=([S], [-1, 4, -2, 7, -3]))
        array([4, 7, 0], dtype=int32)
    """
    check_has_dims("compress", x, dim)
    check_has_dims("compress", mask, dim)
    check_dtype_kind("compress: mask", "bool", check_tensor("compress", mask))
    check_has_dims("compress", x, *mask.shape)
    if into.name != dim.name and x.shape.named(check_dimension("compress", into, x).name):
        raise NamedMeshError(
            f"compress: {x.label} has {into.name} already",
            str(x),
            fix="give a dimension of another name",
        )
    if x.dtype == "bool":
        return cast(compress(cast(x, "int32"), mask, dim, into), "bool")
    place = where(mask, cumsum(cast(mask, "int32"), dim) - 1, -1)
    batch = [other for other in mask.shape if other != dim]
    found = scatter_add(x, place, into, batch)
    order = [into if own == dim else own for own in x.shape]
    return transpose(found, order)
