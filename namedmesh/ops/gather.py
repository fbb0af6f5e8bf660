"""Reading and writing by index along one named dimension."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, check_word
from namedmesh.ir.context import Context
from namedmesh.ir.interface import check_dtype
from namedmesh.ir.literal import as_tensor, check_number
from namedmesh.ir.literal import fill as make_filled
from namedmesh.ir.op import Number, Op
from namedmesh.ir.operands import (
    as_tuple,
    check_dimension,
    check_dtype_kind,
    check_has_dims,
    check_same_sizes,
    check_tensor,
    make_shape,
)
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import INTEGERS, OPERATORS, Tensor
from namedmesh.ir.trace import current
from namedmesh.ops.broadcast import fit
from namedmesh.ops.elementwise import apply, cast
from namedmesh.ops.halo import align_rows, count_rows
from namedmesh.ops.shape import name_apart, rename, transpose

WAYS = ("rows", "table")  # what devices send where the table of a lookup is split


class OneHot(Op):
    """Ones at some indices along a new last dimension, zeros elsewhere."""

    by_name = True
    closed = True
    dim: Dimension
    dtype: str

    def results(self) -> list[tuple[Shape, str]]:
        return [(Shape([*self.inputs[0].shape, self.dim]), self.dtype)]

    def lower(self, context: Context, indices: Any) -> Any:
        tf = context.tf
        indices = _widen(tf, indices)
        numbers = tf.range(context.size(self.dim), dtype=indices.dtype)
        indices = tf.expand_dims(_localize(context, indices, self.dim), -1)
        return tf.cast(tf.equal(indices, numbers), tf.as_dtype(self.dtype))

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [None]


class Gather(Op):
    """Slices of a table at some indices along a dimension, zeros for an index outside it."""

    linear_in = ((0,),)
    by_name = True
    broadcasts = True
    manual = True
    on_shards = True
    any_padding = True
    dim: Dimension
    send: str | None = None  # one of WAYS; None for what sends less
    send_gradient: str | None = None

    @property
    def batch(self) -> list[str]:
        """Dimensions that table and indices share."""
        others = self.inputs[0].shape.without(self.dim.name)
        return [name for name in self.inputs[1].shape.names if name in others.names]

    @property
    def looks_up(self) -> Dimension | None:
        return None if self.batch or self.send_gradient == "table" else self.dim

    def results(self) -> list[tuple[Shape, str]]:
        table, indices = self.inputs
        rest = [dim for dim in table.shape if dim.name not in (self.dim.name, *self.batch)]
        return [(Shape([*indices.shape, *rest]), table.dtype)]

    def lower(self, context: Context, table: Any, indices: Any) -> Any:
        tf = context.tf
        table_shape, index_shape = (tensor.shape for tensor in self.inputs)
        batch = self.batch
        others = [name for name in index_shape.names if name not in batch]
        rest = [name for name in table_shape.names if name not in (self.dim.name, *batch)]
        table = context.arrange(table, table_shape, [*batch, self.dim.name, *rest])
        indices = context.arrange(indices, index_shape, [*batch, *others])
        indices, inside = find_rows(context, indices, self.dim)
        read = indices if context.compiled else tf.where(inside, indices, 0)  # XLA clamps them
        slices = tf.gather(table, read, axis=len(batch), batch_dims=len(batch))
        mask = tf.reshape(inside, inside.shape.as_list() + [1] * len(rest))
        slices = tf.where(mask, slices, tf.zeros([], slices.dtype))
        shape = self.output.shape
        return context.arrange(slices, shape.select([*batch, *others, *rest]), shape.names)

    def find_equal(self, known: Mapping[Tensor, Number]) -> Tensor | None:
        table, index = self.inputs
        maker, row = current("gather").find_maker(table), int(known.get(index, -1))
        rows = None if row < 0 or maker is None else maker.find_rows(self.dim.name, row, row + 1)
        if rows is None:
            return None
        part, first = rows
        dim = self.dim.resized(part.shape.size_of(self.dim.name))
        inputs = part, make_filled(index.shape, row - first, index.dtype)
        again = dataclasses.replace(self, inputs=inputs, dim=dim).output
        return transpose(again, self.output.shape)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        table, indices = self.inputs
        ways = self.send_gradient, self.send
        # Of a sum over rows of a bag the gradient is one row, repeated where it is added.
        maker = current("gather").find_maker(dy)
        if maker is not None and maker.kind == "broadcast":
            lacking = {*dy.shape.names}.difference(maker.inputs[0].shape.names)
            if lacking.issubset({*indices.shape.names}.difference(self.batch)):
                (dy,) = maker.inputs
        return [ScatterAdd((indices, dy), self.dim, table.shape, *ways).output, None]

    def placement(self) -> Placement:
        # Of a split table either the table is gathered, or the indices, and rows are added up.
        if self.send == "table":
            return Placement(whole=[self.dim.name])
        own = {*self.inputs[1].shape.names}.difference(self.batch)
        priced = own if self.send == "rows" else {self.dim.name, *own}
        return Placement(reduced=[self.dim.name], priced=priced)


class Scatter(Op):
    """Updates combined at some indices along a dimension of a tensor that they fill."""

    by_name = True
    manual = True
    on_shards = True
    function = "add"
    dim: Dimension
    shape: Shape

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.shape, self.inputs[1].dtype)]

    def start(self, dtype: Any) -> Any:
        """Return the number that changes nothing."""
        return 0

    def widen(self, context: Context, updates: Any) -> Any:
        """Convert updates to the dtype in which they are combined."""
        # Many rows may fall on one: eight bits would lose most of them, and GPUs add 16-bit floats
        # a hundred times slower than 32-bit ones.
        return context.tf.cast(updates, context.dtype(self.summed_in))

    def narrow_to(self, context: Context, target: Any) -> Any:
        """Convert what was combined to the result's dtype."""
        return context.tf.cast(target, context.dtype(self.output.dtype))

    def lower(self, context: Context, indices: Any, updates: Any) -> Any:
        tf = context.tf
        updates = self.widen(context, updates)
        index_shape, update_shape = (tensor.shape for tensor in self.inputs)
        batch = [name for name in index_shape.names if name in self.shape.names]
        others = [name for name in index_shape.names if name not in batch]
        rest = [name for name in self.shape.names if name not in (self.dim.name, *batch)]
        indices = context.arrange(indices, index_shape, [*batch, *others])
        order = Shape([*index_shape.select([*batch, *others]), *self.shape.select(rest)])
        updates = context.align(updates, update_shape, order)
        updates = tf.broadcast_to(updates, context.sizes(order))
        size = context.size(self.dim)
        indices, inside = find_rows(context, indices, self.dim)
        bounded = is_bounded(context, self.dim)
        # Updates that padding repeats along a dimension they lack are not zero there.
        for at, one in enumerate(index_shape.select([*batch, *others])):
            padded = context.size(one) * context.ways(one) > one.size
            if padded and one.name not in update_shape.names:
                exists = count_rows(context, one) < one.size
                inside &= align_rows(tf, exists, at, len(index_shape))
                bounded = False
        indices = indices if bounded else tf.where(inside, indices, size)
        grid = [_count_along(tf, indices, i) for i in range(len(batch))]
        shape = self.shape.select([*batch, self.dim.name, *rest])
        sizes = context.sizes(shape)
        if not context.compiled:
            sizes[len(batch)] += 1  # a row for indices outside, which XLA drops by itself
        target = tf.fill(sizes, tf.cast(self.start(updates.dtype), updates.dtype))
        places = tf.stack([*grid, indices], -1)
        if not len(index_shape):  # TensorFlow wants a list of indices
            places, updates = places[None], updates[None]
        target = getattr(tf, f"tensor_scatter_nd_{self.function}")(target, places, updates)
        target = self.narrow_to(context, target)
        if not context.compiled:
            target = target[(*[slice(None)] * len(batch), slice(0, size))]
        return context.arrange(target, shape, self.shape.names)

    def flops(self) -> int:
        return self.inputs[1].shape.elements if self.inputs[1].floating else 0

    @property
    def merged(self) -> set[str]:
        """The dimensions of the indices that the result lacks."""
        return set(self.inputs[0].shape.names) - set(self.shape.names)


