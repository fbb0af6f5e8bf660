"""Ops that change names, order and grouping of dimensions, but no value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.context import Context, align, arrange
from namedmesh.ir.op import Op, Placement
from namedmesh.ir.operands import (
    dimension,
    listed,
    operand,
    require,
    same_sizes,
    several,
    shaped,
    shown,
    whole_number,
)
from namedmesh.ir.tensor import Tensor


@dataclass(eq=False)
class Broadcast(Op):
    """Repeats a tensor along new dimensions, and puts all in order."""

    shape: Shape

    def results(self):
        return [(self.shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x):
        return tf.broadcast_to(
            align(x, self.inputs[0].shape, self.shape), context.sizes(self.shape)
        )

    def vjp(self, dy: Tensor):
        from namedmesh.ops.elementwise import fit

        return [fit(dy, self.inputs[0].shape)]


@dataclass(eq=False)
class Transpose(Op):
    """The same dimensions in another order."""

    shape: Shape

    def results(self):
        return [(self.shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x):
        return arrange(x, self.inputs[0].shape, self.shape.names)

    def vjp(self, dy: Tensor):
        return [transpose(dy, self.inputs[0].shape)]


@dataclass(eq=False)
class Rename(Op):
    """One dimension under another name."""

    old: Dimension
    new: Dimension

    def results(self):
        return [(self.inputs[0].shape.replaced(self.old.name, self.new), self.inputs[0].dtype)]

    def lower(self, context: Context, x):
        return tf.identity(x)

    def vjp(self, dy: Tensor):
        return [rename(dy, self.new, self.old)]

    def placement(self) -> Placement:
        return Placement(renames={self.old.name: self.new.name})


@dataclass(eq=False)
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

    def lower(self, context: Context, x):
        shape, result = self.inputs[0].shape, self.output.shape
        ready = self._gathered(shape, self.old, result)
        return tf.reshape(arrange(x, shape, ready.names), context.sizes(result))

    def vjp(self, dy: Tensor):
        return [transpose(reshape(dy, self.new, self.old), self.inputs[0].shape)]

    def placement(self) -> Placement:
        return Placement(
            whole=frozenset(dim.name for dim in (*self.old[1:], *self.new[1:])),
            renames={self.old[0].name: self.new[0].name},
        )


@dataclass(eq=False)
class Concat(Op):
    """Tensors one after the other along a dimension."""

    dim: Dimension  # of the result

    def results(self):
        first = self.inputs[0].shape
        return [(first.replaced(self.dim.name, self.dim), self.inputs[0].dtype)]

    def lower(self, context: Context, *values):
        order = self.output.shape.names
        ready = [
            arrange(value, x.shape, order) for value, x in zip(values, self.inputs, strict=True)
        ]
        return tf.concat(ready, order.index(self.dim.name))

    def vjp(self, dy: Tensor):
        from namedmesh.ops.windows import slice

        start, cotangents = 0, []
        for x in self.inputs:
            size = x.shape.named(self.dim.name).size  # type: ignore[union-attr]
            cotangents.append(transpose(slice(dy, self.dim, start, size), x.shape))
            start += size
        return cotangents

    def placement(self) -> Placement:
        return Placement(whole=frozenset([self.dim.name]))


def broadcast(x: Tensor, dims: Sequence[Dimension]) -> Tensor:
    """The tensor repeated along the dimensions it lacks, in the order given."""
    shape = shaped("broadcast", dims, operand("broadcast", x))
    same_sizes("broadcast", x, result=shape)
    lost = [dim.name for dim in x.shape if dim.name not in shape.names]
    if lost:
        raise NamedMeshError(
            f"broadcast: the result lacks dimension {lost[0]} of {x.label}",
            str(x),
            f"the result: {shape}",
            fix=f"add {lost[0]} to the result, or sum over it first",
        )
    return x if shape == x.shape else Broadcast((x,), shape).output


def transpose(x: Tensor, dims: Sequence[Dimension]) -> Tensor:
    """The same dimensions in another order."""
    shape = shaped("transpose", dims, operand("transpose", x))
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
    require("rename", x, old)
    if dimension("rename", new, x).size != old.size:
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
    before, after = several(old), several(new)
    if not before or not after:
        raise NamedMeshError(
            "reshape: one side names no dimension",
            str(x),
            fix="give at least one dimension on each side",
        )
    require("reshape", x, *before)
    for dim in after:
        dimension("reshape", dim, x)
    merged, made = shaped("reshape", before, x), shaped("reshape", after, x)
    if merged.elements != made.elements:
        raise NamedMeshError(
            f"reshape: {merged} has {merged.elements} elements and {made} has {made.elements}",
            str(x),
            fix="make the products of the sizes equal",
        )
    shaped("reshape", [*(dim for dim in x.shape if dim not in before), *after], x)
    return x if before == after else Reshape((x,), before, after).output


def concat(tensors: Sequence[Tensor], dim: Dimension | str) -> Tensor:
    """Tensors one after the other along the dimension of that name; the sizes along it add up."""
    tensors = listed("concat", tensors, "nm.concat([a, b], S)")
    name = dim if isinstance(dim, str) else dimension("concat", dim, *tensors).name
    for tensor in tensors:
        if tensor.shape.named(name) is None:
            require("concat", tensor, Dimension(name, 1))
    first = tensors[0]
    for tensor in tensors:
        if {*tensor.shape.without(name)} != {
            *first.shape.without(name)
        } or tensor.dtype != first.dtype:
            raise NamedMeshError(
                f"concat: tensors differ in more than dimension {name}",
                *map(str, tensors),
                fix="make their other dimensions and dtypes equal",
            )
    total = sum(tensor.shape.named(name).size for tensor in tensors)  # type: ignore[union-attr]
    return first if len(tensors) == 1 else Concat(tuple(tensors), Dimension(name, total)).output


def stack(tensors: Sequence[Tensor], dim: Dimension) -> Tensor:
    """Tensors of one shape side by side along a new first dimension."""
    tensors = listed("stack", tensors, "nm.stack([a, b], nm.Dimension('copy', 2))")
    if len(tensors) != dimension("stack", dim, *tensors).size:
        raise NamedMeshError(
            f"stack: {dim} where {len(tensors)} tensors are given",
            *map(str, tensors),
            fix=f"give a dimension of size {len(tensors)}",
        )
    one = Dimension(dim.name, 1)
    return concat([broadcast(x, [one, *x.shape]) for x in tensors], dim)


def chunk(x: Tensor, dim: Dimension, parts: int | Sequence[int]) -> list[Tensor]:
    """The tensor cut into pieces along a dimension: so many equal ones, or pieces of the sizes given."""
    from namedmesh.ops.windows import slice

    require("chunk", x, dim)
    if isinstance(parts, (list, tuple)):
        sizes = [whole_number("chunk", "size", size, x) for size in parts]
    else:
        count = whole_number("chunk", "number of parts", parts, x)
        sizes = [dim.size // count] * count if count > 0 else []
    if sum(sizes) != dim.size or any(size < 1 for size in sizes):
        raise NamedMeshError(
            f"chunk: {shown(parts)} does not cut {dim} into whole pieces",
            str(x),
            fix="give a divisor of the size, or sizes that add up to it",
        )
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [slice(x, dim, start, size) for start, size in zip(starts, sizes, strict=True)]
