"""Windows of a dimension whose start is known only when the step runs."""

from __future__ import annotations

from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.exchange import Exchange, Shards
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.operands import check_has_dims, check_int, check_tensor
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.along import Window
from namedmesh.ops.constants import zeros
from namedmesh.ops.shape import name_apart, rename, transpose


class DynamicSlice(Window):
    """A window whose start is known only when the step runs, moved inside the dimension.

    Where the dimension is split, every device gives what it has of the window, and all is added up.
    """

    window: Dimension

    def result_dim(self) -> Dimension:
        return self.window

    def lower(self, context: Context, x: Any, start: Any) -> Any:
        tf = context.tf
        size = self.window.size
        start = tf.clip_by_value(start, 0, self.dim.size - size)
        if context.ways(self.dim) > 1:
            rows = start + tf.range(size) - context.offset(self.dim)
            return context.sum(read_existing(context, x, rows, self.at), self.dim)
        begin = [0] * self.at + [start] + [0] * (len(self.inputs[0].shape) - self.at - 1)
        sizes = context.sizes(self.inputs[0].shape)
        sizes[self.at] = size
        return tf.slice(x, tf.stack(begin), sizes)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        x, start = self.inputs
        return [
            DynamicUpdate((zeros(x.shape, x.dtype), dy, start), self.dim, self.window).output,
            None,
        ]

    def placement(self) -> Placement:
        return Placement(whole=[self.window.name], exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        if 2 * self.window.size >= self.dim.size:
            return None  # adding up sends everything twice
        count = self.window.size * shards.count_rest(self.inputs[0].shape, self.dim)
        return [Exchange("AllReduce", self.dim.name, count, self.inputs[0].dtype)]


class DynamicUpdate(Window):
    """A tensor with a window replaced whose start is known only when the step runs.

    Where the dimension is split, every device replaces what it has of the window.
    """

    window: Dimension

    def lower(self, context: Context, x: Any, update: Any, start: Any) -> Any:
        tf = context.tf
        shape, patch = self.inputs[0].shape, self.inputs[1].shape
        size = self.window.size
        start = tf.clip_by_value(start, 0, self.dim.size - size)
        order = [self.window.name if name == self.dim.name else name for name in shape.names]
        update = context.arrange(update, patch, order)
        if context.ways(self.dim) > 1:
            rows = context.offset(self.dim) + tf.range(context.size(self.dim)) - start
            inside = tf.reshape(
                (rows >= 0) & (rows < size), [-1, *[1] * (len(shape) - self.at - 1)]
            )
            return tf.where(inside, read_existing(context, update, rows, self.at), x)
        if context.compiled:
            begin = [0] * self.at + [start] + [0] * (len(shape) - self.at - 1)
            return context.xla.dynamic_update_slice(x, update, tf.stack(begin))
        before, after = x[self.index(0, start)], x[self.index(start + size, None)]
        return tf.concat([before, update, after], self.at)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        _x, update, start = self.inputs
        blank = zeros(update.shape, update.dtype)
        window = DynamicSlice((dy, start), self.dim, self.window).output
        return [
            DynamicUpdate((dy, blank, start), self.dim, self.window).output,
            transpose(window, update.shape.dims),
            None,
        ]

    def placement(self) -> Placement:
        return Placement(whole=[self.window.name], exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        return []


def read_existing(context: Context, x: Any, rows: Any, at: int) -> Any:
    """Read rows of a value, and zeros where it has none."""
    tf, count = context.tf, x.shape[at]
    inside = (rows >= 0) & (rows < count)
    found = tf.gather(x, tf.clip_by_value(rows, 0, count - 1), axis=at)
    inside = tf.reshape(inside, [-1, *[1] * (len(x.shape) - at - 1)])
    return tf.where(inside, found, tf.zeros([], x.dtype))


def dynamic_slice(x: Tensor, start: Tensor | int, dim: Dimension, size: int) -> Tensor:
    """Take elements in a row along a dimension, from a start that is known when the step runs.

    Where the dimension is split, every device gives what it has of the elements: an AllReduce of
    those alone. A start outside is moved inside, so that all elements lie in the dimension.

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
    start = _check_start("dynamic_slice", start)
    if size == dim.size:
        return x
    window = name_apart(dim.resized(size), "window", x)
    return rename(DynamicSlice((x, start), dim, window).output, window, dim.resized(size))


def dynamic_update(x: Tensor, update: Tensor, start: Tensor | int, dim: Dimension) -> Tensor:
    """Replace elements in a row along a dimension, from a start that is known when the step runs.

    Where the dimension is split, every device replaces what it has of the elements, for which the
    update is made whole. A start outside is moved inside, so that the whole update lies in the
    dimension.

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
    start = _check_start("dynamic_update", start)
    if patch.size == dim.size:
        return transpose(update, x.shape)
    window = name_apart(patch, "window", x, update)
    return DynamicUpdate((x, rename(update, patch, window), start), dim, window).output


def _check_start(what: str, start: Tensor | int) -> Tensor:
    """Return the start as a tensor when it is an int32 scalar, or raises."""
    index = as_tensor(what, start)
    if len(index.shape) or index.dtype != "int32":
        raise NamedMeshError(
            f"{what}: the start is not an int32 scalar",
            str(index),
            fix="use nm.cast(start, 'int32')",
        )
    return index
