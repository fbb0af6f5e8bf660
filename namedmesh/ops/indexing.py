"""What `x[H, 3]` and `x[{H: i, W: j}]` read: one index, some in a row, or those of a tensor."""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.format import describe_type
from namedmesh.ir.literal import fill, plain_number
from namedmesh.ir.operands import check_has_dims, check_tensor, is_list
from namedmesh.ir.tensor import OPERATORS, Tensor
from namedmesh.ops.constants import constant
from namedmesh.ops.index import check_indices, gather
from namedmesh.ops.logic import equal, where
from namedmesh.ops.shape import name_apart, reshape, transpose
from namedmesh.ops.windows import reverse, slice

EXAMPLE = "write x[H, 3], x[H, 1:5], x[H, indices] or x[{H: i, W: j}]"


@dataclasses.dataclass(frozen=True)
class Series:
    """Elements in a row, or every so many, backwards where the step is negative."""

    start: int  # of the lowest
    size: int
    step: int

    @property
    def numbers(self) -> list[int]:
        """The indices, in order."""
        upward = [self.start + i * abs(self.step) for i in range(self.size)]
        return upward if self.step > 0 else upward[::-1]

    def contains(self, numbers: Tensor) -> Tensor:
        """Return whether numbers are among the indices."""
        step = abs(self.step)
        inside = (numbers >= self.start) & (numbers <= self.start + (self.size - 1) * step)
        return inside & equal((numbers - self.start) % step, 0) if step > 1 else inside


Selector = int | Series | Tensor


def read_index(x: Tensor, index: Any) -> Tensor:
    """Read what an index selects; what it does not name is taken whole."""
    chosen = parse_index(x, index)
    for dim, selector in chosen.items():
        if isinstance(selector, Series):
            stride = abs(selector.step)
            x = slice(x, dim, selector.start, selector.size, stride)
            x = reverse(x, dim.resized(selector.size)) if selector.step < 0 else x
        elif isinstance(selector, int):
            x = gather(x, fill(Shape(), selector, "int32"), dim)
    tensors = {dim: one for dim, one in chosen.items() if isinstance(one, Tensor)}
    if not tensors:
        return x
    along, indices, merged = merge_indices(x, tensors)
    read = gather(merged, indices, along)
    others = [dim for dim in merged.shape if dim != along]
    own = [dim for dim in indices.shape if dim not in others]
    order = [d for dim in merged.shape for d in (own if dim == along else [dim])]
    return transpose(read, [dim for dim in order if dim in read.shape])


def take(x: Tensor, dim: Dimension, index: int | Tensor) -> Tensor:
    """Take what lies at an index along a dimension: `x[dim, index]` as a function.

    Where the dimension is split, every device reads what it has, and an AllReduce joins the
    results.

    Args:
        x: The tensor.
        dim: The dimension.
        index: A whole number, from the end where it is negative; or a tensor of whole numbers,
            whose dimensions take the place of `dim`, and zeros are read for those outside.

    Returns:
        A tensor of the dtype of `x`.

    Raises:
        NamedMeshError: `x` does not have the dimension, the index is not whole, or a number lies
            outside.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.take(x, M, -1), x=([B, M], [[1, 2, 3], [4, 5, 6]]))
        array([3, 6], dtype=int32)
    """
    return read_index(check_tensor("take", x), {dim: index})


def parse_index(x: Tensor, index: Any) -> dict[Dimension, Selector]:
    """Return what is selected of each dimension that an index names, each checked."""
    if isinstance(index, Mapping):
        pairs = list(index.items())
    elif isinstance(index, tuple) and len(index) % 2 == 0:
        pairs = list(zip(index[::2], index[1::2], strict=True))
    else:
        raise NamedMeshError(
            f"{x.label} cannot be indexed by position: dimensions have names", str(x), fix=EXAMPLE
        )
    chosen: dict[Dimension, Selector] = {}
    for dim, selector in pairs:
        check_has_dims("index", x, dim)
        if dim in chosen:
            raise NamedMeshError(f"index: {dim} is indexed twice", str(x), fix=EXAMPLE)
        chosen[dim] = _parse_selector(x, dim, selector)
    return chosen


def _parse_selector(x: Tensor, dim: Dimension, selector: Any) -> Selector:
    """Return what is selected of one dimension, or raises."""
    if isinstance(selector, builtins.slice):
        return _parse_series(x, dim, selector)
    if isinstance(selector, Tensor):
        if selector.dtype == "bool":
            raise NamedMeshError(
                f"index: how many of {dim} a mask selects is not known while tracing",
                str(x),
                str(selector),
                fix="use nm.where(mask, x, 0), nm.compress(x, mask, dim, into), "
                "or where=mask of a reduction",
            )
        return check_indices("index", selector)
    if is_list(selector) or isinstance(selector, np.ndarray):
        numbers = [_parse_number(x, dim, number) for number in selector]
        return constant(np.array(numbers, "int32"), [dim.resized(len(numbers))])
    return _parse_number(x, dim, selector)


def _parse_number(x: Tensor, dim: Dimension, selector: Any) -> int:
    """Return a whole number inside the dimension, counted from its start."""
    number = plain_number(selector)
    if not isinstance(number, int) or isinstance(number, bool):
        raise NamedMeshError(
            f"index: {describe_type(selector)} does not index {dim}", str(x), fix=EXAMPLE
        )
    if not -dim.size <= number < dim.size:
        raise NamedMeshError(
            f"index: {number} lies outside {dim}",
            str(x),
            fix=f"give a number from {-dim.size} to {dim.size - 1}",
        )
    return number % dim.size


def _parse_series(x: Tensor, dim: Dimension, selector: builtins.slice) -> Series:
    """Return the elements in a row that a slice of Python's selects."""
    try:
        numbers = range(dim.size)[selector]
    except (TypeError, ValueError):
        raise NamedMeshError(
            f"index: {selector} does not index {dim}",
            str(x),
            fix="give whole numbers; use nm.dynamic_slice for a start that is a tensor",
        ) from None
    if not numbers:
        raise NamedMeshError(
            f"index: {selector} selects nothing of {dim}", str(x), fix="select at least one"
        )
    return Series(min(numbers), len(numbers), numbers.step)


def merge_indices(
    x: Tensor, chosen: Mapping[Dimension, Tensor]
) -> tuple[Dimension, Tensor, Tensor]:
    """Merge the dimensions that tensors index into one; returns it, its index, and x with it.

    The index is outside where one of them is.
    """
    dims = list(chosen)
    if len(dims) == 1:
        return dims[0], chosen[dims[0]], x
    both = Dimension("_".join(dim.name for dim in dims), Shape(dims).elements)
    merged = name_apart(both, "merged", x, *chosen.values())
    index, inside = None, None
    for dim, one in chosen.items():
        fits = (one >= 0) & (one < dim.size)
        index = one if index is None else index * dim.size + one
        inside = fits if inside is None else inside & fits
    assert index is not None and inside is not None
    return merged, where(inside, index, -1), reshape(x, dims, merged)


OPERATORS["getitem"] = read_index
