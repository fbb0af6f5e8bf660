"""Parts of a dimension: slices, padding, shifts and rolls, known early or when the step runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.literal import as_int32_scalar, check_number, fill, plain_number
from namedmesh.ir.op import Number, with_dim
from namedmesh.ir.operands import check_has_dims, check_int, check_tensor
from namedmesh.ir.placement import Exchange, Placement, Shards
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current
from namedmesh.ops.constants import range as number_along
from namedmesh.ops.constants import zeros
from namedmesh.ops.gather import gather
from namedmesh.ops.halo import (
    SplitWindow,
    Stretch,
    Window,
    align_rows,
    cut_rows,
    find_exchanges,
    read_rows,
)
from namedmesh.ops.logic import where
from namedmesh.ops.mathematics import clip, negative
from namedmesh.ops.shape import name_apart, rename, transpose


class Slice(SplitWindow):
    """Elements in a row, or every so many."""

    start: int
    size: int
    stride: int

    @property
    def stop(self) -> int:
        """The row after the last that is taken."""
        return self.start + (self.size - 1) * self.stride + 1

    def result_dim(self) -> Dimension:
        return self.dim.resized(self.size)

    def stretches(self, ways: int, shard: int, size: int) -> list[Stretch]:
        length = (size - 1) * self.stride + 1
        return [Stretch(size * self.stride, self.start, length, self.stop)]

    def whole(self, context: Context, x: Any) -> Any:
        return x[self.index(self.start, self.stop, self.stride)]

    def local(self, context: Context, x: Any) -> Any:
        return x[self.index(None, None, self.stride)] if self.stride > 1 else x

    def find_equal(self, known: Mapping[Tensor, Number]) -> Tensor | None:
        maker, name = current("slice").find_maker(self.inputs[0]), self.dim.name
        rows = None if maker is None else maker.find_rows(name, self.start, self.stop)
        if rows is None:
            return None
        part, first = rows
        dim = self.dim.resized(part.shape.size_of(name))
        rest = slice(part, dim, self.start - first, self.size, self.stride)
        return transpose(rest, self.output.shape)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        after = self.dim.size - self.stop
        return [Pad((dy,), self.result_dim(), self.start, after, self.stride - 1, 0.0).output]


class Pad(SplitWindow):
    """A value put before, after, and (interior) between the elements."""

    low: int
    high: int
    interior: int
    fill: float

    def result_dim(self) -> Dimension:
        inner = self.dim.size + (self.dim.size - 1) * self.interior
        return self.dim.resized(self.low + inner + self.high)

    def stretches(self, ways: int, shard: int, size: int) -> list[Stretch]:
        apart = self.interior + 1
        length = size if apart == 1 else (size - 1) // apart + 2
        return [Stretch(size, -self.low, length, self.dim.size, apart)]

    def whole(self, context: Context, x: Any) -> Any:
        if self.interior:
            x = self._spread(context, x)
            x = x[self.index(0, x.shape[self.at] - self.interior)]
        return _pad_rows(context, x, self.at, self.low, self.high, self.fill)

    def local(self, context: Context, x: Any) -> Any:
        if not self.interior:
            return x
        apart, size = self.interior + 1, context.size(self.result_dim())
        begin = context.position(self.dim) * size - self.low  # in the result, before padding
        begin = begin - begin // apart * apart  # in what was read, spread
        return cut_rows(context.tf, self._spread(context, x), self.at, begin, size)

    def _spread(self, context: Context, x: Any) -> Any:
        """Put the value between elements, and after the last."""
        # tf.pad cannot pad between elements: pad each in a dimension of its own, and merge.
        rows = context.tf.expand_dims(x, self.at + 1)
        rows = _pad_rows(context, rows, self.at + 1, 0, self.interior, self.fill)
        sizes = [*x.shape]
        sizes[self.at] *= self.interior + 1
        return context.tf.reshape(rows, sizes)

    def find_rows(self, name: str, start: int, stop: int) -> tuple[Tensor, int] | None:
        return _find_padded_rows(self, self.low, self.interior, name, start, stop)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [Slice((dy,), self.result_dim(), self.low, self.dim.size, self.interior + 1).output]


class Reverse(SplitWindow):
    """The elements from last to first."""

    def stretches(self, ways: int, shard: int, size: int) -> list[Stretch]:
        return [Stretch(-shard, self.dim.size - shard, shard, self.dim.size)]

    def whole(self, context: Context, x: Any) -> Any:
        if len(self.inputs[0].shape) > 8:  # TensorFlow reverses no more dimensions
            backwards = context.tf.range(x.shape[self.at] - 1, -1, -1)
            return context.tf.gather(x, backwards, axis=self.at)
        return context.tf.reverse(x, [self.at])

    def local(self, context: Context, x: Any) -> Any:
        return self.whole(context, x)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [reverse(dy, self.dim)]


class Shift(SplitWindow):
    """The elements moved on, towards higher indices; a value fills the places they leave."""

    by: int
    fill: float

    def stretches(self, ways: int, shard: int, size: int) -> list[Stretch]:
        return [Stretch(shard, -self.by, shard, self.dim.size)]

    def whole(self, context: Context, x: Any) -> Any:
        size, by = self.dim.size, self.by
        staying = x[self.index(max(-by, 0), size - max(by, 0))]
        return _pad_rows(context, staying, self.at, max(by, 0), max(-by, 0), self.fill)

    def find_rows(self, name: str, start: int, stop: int) -> tuple[Tensor, int] | None:
        return _find_padded_rows(self, self.by, 0, name, start, stop)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [Shift((dy,), self.dim, -self.by, 0).output]


class Roll(SplitWindow):
    """The elements moved on; those that leave at the end enter at the start."""

    by: int

    def whole(self, context: Context, x: Any) -> Any:
        staying = self.dim.size - self.by
        return context.tf.concat([x[self.index(staying, None)], x[self.index(0, staying)]], self.at)

    def stretches(self, ways: int, shard: int, size: int) -> list[Stretch]:
        return roll_stretches(self.dim, ways, shard, self.by)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [roll(dy, self.dim, -self.by)]


def _find_padded_rows(
    op: Pad | Shift, low: int, interior: int, name: str, start: int, stop: int
) -> tuple[Tensor, int] | None:
    """Find rows of which none, or all, are those that fill the places around the operand's."""
    (x,), size = op.inputs, op.dim.size
    if name != op.dim.name:
        return None
    if stop <= low or start >= low + size + (size - 1) * interior:
        shape = x.shape.replace(name, op.dim.resized(stop - start))
        return fill(shape, op.fill, x.dtype), start
    return (x, low) if low <= start and stop <= low + size and not interior else None


