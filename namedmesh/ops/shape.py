"""Ops that change names, order and grouping of dimensions, but no value."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.literal import align_array
from namedmesh.ir.op import Op
from namedmesh.ir.operands import (
    as_tuple,
    check_dimension,
    check_has_dims,
    check_tensor,
    make_shape,
)
from namedmesh.ir.placement import Exchange, Placement, Shards
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.halo import Stretch, find_slabs, list_sent, read_rows


class Transpose(Op):
    """The same dimensions in another order."""

    linear_in = ((0,),)
    by_name = True
    elementwise = True
    copies = True
    shape: Shape

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        return context.arrange(x, self.inputs[0].shape, self.shape.names)

    def fold(self, *arrays: Any) -> Any:
        return align_array(arrays[0], self.inputs[0].shape, self.shape)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [transpose(dy, self.inputs[0].shape)]


class Rename(Op):
    """One dimension under another name."""

    linear_in = ((0,),)
    by_name = True
    rearranges = True
    copies = True
    old: Dimension
    new: Dimension

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape.replace(self.old.name, self.new), self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        return context.tf.identity(x)

    def fold(self, *arrays: Any) -> Any:
        return arrays[0]

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [rename(dy, self.new, self.old)]

    def placement(self) -> Placement:
        return Placement(renames={self.old.name: self.new.name})


class Reshape(Op):
    """Some neighbouring dimensions merged into one, or one split into several, row-major.

    Split along the first dimension, each device has an interval of the elements in their order,
    and needs another one afterwards: it gets what it lacks from its neighbours.
    """

    linear_in = ((0,),)
    by_name = True
    rearranges = True
    copies = True
    old: tuple[Dimension, ...]
    new: tuple[Dimension, ...]

    @property
    def ends(self) -> tuple[Dimension, Dimension]:
        """The first dimension of each side, past those of one element."""
        first, taker = (
            next((dim for dim in side if dim.size > 1), side[0]) for side in (self.old, self.new)
        )
        return first, taker

    def results(self) -> list[tuple[Shape, str]]:
        shape = self.inputs[0].shape
        rest = [dim for dim in shape if dim not in self.old]
        at = min(shape.position(dim.name) for dim in self.old)
        before = len([dim for dim in shape.dims[:at] if dim not in self.old])
        return [(Shape([*rest[:before], *self.new, *rest[before:]]), self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        shape, result, tf = self.inputs[0].shape, self.output.shape, context.tf
        # The operand's order with the old dimensions side by side, where the result has the new.
        order = [dim.name for dim in result if dim not in self.new]
        at = result.position(self.new[0].name)
        order[at:at] = [dim.name for dim in self.old]
        x, ways = context.arrange(x, shape, order), context.ways(self.ends[0])
        if ways > 1:
            stretch, shard = self._find_stretch(ways)
            x = tf.reshape(x, [*x.shape[:at], shard, *x.shape[at + len(self.old) :]])
            x = read_rows(context, [(x, stretch)], at, self.ends[0], 0)
        return tf.reshape(x, context.sizes(result))

    def _find_stretch(self, ways: int) -> tuple[Stretch, int]:
        """Return the elements that each device needs, and how many it has."""
        total = math.prod(dim.size for dim in self.old)
        shard, size = (-(-dim.size // ways) * (total // dim.size) for dim in self.ends)
        return Stretch(size, 0, size, total), shard

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [transpose(reshape(dy, self.new, self.old), self.inputs[0].shape)]

    def placement(self) -> Placement:
        first, taker = self.ends
        return Placement(
            whole=[dim.name for dim in (*self.old, *self.new) if dim not in (first, taker)],
            renames={first.name: taker.name},
            divisible={first.name: taker.size},
            exchanged=[first.name],
        )

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        (x,), first = self.inputs, self.ends[0]
        ways = shards.ways(first)
        stretch, shard = self._find_stretch(ways)
        others = shards.count(dim for dim in x.shape if dim not in self.old)
        # All receive from one side, from fewer devices than there are: always less than gathering.
        return list_sent(find_slabs(stretch, ways, shard), first, others, x.dtype)


def transpose(x: Tensor, dims: Sequence[Dimension | EllipsisType]) -> Tensor:
    """Return a tensor with its dimensions in another order, `x` itself where it has it.

    Args:
        x: The tensor.
        dims: Its dimensions in the new order; `...` stands for those that are not listed.

    Example:
        >>> B, M = nm.dims("batch=2 model=2")
        >>> nm.trace(lambda x: nm.transpose(x, [M, B]), x=nm.spec([B, M])).outputs[0].shape
        [model=2, batch=2]
    """
    check_tensor("transpose", x)
    if isinstance(dims, (list, tuple)) and ... in dims:
        at = dims.index(...)
        dims = [*dims[:at], *(dim for dim in x.shape if dim not in dims), *dims[at + 1 :]]
    shape = make_shape("transpose", typing.cast(Sequence[Dimension], dims), x)
    if {*shape} != {*x.shape}:
        problem = "transpose: the order does not list the tensor's dimensions once each"
        fix = "list every dimension; use nm.broadcast to add one, nm.sum to remove one"
        raise NamedMeshError(problem, str(x), f"order: {shape}", fix=fix)
    return x if shape == x.shape else Transpose((x,), shape).output


def rename(
    x: Tensor, old: Dimension | Mapping[Dimension, Dimension], new: Dimension | None = None
) -> Tensor:
    """Return a tensor with a dimension renamed, or several: `nm.rename(x, {S: T, T: S})`.

    Unless the layout maps the new dimension to the old one's mesh axes, that is gathered first.

    Args:
        x: The tensor.
        old: The dimension, or a dict from old dimensions to new ones.
        new: The dimension of the same size that takes its place.

    Example:
        >>> S, K = nm.dims("seq=4 key=4")
        >>> nm.trace(lambda x: nm.rename(x, S, K), x=nm.spec([S])).outputs[0].shape
        [key=4]
    """
    if isinstance(old, Mapping):
        if new is not None:
            raise NamedMeshError(
                "rename: a new dimension is given twice", str(x), fix="write nm.rename(x, {S: T})"
            )
        return _rename_all(x, old)
    check_has_dims("rename", x, old)
    new = Dimension(new, old.size) if isinstance(new, str) else check_dimension("rename", new, x)
    if new.size != old.size:
        raise NamedMeshError(
            f"rename: {old} cannot become {new}", str(x), fix="give the new dimension the same size"
        )
    if new.name != old.name and x.shape.named(new.name):
        problem = f"rename: {x.label} already has a dimension {new.name}"
        fix = "choose a name the tensor does not have"
        raise NamedMeshError(problem, str(x), fix=fix)
    return x if new == old else Rename((x,), old, new).output


def _rename_all(x: Tensor, names: Mapping[Dimension, Dimension]) -> Tensor:
    """Give several dimensions other names at once, which may be each other's."""
    check_has_dims("rename", x, *names)
    pairs = names.items()
    names = {old: Dimension(new, old.size) if isinstance(new, str) else new for old, new in pairs}
    for new in names.values():
        check_dimension("rename", new, x)
    make_shape("rename", [names.get(dim, dim) for dim in x.shape], x)
    pending = {old: new for old, new in names.items() if old != new}
    while pending:
        free = [old for old, new in pending.items() if x.shape.named(new.name) is None]
        old = free[0] if free else next(iter(pending))
        new = pending.pop(old)
        if not free:  # they take each other's names: one steps aside
            aside = name_apart(old, "renamed", x)
            pending[aside] = new
            new = aside
        x = rename(x, old, new)
    return x


