"""Ops that change names, order and grouping of dimensions, but no value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor


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
    """Some neighbouring dimensions merged into one, or one split into several, row-major."""

    linear_in = ((0,),)
    by_name = True
    rearranges = True
    copies = True
    old: tuple[Dimension, ...]
    new: tuple[Dimension, ...]

    def results(self) -> list[tuple[Shape, str]]:
        shape = self.inputs[0].shape
        rest = [dim for dim in shape if dim not in self.old]
        at = min(shape.position(dim.name) for dim in self.old)
        before = len([dim for dim in shape.dims[:at] if dim not in self.old])
        return [(Shape([*rest[:before], *self.new, *rest[before:]]), self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        shape, result = self.inputs[0].shape, self.output.shape
        # The operand's order with the old dimensions side by side, where the result has the new.
        order = [dim.name for dim in result if dim not in self.new]
        at = result.position(self.new[0].name)
        order[at:at] = [dim.name for dim in self.old]
        return context.tf.reshape(context.arrange(x, shape, order), context.sizes(result))

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [transpose(reshape(dy, self.new, self.old), self.inputs[0].shape)]

    def placement(self) -> Placement:
        first, taker = self.old[0], self.new[0]
        return Placement(
            whole=[dim.name for dim in (*self.old[1:], *self.new[1:])],
            renames={first.name: taker.name},
            divisible={first.name: taker.size},
        )


def transpose(x: Tensor, dims: Sequence[Dimension]) -> Tensor:
    """Return a tensor with its dimensions in another order, `x` itself where it has it.

    Args:
        x: The tensor.
        dims: Its dimensions in the new order.

    Example:
        >>> B, M = nm.dims("batch=2 model=2")
        >>> nm.trace(lambda x: nm.transpose(x, [M, B]), x=nm.spec([B, M])).outputs[0].shape
        [model=2, batch=2]
    """
    shape = make_shape("transpose", dims, check_tensor("transpose", x))
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
    new = check_dimension("rename", new, x)
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

    The order is row-major. The first new dimension takes the mesh axes of the first old one where
    the layout maps it to them and the devices divide both sizes; all others are gathered.

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
    return x if before == after else Reshape((x,), before, after).output


def name_apart(dim: Dimension, suffix: str, *tensors: Tensor) -> Dimension:
    """Make a dimension of the same size under a name that none of some tensors has."""
    name = f"{dim.name}_{suffix}"
    while any(name in tensor.shape.names for tensor in tensors):
        name += "_"
    return Dimension(name, dim.size)