def _pad_rows(context: Context, x: Any, at: int, low: int, high: int, value: float) -> Any:
    """Pad one dimension with a value."""
    paddings = [[low, high] if i == at else [0, 0] for i in range(len(x.shape))]
    return context.tf.pad(x, paddings, constant_values=context.scalar(value, x.dtype))


def _check_start(what: str, start: Any, x: Tensor, dim: Dimension, size: int) -> Tensor:
    """Return a start; one that is known counts from the end if negative, and has room after it."""
    known = plain_number(start)
    if not isinstance(known, int) or isinstance(known, bool):
        return as_int32_scalar(what, "the start", start)
    first = known + dim.size if known < 0 else known
    if not 0 <= first <= dim.size - size:
        raise NamedMeshError(
            f"{what}: {size} elements from {known} do not fit in {dim}",
            str(x),
            fix=f"start at 0 to {dim.size - size}, or count from the end: {-dim.size} to {-size}",
        )
    return as_int32_scalar(what, "the start", first)


def slice(x: Tensor, dim: Dimension, start: int, size: int, stride: int = 1) -> Tensor:
    """Return elements in a row, or every so many; if split, devices get what they lack.

    Args:
        x: The tensor.
        dim: The dimension.
        start: The index of the first, known while tracing (`nm.dynamic_slice` takes a tensor);
            a negative one counts from the end.
        size: The number of elements.
        stride: The distance from one to the next.

    Example:
        >>> S = nm.Dimension("seq", 4)
        >>> nm.evaluate(lambda x: nm.slice(x, S, start=1, size=2), x=([S], [1, 2, 3, 4]))
        array([2, 3], dtype=int32)
    """
    check_has_dims("slice", x, dim)
    options = {"start": start, "size": size, "stride": stride}
    start, size, stride = (check_int("slice", name, value, x) for name, value in options.items())
    first = start + dim.size if start < 0 else start
    if first < 0 or size < 1 or stride < 1 or first + (size - 1) * stride >= dim.size:
        raise NamedMeshError(
            f"slice: {size} elements from {start} with stride {stride} do not fit in {dim}",
            str(x),
            fix=f"give size >= 1, stride >= 1, start >= {-dim.size}, "
            f"and start + (size - 1) * stride below {dim.size}",
        )
    start = first
    return x if (start, size) == (0, dim.size) else Slice((x,), dim, start, size, stride).output