class ScatterAdd(Scatter):
    """Zeros with updates added at some indices along a dimension."""

    linear_in = ((1,),)
    late_sums = False
    send: str | None = None
    send_gradient: str | None = None

    @property
    def summed_in(self) -> str:
        dtype = self.output.dtype
        return "float32" if self.output.floating and self.output.itemsize < 4 else dtype

    @property
    def added_rows(self) -> tuple[Tensor, Tensor, Dimension] | None:
        indices, updates = self.inputs
        if self.send == "table" or self.merged != {*indices.shape.names}:
            return None
        return indices, updates, self.dim

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        indices, updates = self.inputs
        ways = self.send_gradient, self.send
        return [None, fit(Gather((dy, indices), self.dim, *ways).output, updates.shape)]

    def placement(self) -> Placement:
        # Either indices and rows are gathered, or what each device made of its own is added up.
        if self.send == "rows":
            return Placement(whole=self.merged)
        return Placement(reduced=self.merged, priced=() if self.send else self.merged)


def _localize(context: Context, indices: Any, dim: Dimension) -> Any:
    """Count indices from the start of a device's own shard."""
    offset = context.offset(dim)
    return indices if offset is None else indices - context.tf.cast(offset, indices.dtype)


def find_rows(context: Context, indices: Any, dim: Dimension) -> tuple[Any, Any]:
    """Count indices from the start of a device's own shard, and tell which of them are in it."""
    tf, indices, size = context.tf, _widen(context.tf, indices), context.size(dim)
    end, offset = size, context.offset(dim)
    if offset is not None and size * context.ways(dim) > dim.size:  # the last shards are padded
        end = tf.cast(tf.minimum(size, dim.size - offset), indices.dtype)
    indices = _localize(context, indices, dim)
    return indices, (indices >= 0) & (indices < end)


