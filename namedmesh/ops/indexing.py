"""Reading and changing by index: x[H, 3], x.at[H, 3].set(y), elements that a mask selects."""

from __future__ import annotations

import builtins
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from operator import and_
from typing import Any

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, check_word
from namedmesh.errors.mistakes import Explained
from namedmesh.ir.context import Context
from namedmesh.ir.format import describe_type
from namedmesh.ir.literal import as_tensor, fill, plain_number
from namedmesh.ir.operands import (
    as_tuple,
    check_dimension,
    check_dtype_kind,
    check_has_dims,
    check_one_dtype,
    check_tensor,
    is_list,
)
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import OPERATORS, Operand, Tensor
from namedmesh.ops.broadcast import broadcast
from namedmesh.ops.constants import constant
from namedmesh.ops.constants import range as count
from namedmesh.ops.cumulative import cumsum
from namedmesh.ops.elementwise import cast
from namedmesh.ops.gather import Scatter, check_indices, gather, scatter_add
from namedmesh.ops.logic import equal, where
from namedmesh.ops.mathematics import maximum, minimum
from namedmesh.ops.reduce import prod
from namedmesh.ops.shape import name_apart, rename, reshape, transpose
from namedmesh.ops.slices import Pad, reverse, slice
from namedmesh.ops.sorting import from_order_keys, order_keys

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
    own = [dim for dim in indices.shape if dim == along or dim not in merged.shape]
    order = [d for dim in merged.shape for d in (own if dim == along else [dim])]
    return transpose(read, [dim for dim in order if dim in read.shape])


def take(x: Tensor, dim: Dimension, index: int | Tensor) -> Tensor:
    """Return what is at an index along a dimension: `x[dim, index]`, as `nm.gather` reads it.

    Args:
        x: The tensor.
        dim: The dimension.
        index: A whole number, or a tensor of them, whose dimensions take the place of `dim`.

    Example:
        >>> M = nm.Dimension("model", 3)
        >>> nm.evaluate(lambda x: nm.take(x, M, -1), x=([M], [1, 2, 3]))
        array(3, dtype=int32)
    """
    return read_index(check_tensor("take", x), (dim, index))


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
    for name, selector in pairs:
        dim: Any = x.shape.named(name) if isinstance(name, str) else name
        dim = dim or name
        check_has_dims("index", x, dim)
        if dim in chosen:
            raise NamedMeshError(f"index: {dim} is indexed twice", str(x), fix=EXAMPLE)
        chosen[dim] = _parse_selector(x, dim, selector)
    return chosen


def _parse_selector(x: Tensor, dim: Dimension, selector: Any) -> Selector:
    """Return what is selected of one dimension, or raise."""
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
        fix = f"give a number from {-dim.size} to {dim.size - 1}"
        raise NamedMeshError(f"index: {number} is outside {dim}", str(x), fix=fix)
    return number % dim.size


def _parse_series(x: Tensor, dim: Dimension, selector: builtins.slice) -> Series:
    """Return the elements in a row that a slice of Python's selects."""
    try:
        numbers = range(dim.size)[selector]
    except (TypeError, ValueError):
        fix = "give whole numbers; use nm.dynamic_slice for a start that is a tensor"
        raise NamedMeshError(f"index: {selector} does not index {dim}", str(x), fix=fix) from None
    if not numbers:
        raise NamedMeshError(
            f"index: {selector} selects nothing of {dim}", str(x), fix="select at least one"
        )
    return Series(min(numbers), len(numbers), numbers.step)


def merge_indices(
    x: Tensor, chosen: Mapping[Dimension, Tensor]
) -> tuple[Dimension, Tensor, Tensor]:
    """Merge the dimensions that tensors index; return the merged one, its index, and x."""
    # An index outside one of them is outside the merged dimension: -1.
    dims = list(chosen)
    if len(dims) == 1:
        return dims[0], chosen[dims[0]], x
    both = Dimension("_".join(dim.name for dim in dims), Shape(dims).elements)
    merged = name_apart(both, "merged", x, *chosen.values())
    index = _count_through(chosen)
    inside = functools.reduce(and_, ((one >= 0) & (one < dim.size) for dim, one in chosen.items()))
    return merged, where(inside, index, -1), reshape(x, dims, merged)