def reverse(x: Tensor, dim: Dimension) -> Tensor:
    """Return the elements along a dimension in reverse order.

    Args:
        x: The tensor.
        dim: The dimension.

    Example:
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x: nm.reverse(x, S), x=([S], [1, 2, 3]))
        array([3, 2, 1], dtype=int32)
    """
    check_has_dims("reverse", x, dim)
    return Reverse((x,), dim).output if dim.size > 1 else x


def roll(x: Tensor, dim: Dimension, by: int | Tensor) -> Tensor:
    """Return the elements moved along a dimension; those that leave enter at the other end.

    Args:
        x: The tensor.
        dim: The dimension.
        by: Places towards higher indices, known while tracing, or an int32 scalar.

    Example:
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x: nm.roll(x, S, 1), x=([S], [1, 2, 3]))
        array([3, 1, 2], dtype=int32)
    """
    check_has_dims("roll", x, dim)
    if isinstance(by, Tensor):
        return TracedRoll((x, as_int32_scalar("roll", "by", by)), dim).output
    by = check_int("roll", "by", by, x) % dim.size
    return Roll((x,), dim, by).output if by else x


def shift(x: Tensor, dim: Dimension, by: int, value: float = 0) -> Tensor:
    """Return the elements moved along a dimension; a value fills the places they leave.

    Args:
        x: The tensor.
        dim: The dimension.
        by: Places towards higher indices; back where negative.
        value: The value that enters, a number known while tracing.

    Example:
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
    return Shift((x,), dim, by, value).output if by else x


class TracedRoll(Window):
    """A roll by a number that is known only when the step runs."""

    kind = "roll"
    linear_in = ((0,),)

    @property
    def distances(self) -> list[int]:
        """Powers of two below the size."""
        return [1 << digit for digit in range((self.dim.size - 1).bit_length())]

    def lower(self, context: Context, x: Any, by: Any) -> Any:
        tf = context.tf
        by = tf.math.floormod(by, self.dim.size)
        if context.ways(self.dim) == 1:
            return tf.roll(x, by, self.at)
        ways, shard = context.ways(self.dim), context.size(self.dim)
        # Roll by 1, 2, 4 ... places, each or not by a binary digit of the number: which rows move
        # is then known while planning.
        for distance in self.distances:
            sources = [(x, one) for one in roll_stretches(self.dim, ways, shard, distance)]
            moved = read_rows(context, sources, self.at, self.dim, 0)
            x = tf.where(tf.bitwise.bitwise_and(by, distance) > 0, moved, x)
        return x

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor] | None:
        x, by = inputs
        if over in by.shape:
            return None
        x = with_dim(x, over, self.inputs[0].shape)
        return dataclasses.replace(self, inputs=(x, by)).outputs

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [TracedRoll((dy, negative(self.inputs[1])), self.dim).output, None]

    def placement(self) -> Placement:
        return Placement(exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        ways, shard = shards.ways(self.dim), shards.size(self.dim)
        rolls = (roll_stretches(self.dim, ways, shard, distance) for distance in self.distances)
        reads = [(0, self.dim, stretch) for stretches in rolls for stretch in stretches]
        return find_exchanges(self.inputs, shards, reads)


def roll_stretches(dim: Dimension, ways: int, shard: int, by: int) -> list[Stretch]:
    """Return the rows that each device reads when a dimension rolls."""
    if dim.size == ways * shard:
        return [Stretch(shard, -by, shard, dim.size, cyclic=True)]
    return [Stretch(shard, -by, shard, dim.size), Stretch(shard, dim.size - by, shard, dim.size)]


class DynamicWindow(Window):
    """A window whose start is known only when the step runs, moved inside the dimension."""

    window: Dimension

    def placement(self) -> Placement:
        return Placement(whole=[self.window.name], exchanged=[self.dim.name])

    def batch(self, inputs: Sequence[Tensor], over: Dimension) -> tuple[list[Tensor], Tensor]:
        """Return the operands with a further dimension, and the start, moved inside."""
        *values, start = inputs
        pairs = zip(values, self.inputs, strict=False)
        if over in start.shape:
            start = clip(start, 0, self.dim.size - self.window.size)
        return [with_dim(x, over, old.shape) for x, old in pairs], start


class DynamicSlice(DynamicWindow):
    """The elements of a window."""

    linear_in = ((0,),)

    def result_dim(self) -> Dimension:
        return self.window

    def lower(self, context: Context, x: Any, start: Any) -> Any:
        tf, size = context.tf, self.window.size
        start = tf.clip_by_value(start, 0, self.dim.size - size)
        if context.ways(self.dim) > 1:
            rows = start + tf.range(size) - context.offset(self.dim)
            return context.sum(read_existing(context, x, rows, self.at), self.dim)
        return cut_rows(tf, x, self.at, start, size)

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
        (x,), start = self.batch(inputs, over)
        if over not in start.shape:
            return dataclasses.replace(self, inputs=(x, start)).outputs
        rows = gather(x, start + number_along(self.window), self.dim)
        return [transpose(rows, [over, *self.output.shape])]

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        x, start = self.inputs
        blank = zeros(x.shape, x.dtype)
        return [DynamicUpdate((blank, dy, start), self.dim, self.window).output, None]

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        if 2 * self.window.size >= self.dim.size:
            return None  # adding up sends everything twice
        count = self.window.size * shards.count_rest(self.inputs[0].shape, self.dim)
        return [Exchange("AllReduce", self.dim.name, count, self.inputs[0].dtype)]


class DynamicUpdate(DynamicWindow):
    """A tensor with the elements of a window replaced."""

    linear_in = ((0, 1),)

    def lower(self, context: Context, x: Any, update: Any, start: Any) -> Any:
        tf, size = context.tf, self.window.size
        shape, patch = self.inputs[0].shape, self.inputs[1].shape
        start = tf.clip_by_value(start, 0, self.dim.size - size)
        order = [self.window.name if name == self.dim.name else name for name in shape.names]
        update = context.arrange(update, patch, order)
        if context.ways(self.dim) > 1:
            rows = context.offset(self.dim) + tf.range(context.size(self.dim)) - start
            inside = align_rows(tf, (rows >= 0) & (rows < size), self.at, len(shape))
            return tf.where(inside, read_existing(context, update, rows, self.at), x)
        if context.compiled:
            begin = [0] * self.at + [start] + [0] * (len(shape) - self.at - 1)
            return context.xla.dynamic_update_slice(x, update, tf.stack(begin))
        before, after = x[self.index(0, start)], x[self.index(start + size, None)]
        return tf.concat([before, update, after], self.at)

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
        (x, update), start = self.batch(inputs, over)
        if over not in start.shape:
            return dataclasses.replace(self, inputs=(x, update, start)).outputs
        rows = number_along(self.dim) - start
        inside = (rows >= 0) & (rows < self.window.size)
        changed = where(inside, gather(update, rows, self.window), x)
        return [transpose(changed, [over, *self.output.shape])]

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        _x, update, start = self.inputs
        blank = zeros(update.shape, update.dtype)
        window = DynamicSlice((dy, start), self.dim, self.window).output
        rest = DynamicUpdate((dy, blank, start), self.dim, self.window).output
        return [rest, transpose(window, update.shape.dims), None]

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        return []


def read_existing(context: Context, x: Any, rows: Any, at: int) -> Any:
    """Read rows of a value, and zeros where it has none."""
    tf, count = context.tf, x.shape[at]
    inside = align_rows(tf, (rows >= 0) & (rows < count), at, len(x.shape))
    values = tf.gather(x, tf.clip_by_value(rows, 0, count - 1), axis=at)
    return tf.where(inside, values, tf.zeros([], x.dtype))


def dynamic_slice(x: Tensor, start: Tensor | int, dim: Dimension, size: int) -> Tensor:
    """Return elements in a row, from a start known when the step runs; an AllReduce if split.

    Args:
        x: The tensor.
        start: An int32 scalar, moved inside, so that all elements exist; or a whole number, which
            counts from the end if it is negative.
        dim: The dimension.
        size: The number of elements.

    Example:
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x, i: nm.dynamic_slice(x, i, S, 2), x=([S], [1, 2, 3]), i=([], 1))
        array([2, 3], dtype=int32)
    """
    check_has_dims("dynamic_slice", x, dim)
    size = check_int("dynamic_slice", "size", size, x)
    if not 1 <= size <= dim.size:
        fix = "ask for at most its size"
        raise NamedMeshError(f"dynamic_slice: {size} elements do not fit in {dim}", str(x), fix=fix)
    start = _check_start("dynamic_slice", start, x, dim, size)
    if size == dim.size:
        return x
    window = name_apart(dim.resized(size), "window", x)
    return rename(DynamicSlice((x, start), dim, window).output, window, dim.resized(size))


def dynamic_update(x: Tensor, update: Tensor, start: Tensor | int, dim: Dimension) -> Tensor:
    """Return a tensor with elements in a row replaced, from a start known at run time.

    Args:
        x: The tensor.
        update: The dimensions and dtype of `x`, with `dim` at the size to replace.
        start: An int32 scalar, moved inside, so that the whole update fits; or a whole number,
            which counts from the end if it is negative.
        dim: The dimension, as `x` has it; if it is split, every device replaces what it has.

    Example:
        >>> S = nm.Dimension("seq", 4)
        >>> x, update = ([S], [1, 2, 3, 4]), ([S.resized(2)], [8, 9])
        >>> nm.evaluate(lambda x, update: nm.dynamic_update(x, update, 1, S), x=x, update=update)
        array([1, 8, 9, 4], dtype=int32)
    """
    check_has_dims("dynamic_update", x, dim)
    patch = check_tensor("dynamic_update", update).shape.named(dim.name)
    alike = {*update.shape.without(dim.name)} == {*x.shape.without(dim.name)}
    if patch is None or patch.size > dim.size or not alike:
        problem = f"dynamic_update: the update does not fit along {dim}"
        fix = f"give it the dimensions of {x.label}, with {dim.name} at most {dim.size}"
        raise NamedMeshError(problem, str(x), str(update), fix=fix)
    if update.dtype != x.dtype:
        raise NamedMeshError(
            "dynamic_update: dtypes differ", str(x), str(update), fix="use nm.cast(update, x.dtype)"
        )
    start = _check_start("dynamic_update", start, x, dim, patch.size)
    if patch.size == dim.size:
        return transpose(update, x.shape)
    window = name_apart(patch, "window", x, update)
    return DynamicUpdate((x, rename(update, patch, window), start), dim, window).output