def is_bounded(context: Context, dim: Dimension) -> bool:
    """Return whether indices that XLA drops by itself, outside a shard, are all outside `dim`."""
    return context.compiled and context.size(dim) * context.ways(dim) <= dim.size


def _widen(tf: Any, indices: Any) -> Any:
    """Convert indices to a dtype that holds every size: int64 for uint32 and int64, or int32."""
    return tf.cast(indices, tf.int64 if indices.dtype in (tf.int64, tf.uint32) else tf.int32)


def _count_along(tf: Any, indices: Any, at: int) -> Any:
    """Return each index's own position along one of the indices' dimensions."""
    sizes = indices.shape.as_list()
    numbers = tf.range(sizes[at], dtype=indices.dtype)
    aligned = tf.reshape(numbers, [-1 if i == at else 1 for i in range(len(sizes))])
    return tf.broadcast_to(aligned, sizes)


def check_indices(what: str, indices: Tensor) -> Tensor:
    """Return the indices when they are integers, or raise."""
    if check_tensor(what, indices).dtype not in INTEGERS:
        fix = f"use nm.cast({indices.label}, 'int32')"
        raise NamedMeshError(f"{what}: the indices are not integers", str(indices), fix=fix)
    return indices


def check_ways(what: str, *ways: str | None) -> tuple[str | None, ...]:
    """Return what devices are to send, for an op and its gradient, or raise for another word."""
    for way in ways:
        if way is not None:
            check_word(f"thing that {what} sends", way, WAYS)
    return ways


def one_hot(indices: Tensor, dim: Dimension, dtype: str = "float32") -> Tensor:
    """Return ones at indices along a new last dimension, and zeros elsewhere.

    Args:
        indices: A tensor of integers; one outside the dimension gives zeros alone.
        dim: The new dimension.
        dtype: The dtype of the result.

    Example:
        >>> nm.evaluate(lambda i: nm.one_hot(i, nm.Dimension("vocab", 3)), i=([], 1))
        array([0., 1., 0.], dtype=float32)
    """
    check_indices("one_hot", indices)
    if indices.shape.named(check_dimension("one_hot", dim, indices).name):
        fix = "give a Dimension that the indices do not have"
        raise NamedMeshError(f"one_hot: {dim} is not a new dimension", str(indices), fix=fix)
    return OneHot((indices,), dim, check_dtype(dtype)).output