def _count_through(indices: Mapping[Dimension, Tensor]) -> Tensor:
    """Return the row-major index of elements from their indices along several dimensions."""
    (_, index), *others = indices.items()
    for dim, one in others:
        index = index * dim.size + one
    return index


OPERATORS["getitem"] = read_index
OPERATORS["gather_several"] = lambda x, indices, dim: read_index(
    x, pair_indices("gather", indices, dim)
)


class ScatterExtreme(Scatter):
    """The largest or smallest update at each index along a dimension."""

    function: str  # type: ignore[misc]

    @property
    def kind(self) -> str:
        return f"scatter_{self.function}"

    def start(self, dtype: Any) -> Any:
        least = self.function == "max"
        if not self.output.floating:
            return dtype.min if least else dtype.max
        end = np.array(np.inf, "float64" if dtype.size == 8 else "float32").view(f"i{dtype.size}")
        return -int(end) if least else int(end)

    def widen(self, context: Context, updates: Any) -> Any:
        # As whole numbers of the same order, of which nan is the last: floats would lose it.
        return order_keys(context.tf, super().widen(context, updates), self.function == "min")

    def narrow_to(self, context: Context, target: Any) -> Any:
        if not self.output.floating:
            return target
        dtype = context.dtype(self.output.dtype)
        return from_order_keys(context.tf, target, dtype, self.function == "min")

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        indices, updates = self.inputs
        winners = cast(equal(updates, gather(self.output, indices, self.dim)), dy.dtype)
        batch = [dim for dim in self.shape if dim in indices.shape]
        ties = scatter_add(winners, indices, self.dim, batch)
        share = dy / maximum(transpose(ties, self.shape), 1.0)
        return [None, transpose(gather(share, indices, self.dim) * winners, updates.shape)]

    def placement(self) -> Placement:
        return Placement(whole=self.merged)


@dataclasses.dataclass(frozen=True)
class At(Explained):
    """`x.at`: to be indexed as `x` is."""

    x: Tensor

    def __getitem__(self, index: Any) -> Place:
        return Place(self.x, parse_index(self.x, index))


