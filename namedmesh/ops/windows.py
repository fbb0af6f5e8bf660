"""Ops along the order of one dimension: slices, pads, shifts, rolls, reversals."""

from __future__ import annotations

import builtins
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.literal import as_tensor, check_number
from namedmesh.ir.op import Op, Placement
from namedmesh.ir.operands import check_has_dims, check_int, check_tensor
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.constants import zeros


class Window(Op):
    """An op that needs one dimension whole and keeps the others."""

    dim: Dimension  # of the operand

    @property
    def at(self) -> int:
        """Where the dimension stands in the operand."""
        return self.inputs[0].shape.position(self.dim.name)

    def resized(self) -> Dimension:
        """The dimension in the result."""
        return self.dim

    def results(self):
        x = self.inputs[0]
        return [(x.shape.replace(self.dim.name, self.resized()), x.dtype)]

    def placement(self) -> Placement:
        return Placement(whole=frozenset([self.dim.name]))


class Slice(Window):
    """Some elements in a row, or every so many."""

    start: int
    size: int
    stride: int

    def resized(self) -> Dimension:
        return self.dim.resized(self.size)

    def lower(self, context: Context, x: Any) -> Any:
        index = [builtins.slice(None)] * self.at + [
            builtins.slice(self.start, self.start + (self.size - 1) * self.stride + 1, self.stride)
        ]
        return x[tuple(index)]

    def vjp(self, dy: Tensor):
        after = self.dim.size - self.start - (self.size - 1) * self.stride - 1
        return [Pad((dy,), self.resized(), self.start, after, self.stride - 1, 0.0).output]


class Pad(Window):
    """A value put before, after, and (interior) between the elements."""

    low: int
    high: int
    interior: int
    value: float

    def resized(self) -> Dimension:
        return self.dim.resized(
            self.low + self.high + self.dim.size + (self.dim.size - 1) * self.interior
        )

    def lower(self, context: Context, x: Any) -> Any:
        tf = context.tf
        shape = self.inputs[0].shape
        value = context.scalar(self.value, x.dtype)
        if self.interior:
            spread = tf.expand_dims(x, self.at + 1)
            spread = tf.pad(
                spread,
                _paddings(len(shape) + 1, self.at + 1, 0, self.interior),
                constant_values=value,
            )
            sizes = context.sizes(shape)
            sizes[self.at] *= self.interior + 1
            x = tf.reshape(spread, sizes)
            x = x[
                tuple(
                    [builtins.slice(None)] * self.at
                    + [builtins.slice(0, sizes[self.at] - self.interior)]
                )
            ]
        return tf.pad(x, _paddings(len(shape), self.at, self.low, self.high), constant_values=value)

    def vjp(self, dy: Tensor):
        return [Slice((dy,), self.resized(), self.low, self.dim.size, self.interior + 1).output]


class Reverse(Window):
    """The elements from last to first."""

    def lower(self, context: Context, x: Any) -> Any:
        return context.tf.reverse(x, [self.at])

    def vjp(self, dy: Tensor):
        return [reverse(dy, self.dim)]


class Roll(Window):
    """The elements moved on, those that fall off the end coming in at the start."""

    by: int

    def lower(self, context: Context, x: Any) -> Any:
        return context.tf.concat(
            [
                x[self._part(self.dim.size - self.by, None)],
                x[self._part(0, self.dim.size - self.by)],
            ],
            self.at,
        )

    def _part(self, start: int, stop: int | None) -> tuple:
        return tuple([builtins.slice(None)] * self.at + [builtins.slice(start, stop)])

    def vjp(self, dy: Tensor):
        return [roll(dy, self.dim, -self.by)]


class DynamicSlice(Window):
    """A window whose start is known only at run time; kept inside the dimension."""

    size: int

    def resized(self) -> Dimension:
        return self.dim.resized(self.size)

    def lower(self, context: Context, x: Any, start: Any) -> Any:
        tf = context.tf
        start = tf.clip_by_value(start, 0, self.dim.size - self.size)
        begin = [0] * self.at + [start] + [0] * (len(self.inputs[0].shape) - self.at - 1)
        sizes = context.sizes(self.inputs[0].shape)
        sizes[self.at] = self.size
        return tf.slice(x, tf.stack(begin), sizes)

    def vjp(self, dy: Tensor):
        x, start = self.inputs
        return [dynamic_update(zeros(x.shape, x.dtype), dy, start, self.dim), None]