def gather(
    table: Tensor,
    indices: Any,
    dim: Dimension | Sequence[Dimension],
    send: str | None = None,
    send_gradient: str | None = None,
    mode: str = "fill",
    fill: Number = 0,
) -> Tensor:
    """Return slices of a table at indices: their dimensions, then the table's others.

    Dimensions that both have are batch dimensions. If `dim` is split, what sends fewer bytes is
    done: devices gather the indices, each reads the rows that it has, and these are added up (an
    AllReduce or a ReduceScatter); or they gather the table. `plan.decisions` tells which.

    Args:
        table: The tensor to read.
        indices: A tensor of integers. Or numbers known while tracing, one or a list, as in
            `x[dim, -1]`: they count from the end if they are negative, and one outside is an error.
        dim: The dimension of the table to index; or several, with a list of indices for them.
        send: `rows` or `table`, to decide it yourself.
        send_gradient: The same for the gradient: `rows` gathers the rows' gradients and their
            indices, `table` adds up the gradient of the whole table.
        mode: What an index of a tensor reads that is outside the dimension, as negative ones are:
            `fill` reads a number, `clip` the nearest element, `wrap` counts on from the other end.
        fill: The number.

    Example:
        >>> B, V = nm.dims("batch=3 vocab=3")
        >>> nm.evaluate(lambda x, i: nm.gather(x, i, V), x=([V], [10, 20, 30]), i=([B], [2, 0, 7]))
        array([30, 10,  0], dtype=int32)
    """
    check_word("mode of gather", mode, ("fill", "clip", "wrap"))
    if not isinstance(indices, Tensor) or not isinstance(dim, Dimension):
        if mode != "fill" or fill != 0 or send or send_gradient:
            problem = "gather: its options are for a tensor of indices along one dimension"
            raise NamedMeshError(problem, str(table), fix="leave them out, or gather step by step")
        return OPERATORS["gather_several"](check_tensor("gather", table), indices, dim)
    check_has_dims("gather", table, dim)
    check_indices("gather", indices)
    check_same_sizes("gather", table, indices, but=dim.name)
    ways = check_ways("gather", send, send_gradient)
    if mode != "fill":
        if indices.dtype != "int64":
            indices = cast(indices, "int32")
        last = as_tensor("gather", dim.size - 1, indices)
        size = as_tensor("gather", dim.size, indices)
        inside = apply("minimum", apply("maximum", indices, 0), last)
        indices = inside if mode == "clip" else apply("remainder", indices, size)
    number = check_number("gather: fill", fill, table.dtype, table)
    if table.dtype == "bool":  # what devices have of the result is added up, and bools are not
        whole, (send, send_gradient) = cast(table, "int32"), ways
        return cast(gather(whole, indices, dim, send, send_gradient, fill=int(number)), "bool")
    own = indices.shape.named(dim.name)
    if own is None:
        read = Gather((table, indices), dim, *ways).output
    else:
        apart = name_apart(own, "index", table, indices)
        read = Gather((table, rename(indices, own, apart)), dim, *ways).output
        read = rename(read, apart, own)
    if mode != "fill" or number == 0:
        return read
    inside = apply("logical_and", indices >= 0, indices < dim.size)
    return transpose(apply("where", inside, read, number), read.shape)


def scatter_add(
    updates: Tensor,
    indices: Tensor,
    dim: Dimension,
    batch: Sequence[Dimension] = (),
    send: str | None = None,
    send_gradient: str | None = None,
) -> Tensor:
    """Return zeros with updates added at indices: the batch, the new dimension, the others.

    Other dimensions of the indices are summed over. Where they are split, what sends fewer bytes is
    done: indices and updates are gathered, or the results are added up. `plan.decisions` tells it.

    Args:
        updates: A tensor of numbers with all dimensions of the indices, and perhaps others.
        indices: A tensor of integers; one outside the dimension adds nothing.
        dim: The new dimension.
        batch: Dimensions of the indices to keep in the result.
        send: `rows` (indices and updates) or `table` (results), to decide it yourself.
        send_gradient: The same for the gradient, as `nm.gather` has it.

    Example:
        >>> B, V = nm.dims("batch=2 vocab=3")
        >>> nm.evaluate(lambda u, i: nm.scatter_add(u, i, V), u=([B], [1, 2]), i=([B], [2, 0]))
        array([2, 0, 1], dtype=int32)
    """
    check_indices("scatter_add", indices)
    check_has_dims("scatter_add", updates, *indices.shape)
    check_dtype_kind("scatter_add", "number", updates)
    ways = check_ways("scatter_add", send, send_gradient)
    batch_dims = as_tuple(batch)
    check_has_dims("scatter_add", indices, *batch_dims)
    own = indices.shape.named(check_dimension("scatter_add", dim, updates, indices).name)
    if own is not None:
        apart = name_apart(own, "index", updates, indices)
        updates, indices = rename(updates, own, apart), rename(indices, own, apart)
    rest = [other for other in updates.shape if other.name not in indices.shape.names]
    shape = make_shape("scatter_add", [*batch_dims, dim, *rest], updates, indices)
    return ScatterAdd((indices, updates), dim, shape, *ways).output