@dataclasses.dataclass(frozen=True)
class Place(Explained):
    """Some elements of a tensor, to be changed."""

    x: Tensor
    chosen: Mapping[Dimension, Selector]

    def set(self, value: Operand) -> Tensor:
        """Make the tensor with the elements replaced; of several values the last is taken."""
        return self._change("set", value)

    def add(self, value: Operand) -> Tensor:
        """Make the tensor with values added to the elements, all of them where several are."""
        return self._change("add", value)

    def max(self, value: Operand) -> Tensor:
        """Make the tensor with each element the larger of itself and the values there."""
        return self._change("max", value)

    def min(self, value: Operand) -> Tensor:
        """Make the tensor with each element the smaller of itself and the values there."""
        return self._change("min", value)

    def multiply(self, value: Operand) -> Tensor:
        """Make the tensor with the elements multiplied by values, all of them where several are."""
        return self._change("multiply", value)

    def _change(self, function: str, value: Operand) -> Tensor:
        what = f"at.{function}"
        update = as_tensor(what, value, self.x)
        check_one_dtype(what, self.x, update)
        if self.x.dtype == "bool" and function != "set":
            raise NamedMeshError(
                f"{what}: {self.x.label} is bool", str(self.x), fix="use set, or cast it first"
            )
        if any(isinstance(one, Tensor) for one in self.chosen.values()):
            return self._scatter(function, update)
        return self._lay(function, update)

    def _lay(self, function: str, update: Tensor) -> Tensor:
        """Change elements whose places are known while tracing: the update is padded to them."""
        # The update lacks dimensions that are indexed by one number.
        single = [dim for dim, one in self.chosen.items() if isinstance(one, int)]
        rows = {
            dim: Series(one, 1, 1) if isinstance(one, int) else one
            for dim, one in self.chosen.items()
            if not isinstance(one, Tensor)
        }
        others = [dim for dim in self.x.shape if dim not in single]
        shape = Shape(dim.resized(rows[dim].size) if dim in rows else dim for dim in others)
        update = broadcast(update, _order(update, shape, self.x))
        update = broadcast(update, [*(dim.resized(1) for dim in single), *update.shape])
        if not rows:
            return self.x
        for dim, row in rows.items():
            update = reverse(update, dim.resized(row.size)) if row.step < 0 else update
            update = _pad_to(update, dim, row)
        mask = functools.reduce(and_, (row.contains(count(dim)) for dim, row in rows.items()))
        update = transpose(update, self.x.shape)
        return where(mask, _COMBINE[function](self.x, update), self.x)

    def _scatter(self, function: str, update: Tensor) -> Tensor:
        """Change elements whose places are known when the step runs."""
        chosen: dict[Dimension, Tensor] = {}
        for dim, one in self.chosen.items():
            if isinstance(one, int):
                chosen[dim] = fill(Shape(), one, "int32")
            elif isinstance(one, Series):
                chosen[dim] = constant(np.array(one.numbers, "int32"), [dim.resized(one.size)])
            else:
                chosen[dim] = one
        along, indices, x = merge_indices(self.x, chosen)
        own = indices.shape.named(along.name)
        if own is not None:
            apart = name_apart(own, "index", x, indices, update)
            indices = rename(indices, own, apart)
            update = rename(update, own, apart) if own in update.shape else update
        rest = [dim for dim in x.shape if dim != along and dim not in indices.shape]
        update = broadcast(update, _order(update, Shape([*indices.shape, *rest]), self.x))
        batch = [dim for dim in indices.shape if dim in x.shape]
        if function == "add":
            changed = x + scatter_add(update, indices, along, batch)
        elif function == "set":
            changed = _set_last(x, update, indices, along, batch)
        elif function == "multiply":
            here = equal(count(along, indices.dtype), indices)
            others = [dim for dim in indices.shape if dim not in batch]
            changed = x * prod(where(here, update, 1), over=others)
        else:
            shape = Shape([*batch, along, *rest])
            extreme = ScatterExtreme((indices, update), along, shape, function).output
            changed = _COMBINE[function](x, extreme)
        changed = transpose(changed, x.shape)
        if x is not self.x:  # dimensions were merged
            changed = reshape(changed, along, list(chosen))
        return transpose(changed, self.x.shape)


def scatter(
    x: Tensor,
    updates: Operand,
    indices: Any,
    dim: Dimension | Sequence[Dimension],
    function: str = "set",
) -> Tensor:
    """Return a tensor with updates at some indices: `x.at[dim, indices].set(updates)`.

    Args:
        x: The tensor.
        updates: What is put there, or combined with what is there: the dimensions of the indices,
            and others of `x`.
        indices: A tensor of integers, a number or a list of them; for several dimensions a list of
            such. Numbers count from the end if they are negative; what is outside is an error if it
            is known, and changes nothing if it is a tensor.
        dim: The dimension of `x` that is indexed, or several.
        function: `set`, `add`, `max`, `min` or `multiply`.

    Example:
        >>> V, B = nm.dims("vocab=4 batch=2")
        >>> change = lambda x, u, i: nm.scatter(x, u, i, V, "max")
        >>> nm.evaluate(change, x=([V], [5, 5, 5, 5]), u=([B], [9, 1]), i=([B], [0, 3]))
        array([9, 5, 5, 5], dtype=int32)
    """
    check_word("function of scatter", function, tuple(_COMBINE))
    index = pair_indices("scatter", indices, dim)
    return Place(x, parse_index(check_tensor("scatter", x), index))._change(function, updates)