class DynamicUpdate(Window):
    """A tensor with a window of it, at a start known only at run time, replaced."""

    def lower(self, context: Context, x: Any, update: Any, start: Any) -> Any:
        tf = context.tf
        shape, patch = self.inputs[0].shape, self.inputs[1].shape
        size = patch.named(self.dim.name).size  # type: ignore[union-attr]
        start = tf.clip_by_value(start, 0, self.dim.size - size)
        update = context.arrange(update, patch, shape.names)
        if context.compiled:
            begin = [0] * self.at + [start] + [0] * (len(shape) - self.at - 1)
            return context.xla.dynamic_update_slice(x, update, tf.stack(begin))
        before = x[tuple([builtins.slice(None)] * self.at + [builtins.slice(0, start)])]
        after = x[tuple([builtins.slice(None)] * self.at + [builtins.slice(start + size, None)])]
        return tf.concat([before, update, after], self.at)

    def vjp(self, dy: Tensor):
        _x, update, start = self.inputs
        size = update.shape.named(self.dim.name).size  # type: ignore[union-attr]
        nothing = zeros(update.shape, update.dtype)
        return [
            dynamic_update(dy, nothing, start, self.dim),
            dynamic_slice(dy, start, self.dim, size),
            None,
        ]


def _paddings(rank: int, at: int, low: int, high: int) -> list[list[int]]:
    return [[low, high] if i == at else [0, 0] for i in range(rank)]


def slice(x: Tensor, dim: Dimension, start: int, size: int, stride: int = 1) -> Tensor:
    """Takes elements in a row along a dimension, or every so many.

    The dimension must be whole: where it is split, it is gathered first.

    Args:
        x: The tensor.
        dim: The dimension.
        start: The index of the first element, known while tracing. `nm.dynamic_slice` takes a
            tensor.
        size: How many elements to take.
        stride: The distance from one to the next.

    Returns:
        A tensor in which the dimension has the new size.

    Raises:
        NamedMeshError: `x` does not have the dimension, or the elements do not lie in it.

    Example:
        >>> import namedmesh as nm
        >>> S = nm.Dimension("seq", 4)
        >>> nm.evaluate(lambda x: nm.slice(x, S, start=1, size=2), x=([S], [1, 2, 3, 4]))
        array([2, 3], dtype=int32)
    """
    check_has_dims("slice", x, dim)
    given = {"start": start, "size": size, "stride": stride}
    start, size, stride = (check_int("slice", name, value, x) for name, value in given.items())
    if start < 0 or size < 1 or stride < 1 or start + (size - 1) * stride >= dim.size:
        raise NamedMeshError(
            f"slice: {size} elements from {start} with stride {stride} do not lie in {dim}",
            str(x),
            fix=f"keep start + (size - 1) * stride below {dim.size}",
        )
    return x if (start, size) == (0, dim.size) else Slice((x,), dim, start, size, stride).output


def pad(x: Tensor, dim: Dimension, low: int = 0, high: int = 0, value: float = 0) -> Tensor:
    """Makes a tensor longer along a dimension, filled with a value.

    The dimension must be whole: where it is split, it is gathered first.

    Args:
        x: The tensor.
        dim: The dimension.
        low: How many elements to put before.
        high: How many elements to put after.
        value: What they hold, a number known while tracing.

    Returns:
        A tensor in which the dimension has the new size.

    Raises:
        NamedMeshError: `x` does not have the dimension, a number of elements is negative, or the
            value does not fit the dtype.

    Example:
        >>> import namedmesh as nm
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x: nm.pad(x, S, low=1, value=9), x=([S], [1, 2, 3]))
        array([9, 1, 2, 3], dtype=int32)
    """
    check_has_dims("pad", x, dim)
    low, high = check_int("pad", "low", low, x), check_int("pad", "high", high, x)
    value = check_number("pad", value, x.dtype, x)
    if low < 0 or high < 0:
        raise NamedMeshError(
            f"pad: {low} before and {high} after {dim}",
            str(x),
            fix="use nm.slice to make it shorter",
        )
    return Pad((x,), dim, low, high, 0, value).output if low or high else x


def reverse(x: Tensor, dim: Dimension) -> Tensor:
    """Reverses the order of the elements along a dimension.

    The dimension must be whole: where it is split, it is gathered first.

    Args:
        x: The tensor.
        dim: The dimension.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` does not have the dimension.

    Example:
        >>> import namedmesh as nm
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x: nm.reverse(x, S), x=([S], [1, 2, 3]))
        array([3, 2, 1], dtype=int32)
    """
    check_has_dims("reverse", x, dim)
    return Reverse((x,), dim).output


def roll(x: Tensor, dim: Dimension, by: int) -> Tensor:
    """Moves the elements along a dimension; those that leave at one end enter at the other.

    The dimension must be whole: where it is split, it is gathered first.

    Args:
        x: The tensor.
        dim: The dimension.
        by: How far to move, towards higher indices; back where negative.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` does not have the dimension, or `by` is not a whole number.

    Example:
        >>> import namedmesh as nm
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x: nm.roll(x, S, 1), x=([S], [1, 2, 3]))
        array([3, 1, 2], dtype=int32)
    """
    check_has_dims("roll", x, dim)
    by = check_int("roll", "by", by, x) % dim.size
    return Roll((x,), dim, by).output if by else x