def reshape(
    x: Tensor, old: Dimension | Sequence[Dimension], new: Dimension | Sequence[Dimension]
) -> Tensor:
    """Return a tensor with dimensions merged into one, split into several, or both.

    The order is row-major. Where dimensions begin at the same element on both sides, the new one
    takes the mesh axes of the old one if the layout maps it to them: devices whose shards do not
    coincide get what they lack from their neighbours. All others are gathered.

    Args:
        x: The tensor.
        old: One dimension or several, in the order to merge them.
        new: One or several of the same number of elements, to take their place.

    Example:
        >>> B, H, W, P = nm.dims("batch=2 height=3 width=4 pixel=12")
        >>> nm.trace(lambda x: nm.reshape(x, [H, W], P), x=nm.spec([B, H, W])).outputs[0].shape
        [batch=2, pixel=12]
    """
    before, after = as_tuple(old), as_tuple(new)
    if not before or not after:
        fix = "give at least one dimension on each side"
        raise NamedMeshError("reshape: one side names no dimension", str(x), fix=fix)
    check_has_dims("reshape", x, *before)
    for dim in after:
        check_dimension("reshape", dim, x)
    merged, split = make_shape("reshape", before, x), make_shape("reshape", after, x)
    if merged.elements != split.elements:
        raise NamedMeshError(
            f"reshape: {merged} has {merged.elements} elements and {split} has {split.elements}",
            str(x),
            fix="make the products of the sizes equal",
        )
    make_shape("reshape", [*(dim for dim in x.shape if dim not in before), *after], x)
    at = x.shape.position(before[0].name)
    pairs = _cut_apart(before, after)
    names = {dim.name for old, _ in pairs for dim in old}
    clash = any(dim.name in names for _, new in pairs for dim in new)
    if clash or x.shape.dims[at : at + len(before)] != before:
        return Reshape((x,), before, after).output
    for some, others in pairs:
        one = len(some) == len(others) == 1
        op = Rename((x,), *some, *others) if one else Reshape((x,), some, others)
        x = op.output
    return x


def _cut_apart(
    old: Sequence[Dimension], new: Sequence[Dimension]
) -> list[tuple[tuple[Dimension, ...], tuple[Dimension, ...]]]:
    """Cut both sides of a reshape where both have a boundary; drop what is the same on both."""
    pairs, left, right = [], [*old], [*new]
    while left and right:
        some, others = [left.pop(0)], [right.pop(0)]
        while (count := Shape(some).elements) != (wanted := Shape(others).elements):
            side, rest = (some, left) if count < wanted else (others, right)
            side.append(rest.pop(0))
        if not left or not right:  # the others have one element
            some, others, left = some + left, others + right, []
        pairs.append((tuple(some), tuple(others)))
    return [(some, others) for some, others in pairs if some != others]


def name_apart(dim: Dimension, suffix: str, *tensors: Tensor) -> Dimension:
    """Make a dimension of the same size under a name that none of some tensors has."""
    name = f"{dim.name}_{suffix}"
    while any(name in tensor.shape.names for tensor in tensors):
        name += "_"
    return Dimension(name, dim.size)
