"""Ops that change names, order and grouping of dimensions, but no value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.op import Op, Placement
from namedmesh.ir.operands import (
    as_tuple,
    check_dimension,
    check_has_dims,
    check_tensor,
    make_shape,
)
from namedmesh.ir.tensor import Tensor


class Transpose(Op):
    """The same dimensions in another order."""

    shape: Shape

    def results(self):
        return [(self.shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        return context.arrange(x, self.inputs[0].shape, self.shape.names)

    def vjp(self, dy: Tensor):
        return [transpose(dy, self.inputs[0].shape)]


class Rename(Op):
    """One dimension under another name."""

    old: Dimension
    new: Dimension

    def results(self):
        return [(self.inputs[0].shape.replaced(self.old.name, self.new), self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        return context.tf.identity(x)

    def vjp(self, dy: Tensor):
        return [rename(dy, self.new, self.old)]

    def placement(self) -> Placement:
        return Placement(renames={self.old.name: self.new.name})


class Reshape(Op):
    """Some neighbouring dimensions merged into one, or one split into several, row-major."""

    old: tuple[Dimension, ...]
    new: tuple[Dimension, ...]

    def results(self):
        shape = self.inputs[0].shape
        rest = [dim for dim in shape if dim not in self.old]
        at = min(shape.position(dim.name) for dim in self.old)
        before = len([dim for dim in shape.dims[:at] if dim not in self.old])
        return [(Shape([*rest[:before], *self.new, *rest[before:]]), self.inputs[0].dtype)]

    def _gathered(self, shape: Shape, group: tuple[Dimension, ...], other: Shape) -> Shape:
        """The dimensions with the group side by side, where the other shape has its group."""
        order: list[Dimension] = []
        for dim in other:
            if dim in (self.new if group is self.old else self.old):
                order.extend(part for part in group if part not in order)
            else:
                order.append(dim)
        return Shape(order)

    def lower(self, context: Context, x: Any) -> Any:
        shape, result = self.inputs[0].shape, self.output.shape
        ready = self._gathered(shape, self.old, result)
        return context.tf.reshape(context.arrange(x, shape, ready.names), context.sizes(result))

    def vjp(self, dy: Tensor):
        return [transpose(reshape(dy, self.new, self.old), self.inputs[0].shape)]

    def placement(self) -> Placement:
        first, taker = self.old[0], self.new[0]
        return Placement(
            whole=frozenset(dim.name for dim in (*self.old[1:], *self.new[1:])),
            renames={first.name: taker.name},
            divisible={first.name: taker.size},
        )


def transpose(x: Tensor, dims: Sequence[Dimension]) -> Tensor:
    """The same dimensions in another order."""
    shape = make_shape("transpose", dims, check_tensor("transpose", x))
    if {*shape} != {*x.shape}:
        raise NamedMeshError(
            "transpose: the order does not list the tensor's dimensions once each",
            str(x),
            f"order: {shape}",
            fix="list every dimension; use nm.broadcast to add one, nm.sum to remove one",
        )
    return x if shape == x.shape else Transpose((x,), shape).output


def rename(x: Tensor, old: Dimension, new: Dimension) -> Tensor:
    """The tensor with one dimension under another name of the same size."""
    check_has_dims("rename", x, old)
    if check_dimension("rename", new, x).size != old.size:
        raise NamedMeshError(
            f"rename: {old} cannot become {new}", str(x), fix="give the new dimension the same size"
        )
    if new.name != old.name and x.shape.named(new.name):
        raise NamedMeshError(
            f"rename: {x.label} already has a dimension {new.name}",
            str(x),
            fix="choose a name the tensor does not have",
        )
    return x if new == old else Rename((x,), old, new).output


def reshape(
    x: Tensor, old: Dimension | Sequence[Dimension], new: Dimension | Sequence[Dimension]
) -> Tensor:
    """Merges dimensions into one or splits one into several: nm.reshape(x, [H, W], P), nm.reshape(x, P, [H, W])."""
    before, after = as_tuple(old), as_tuple(new)
    if not before or not after:
        raise NamedMeshError(
            "reshape: one side names no dimension",
            str(x),
            fix="give at least one dimension on each side",
        )
    check_has_dims("reshape", x, *before)
    for dim in after:
        check_dimension("reshape", dim, x)
    merged, made = make_shape("reshape", before, x), make_shape("reshape", after, x)
    if merged.elements != made.elements:
        raise NamedMeshError(
            f"reshape: {merged} has {merged.elements} elements and {made} has {made.elements}",
            str(x),
            fix="make the products of the sizes equal",
        )
    make_shape("reshape", [*(dim for dim in x.shape if dim not in before), *after], x)
    return x if before == after else Reshape((x,), before, after).output