def shift(x: Tensor, dim: Dimension, by: int, value: float = 0) -> Tensor:
    """Moves the elements along a dimension; a value fills the places they leave.

    The dimension must be whole: where it is split, it is gathered first.

    Args:
        x: The tensor.
        dim: The dimension.
        by: How far to move, towards higher indices; back where negative.
        value: What enters, a number known while tracing.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: `x` does not have the dimension, it is no larger than `by`, or the value
            does not fit the dtype.

    Example:
        >>> import namedmesh as nm
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x: nm.shift(x, S, 1), x=([S], [1, 2, 3]))
        array([0, 1, 2], dtype=int32)
    """
    check_has_dims("shift", x, dim)
    by, value = check_int("shift", "by", by, x), check_number("shift", value, x.dtype, x)
    if abs(by) >= dim.size:
        raise NamedMeshError(
            f"shift: {dim} cannot move by {by}", str(x), fix="move by less than the size"
        )
    if by == 0:
        return x
    kept = slice(x, dim, max(-by, 0), dim.size - abs(by))
    return pad(kept, dim.resized(dim.size - abs(by)), max(by, 0), max(-by, 0), value)


def dynamic_slice(x: Tensor, start: Tensor | int, dim: Dimension, size: int) -> Tensor:
    """Takes elements in a row along a dimension, from a start that is known when the step runs.

    The dimension must be whole: where it is split, it is gathered first. A start outside is moved
    inside, so that all elements lie in the dimension.

    Args:
        x: The tensor.
        start: An int32 scalar, or a whole number.
        dim: The dimension.
        size: How many elements to take.

    Returns:
        A tensor in which the dimension has the new size.

    Raises:
        NamedMeshError: `x` does not have the dimension, the size is larger than it, or the start is
            not an int32 scalar.

    Example:
        >>> import namedmesh as nm
        >>> S = nm.Dimension("seq", 4)
        >>> x, start = ([S], [1, 2, 3, 4]), ([], 1)
        >>> nm.evaluate(lambda x, start: nm.dynamic_slice(x, start, S, 2), x=x, start=start)
        array([2, 3], dtype=int32)
    """
    check_has_dims("dynamic_slice", x, dim)
    size = check_int("dynamic_slice", "size", size, x)
    if not 1 <= size <= dim.size:
        raise NamedMeshError(
            f"dynamic_slice: {size} elements do not lie in {dim}",
            str(x),
            fix="ask for at most its size",
        )
    return DynamicSlice((x, _scalar_index("dynamic_slice", start)), dim, size).output


def dynamic_update(x: Tensor, update: Tensor, start: Tensor | int, dim: Dimension) -> Tensor:
    """Replaces elements in a row along a dimension, from a start that is known when the step runs.

    The dimension must be whole: where it is split, it is gathered first. A start outside is moved
    inside, so that the whole update lies in the dimension.

    Args:
        x: The tensor.
        update: What to put there: the dimensions and dtype of `x`, with `dim` at the size to
            replace.
        start: An int32 scalar, or a whole number.
        dim: The dimension, as `x` has it.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        NamedMeshError: The update does not fit, or the start is not an int32 scalar.

    Example:
        >>> import namedmesh as nm
        >>> S = nm.Dimension("seq", 4)
        >>> x, update = ([S], [1, 2, 3, 4]), ([S.resized(2)], [8, 9])
        >>> nm.evaluate(lambda x, update: nm.dynamic_update(x, update, 1, S), x=x, update=update)
        array([1, 8, 9, 4], dtype=int32)
    """
    check_has_dims("dynamic_update", x, dim)
    patch = check_tensor("dynamic_update", update).shape.named(dim.name)
    if (
        patch is None
        or patch.size > dim.size
        or {*update.shape.without(dim.name)} != {*x.shape.without(dim.name)}
    ):
        raise NamedMeshError(
            f"dynamic_update: the update does not fit along {dim}",
            str(x),
            str(update),
            fix=f"give it the dimensions of {x.label}, with {dim.name} at most {dim.size}",
        )
    if update.dtype != x.dtype:
        raise NamedMeshError(
            "dynamic_update: dtypes differ", str(x), str(update), fix="use nm.cast(update, x.dtype)"
        )
    return DynamicUpdate((x, update, _scalar_index("dynamic_update", start)), dim).output


def _scalar_index(what: str, start: Tensor | int) -> Tensor:
    index = as_tensor(what, start)
    if len(index.shape) or index.dtype != "int32":
        raise NamedMeshError(
            f"{what}: the start is not an int32 scalar",
            str(index),
            fix="use nm.cast(start, 'int32')",
        )
    return index
