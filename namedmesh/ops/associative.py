"""Running results of any associative function along a dimension, in parallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.operands import check_callable, check_has_dims
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.elementwise import cast
from namedmesh.ops.join import concat
from namedmesh.ops.shape import transpose
from namedmesh.ops.slices import Pad, slice
from namedmesh.ops.slices import reverse as reverse_dim
from namedmesh.signature.nest import flatten, unflatten


def associative_scan(
    function: Callable[[Any, Any], Any], xs: Any, dim: Dimension, reverse: bool = False
) -> Any:
    """Return running results of an associative function along a dimension, in parallel.

    The first result is the first element, the next is the function of that and the second element,
    and so on: `nm.cumsum` is the one of addition. All are found in 2 log2(size) calls on whole
    tensors, where `nm.scan` makes one after the other. A linear recurrence is one of pairs: see the
    example.

    Args:
        function: Takes two values, each nested as `xs` is, with the dimension at some smaller size,
            and returns one, element by element along it. It must be associative.
        xs: Tensors that have the dimension, nested as you like.
        dim: The dimension.
        reverse: Whether to start at the end.

    Example:
        >>> S = nm.Dimension("seq", 4)
        >>> def step(first, second):  # h = a h + b, as pairs (a, b)
        ...     (a, b), (c, d) = first, second
        ...     return a * c, b * c + d
        >>> def states(a, b):
        ...     return nm.associative_scan(step, (a, b), S)[1]
        >>> nm.evaluate(states, a=([S], [0.5, 0.5, 2.0, 2.0]), b=([S], [1.0, 1.0, 1.0, 1.0]))
        array([1. , 1.5, 4. , 9. ], dtype=float32)
    """
    check_callable("associative_scan", function)
    leaves = [as_tensor("associative_scan", leaf) for leaf in flatten(xs)]
    if not leaves:
        raise NamedMeshError(
            "associative_scan: there is nothing to scan", fix="give a tensor, or several"
        )
    for leaf in leaves:
        check_has_dims("associative_scan", leaf, dim)

    def combine(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Tensor]:
        # From the end the function meets its operands in the order in which they come.
        made = function(unflatten(xs, iter(first)), unflatten(xs, iter(second)))
        results = [as_tensor("associative_scan", leaf) for leaf in flatten(made)]
        unlike = [
            f"{one} for {x.dtype}{x.shape}"
            for one, x in zip(results, first, strict=False)
            if {*one.shape} != {*x.shape} or one.dtype != x.dtype
        ]
        if unlike or len(results) != len(first):
            raise NamedMeshError(
                f"associative_scan: the function returned {len(results)} tensors "
                f"for {len(first)}, or others than it was given",
                *unlike,
                fix="return tensors of the same dims and dtypes, nested alike",
            )
        return [transpose(one, x.shape) for one, x in zip(results, first, strict=True)]

    if reverse:
        leaves = [reverse_dim(leaf, dim) for leaf in leaves]
    found = _halve(combine, leaves, dim)
    if reverse:
        found = [reverse_dim(leaf, dim) for leaf in found]
    return unflatten(xs, iter(found))


def _halve(
    combine: Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]],
    xs: Sequence[Tensor],
    dim: Dimension,
) -> list[Tensor]:
    """Combine neighbours, scan what is half as long, and fill in those between."""
    size = dim.size
    if size < 2:
        return list(xs)
    half = size // 2
    pairs = combine(_every_other(xs, dim, 0, half), _every_other(xs, dim, 1, half))
    odd = _halve(combine, pairs, dim.resized(half))
    rest = (size - 1) // 2
    first = [slice(x, dim, 0, 1) for x in xs]
    if not rest:
        return _interleave(first, odd, dim)
    left = [slice(x, dim.resized(half), 0, rest) for x in odd]
    inner = combine(left, _every_other(xs, dim, 2, rest))
    even = [concat(pair, dim.name) for pair in zip(first, inner, strict=True)]
    return _interleave(even, odd, dim)


def _as_number(x: Tensor) -> Tensor:
    return cast(x, "int32") if x.dtype == "bool" else x


def _every_other(xs: Sequence[Tensor], dim: Dimension, start: int, size: int) -> list[Tensor]:
    """Take every second element."""
    return [slice(x, dim, start, size, 2 if size > 1 else 1) for x in xs]


def _interleave(even: Sequence[Tensor], odd: Sequence[Tensor], dim: Dimension) -> list[Tensor]:
    """Put elements in between others, starting with the even ones."""
    results = []
    for one, other in zip(even, odd, strict=True):
        count, between = (x.shape.size_of(dim.name) for x in (one, other))
        low = Pad((_as_number(one),), dim.resized(count), 0, dim.size - 2 * count + 1, 1, 0).output
        high = Pad((_as_number(other),), dim.resized(between), 1, dim.size - 2 * between, 1, 0)
        results.append(cast(low + high.output, one.dtype))
    return results
