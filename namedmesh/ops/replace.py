"""What `x.at[H, 3].set(y)` makes: a tensor with some elements replaced, added to, or compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.literal import as_tensor, fill
from namedmesh.ir.operands import check_one_dtype
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import OPERATORS, Operand, Tensor
from namedmesh.ops.arithmetic import maximum, minimum
from namedmesh.ops.broadcast import broadcast
from namedmesh.ops.constants import constant
from namedmesh.ops.constants import range as count
from namedmesh.ops.elementwise import cast
from namedmesh.ops.index import Scatter, gather, scatter_add
from namedmesh.ops.indexing import Selector, Series, merge_indices, parse_index
from namedmesh.ops.logic import equal, where
from namedmesh.ops.shape import name_apart, rename, reshape, transpose
from namedmesh.ops.windows import Pad, reverse


class ScatterExtreme(Scatter):
    """The largest or smallest update at each index along a dimension."""

    function: str  # type: ignore[misc]

    @property
    def kind(self) -> str:
        return f"scatter_{self.function}"

    def start(self, dtype: Any) -> Any:
        lowest, highest = (-np.inf, np.inf) if dtype.is_floating else (dtype.min, dtype.max)
        return lowest if self.function == "max" else highest

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        indices, updates = self.inputs
        winners = cast(equal(updates, gather(self.output, indices, self.dim)), dy.dtype)
        batch = [dim for dim in self.shape if dim in indices.shape]
        ties = scatter_add(winners, indices, self.dim, batch)
        share = dy / maximum(transpose(ties, self.shape), 1.0)
        return [None, transpose(gather(share, indices, self.dim) * winners, updates.shape)]

    def placement(self) -> Placement:
        return Placement(whole=[self.dim.name, *sorted(self.merged)])


@dataclasses.dataclass(frozen=True)
class At:
    """`x.at`: to be indexed as `x` is."""

    x: Tensor

    def __getitem__(self, index: Any) -> Place:
        return Place(self.x, parse_index(self.x, index))


@dataclasses.dataclass(frozen=True)
class Place:
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
        """Changes elements whose places are known while tracing: the update is padded to them."""
        rows = {
            dim: Series(one, 1, 1) if isinstance(one, int) else one
            for dim, one in self.chosen.items()
            if not isinstance(one, Tensor)
        }
        kept = Shape(
            dim.resized(rows[dim].size) if dim in rows else dim
            for dim in self.x.shape
            if not isinstance(self.chosen.get(dim), int)
        )
        update = broadcast(update, _order(update, kept, self.x))
        one_each = [dim.resized(1) for dim in rows if isinstance(self.chosen[dim], int)]
        update = broadcast(update, [*one_each, *update.shape])
        mask = None
        for dim, row in rows.items():
            update = reverse(update, dim.resized(row.size)) if row.step < 0 else update
            update = _pad_to(update, dim, row)
            own = row.contains(count(dim))
            mask = own if mask is None else mask & own
        update = transpose(update, self.x.shape)
        return self.x if mask is None else where(mask, _COMBINE[function](self.x, update), self.x)

    def _scatter(self, function: str, update: Tensor) -> Tensor:
        """Changes elements whose places are known when the step runs."""
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
        else:
            shape = Shape([*batch, along, *rest])
            found = ScatterExtreme((indices, update), along, shape, function).output
            changed = _COMBINE[function](x, found)
        changed = transpose(changed, x.shape)
        return (
            changed
            if x is self.x
            else transpose(reshape(changed, along, list(chosen)), self.x.shape)
        )


def _set_last(
    x: Tensor, update: Tensor, indices: Tensor, along: Dimension, batch: list[Dimension]
) -> Tensor:
    """Replace elements by the last of the updates that fall on each."""
    others = [dim for dim in indices.shape if dim not in batch]
    if not others:  # one update at most for each element
        here = equal(count(along, indices.dtype), indices)
        return where(here, update, x)
    number: Tensor | None = None
    for dim in others:
        number = count(dim) if number is None else number * dim.size + count(dim)
    assert number is not None
    shape = Shape([*batch, along])
    numbers = broadcast(number, indices.shape)
    last = ScatterExtreme((indices, numbers), along, shape, "max").output
    merged = name_apart(Dimension("update", Shape(others).elements), "number", update, x, last)
    flat = reshape(update, others, merged)
    return where(last >= 0, gather(flat, maximum(last, 0), merged), x)


def _pad_to(update: Tensor, dim: Dimension, row: Series) -> Tensor:
    """Pad an update with zeros so that its elements come to lie where they belong."""
    step = abs(row.step) if row.size > 1 else 1
    after = dim.size - row.start - (row.size - 1) * step - 1
    if (row.start, after, step) == (0, 0, 1):
        return update
    if update.dtype == "bool":
        return cast(_pad_to(cast(update, "int32"), dim, row), "bool")
    return Pad((update,), dim.resized(row.size), row.start, after, step - 1, 0).output


def _order(update: Tensor, kept: Shape, x: Tensor) -> Shape:
    """Return the shape that an update broadcasts to, or raises where it has other dimensions."""
    others = [dim for dim in update.shape if dim not in kept]
    if others:
        raise NamedMeshError(
            f"at: {update.label} has {', '.join(map(str, others))}, "
            f"which what is indexed of {x.label} has not",
            str(update),
            f"indexed: {kept}",
            fix="give a value with these dimensions, or some of them",
        )
    return kept


_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "set": lambda x, update: update,
    "add": lambda x, update: x + update,
    "max": maximum,
    "min": minimum,
}
OPERATORS["at"] = At