def pair_indices(what: str, indices: Any, dim: Dimension | Sequence[Dimension]) -> Any:
    """Return an index of one dimension, or of several at once."""
    if isinstance(dim, Dimension):
        return dim, indices
    dims = as_tuple(dim)
    if not isinstance(indices, (list, tuple)) or len(indices) != len(dims) or not dims:
        fix = f"give one for each of: {', '.join(map(str, dims))}"
        raise NamedMeshError(f"{what}: the indices are no list as long as the dimensions", fix=fix)
    return dict(zip(dims, indices, strict=True))


def _set_last(
    x: Tensor, update: Tensor, indices: Tensor, along: Dimension, batch: list[Dimension]
) -> Tensor:
    """Replace elements by the last of the updates that fall on each."""
    others = [dim for dim in indices.shape if dim not in batch]
    if not others:  # one update at most for each element
        here = equal(count(along, indices.dtype), indices)
        return where(here, update, x)
    numbers = broadcast(_count_through({dim: count(dim) for dim in others}), indices.shape)
    last = ScatterExtreme((indices, numbers), along, Shape([*batch, along]), "max").output
    merged = name_apart(Dimension("update", Shape(others).elements), "number", update, x, last)
    flat = reshape(update, others, merged)
    return where(last >= 0, gather(flat, maximum(last, 0), merged), x)


def _pad_to(update: Tensor, dim: Dimension, row: Series) -> Tensor:
    """Pad an update with zeros so that its elements are where they belong."""
    step = abs(row.step) if row.size > 1 else 1
    after = dim.size - row.start - (row.size - 1) * step - 1
    if (row.start, after, step) == (0, 0, 1):
        return update
    if update.dtype == "bool":
        return cast(_pad_to(cast(update, "int32"), dim, row), "bool")
    return Pad((update,), dim.resized(row.size), row.start, after, step - 1, 0).output


def _order(update: Tensor, shape: Shape, x: Tensor) -> Shape:
    """Return the shape that an update broadcasts to, or raise if it has other dimensions."""
    others = [dim for dim in update.shape if dim not in shape]
    if others:
        raise NamedMeshError(
            f"at: {update.label} has {', '.join(map(str, others))}, "
            f"which the indexed part of {x.label} lacks",
            str(update),
            f"indexed: {shape}",
            fix="give a value with these dimensions, or some of them",
        )
    return shape


_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "set": lambda x, update: update,
    "add": lambda x, update: x + update,
    "max": maximum,
    "min": minimum,
    "multiply": lambda x, update: x * update,
}
OPERATORS["at"] = At


def compress(x: Tensor, mask: Tensor, dim: Dimension, into: Dimension) -> Tensor:
    """Return the elements along a dimension that a mask selects, in order.

    Args:
        x: The tensor.
        mask: A bool tensor with the dimension, and perhaps others of `x`.
        dim: The dimension.
        into: The dimension that takes its place: zeros fill it up, what does not fit is left out.

    Example:
        >>> S, K = nm.dims("seq=5 kept=3")
        >>> nm.evaluate(lambda x: nm.compress(x, x > 0, S, K), x=([S], [-1, 4, -2, 7, -3]))
        array([4, 7, 0], dtype=int32)
    """
    check_has_dims("compress", x, dim)
    check_has_dims("compress", mask, dim)
    check_dtype_kind("compress: mask", "bool", check_tensor("compress", mask))
    check_has_dims("compress", x, *mask.shape)
    if into.name != dim.name and x.shape.named(check_dimension("compress", into, x).name):
        fix = "give a dimension of another name"
        raise NamedMeshError(f"compress: {x.label} has {into.name} already", str(x), fix=fix)
    if x.dtype == "bool":
        return cast(compress(cast(x, "int32"), mask, dim, into), "bool")
    place = where(mask, cumsum(cast(mask, "int32"), dim) - 1, -1)
    batch = [other for other in mask.shape if other != dim]
    selected = scatter_add(x, place, into, batch)
    return transpose(selected, [into if own == dim else own for own in x.shape])
