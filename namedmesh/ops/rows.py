"""Rows of large tables: gradients as rows and their indices, and updates of these rows alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.differentiate import repeat_op
from namedmesh.ir.operands import check_callable, check_has_dims, check_tensor
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current, trace_body
from namedmesh.ops.broadcast import broadcast
from namedmesh.ops.cumulative import cumsum
from namedmesh.ops.elementwise import cast
from namedmesh.ops.gather import check_indices, find_rows, gather, scatter_add
from namedmesh.ops.join import concat
from namedmesh.ops.logic import not_equal, where
from namedmesh.ops.move import replicate
from namedmesh.ops.region import Enclosing
from namedmesh.ops.shape import name_apart, rename, reshape, transpose
from namedmesh.ops.slices import shift
from namedmesh.ops.sorting import argsort

Terms = list[tuple[Tensor, Tensor]]  # indices, and rows that have their dimensions


class UpdateRows(Enclosing):
    """Tables with other rows at some indices, as a body makes them of those that were there."""

    kind = "update_rows"
    manual = True
    on_shards = True
    applies_body = False  # but on rows of the tables
    dim: Dimension
    index: Dimension  # the only dimension of the indices
    tables: int  # how many operands after the indices are tables; the others are rows and captures
    adds: bool  # whether the body's rows are added

    @property
    def rests_like(self) -> range:
        """The tables, next to which the other operands are brought."""
        return range(1, 1 + self.tables)

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[i].shape, self.inputs[i].dtype) for i in self.rests_like]

    def lower(self, context: Context, indices: Any, *values: Any) -> Any:
        tf, size = context.tf, context.size(self.dim)
        indices, inside = find_rows(context, indices, self.dim)
        shapes = [x.shape for x in self.outputs]
        orders = [[self.dim.name, *shape.without(self.dim.name).names] for shape in shapes]
        tables = [
            context.arrange(table, shape, order)
            for table, shape, order in zip(values, shapes, orders, strict=False)
        ]
        read = tf.where(inside, indices, 0)
        rows = [tf.gather(table, read) for table in tables]
        changed = context.run(self.body, [*rows, *values[self.tables :]])
        # XLA drops indices outside of the table; TensorFlow by itself does not.
        places = tf.where(inside, indices, size)
        if not context.compiled:
            places = tf.boolean_mask(places, inside)
            changed = [tf.boolean_mask(one, inside) for one in changed]
        scatter = tf.tensor_scatter_nd_add if self.adds else tf.tensor_scatter_nd_update
        results = []
        for table, one, shape, order in zip(tables, changed, shapes, orders, strict=True):
            result = scatter(table, places[:, None], one)
            results.append(context.arrange(result, shape.select(order), shape.names))
        return results

    def flops(self) -> int:
        return sum(op.flops() for op in self.body.ops)

    def placement(self) -> Placement:
        return Placement(whole=[self.index.name])


def update_rows(
    function: Callable[..., Tensor | Sequence[Tensor]],
    tables: Tensor | Sequence[Tensor],
    indices: Tensor,
    dim: Dimension,
    *rows: Tensor,
    adds: bool = False,
) -> list[Tensor]:
    """Return tables in which a function replaced the rows at some indices; the others stay.

    Each device changes the rows that it has, in place where the table is not needed any more.

    Args:
        function: Called with the rows of every table, then with `rows`; returns the tables' new
            rows. It works on each element by itself.
        tables: One table or several that have `dim`.
        indices: Integers along one new dimension, each once at most unless `adds`; what is outside
            `dim` changes nothing. `nm.row_gradient` returns such.
        dim: The dimension of the tables to index.
        *rows: Tensors that have the dimension of the indices in place of `dim`.
        adds: Whether what the function returns is added to the rows instead.

    Example:
        >>> B, V = nm.dims("batch=2 vocab=4")
        >>> def double(table, i):
        ...     return nm.update_rows(lambda row: row * 2, table, i, V)[0]
        >>> nm.evaluate(double, table=([V], [1, 2, 3, 4]), i=([B], [3, 0]))
        array([2, 2, 3, 8], dtype=int32)
    """
    what = "update_rows"
    check_callable(what, function)
    several = [tables] if isinstance(tables, Tensor) else list(tables)
    for table in several:
        check_has_dims(what, table, dim)
    check_indices(what, indices)
    if len(indices.shape) != 1 or any(indices.shape[0].name in x.shape.names for x in several):
        raise NamedMeshError(
            f"{what}: the indices need one dimension that no table has",
            str(indices),
            *map(str, several),
            fix="use nm.reshape or nm.rename",
        )
    (index,) = indices.shape
    for one in rows:
        check_has_dims(what, one, index)
    shapes = [table.shape.replace(dim.name, index) for table in several]
    # The function sees rows with the index first: so they are read and written.
    shapes = [Shape([index, *shape.without(index.name)]) for shape in shapes]
    specs = [(shape, x.dtype, x.label) for shape, x in zip(shapes, several, strict=True)]
    specs += [(one.shape, one.dtype, one.label) for one in rows]

    def compute(*values: Tensor) -> list[Tensor]:
        results = function(*values)
        results = [results] if isinstance(results, Tensor) else list(results)
        if len(results) != len(several):
            raise NamedMeshError(
                f"{what}: the function returned {len(results)} tensors for {len(several)} tables",
                *map(str, several),
                fix="return the new rows of every table",
            )
        pairs = zip(results, shapes, several, strict=True)
        return [_check_rows(what, one, shape, table) for one, shape, table in pairs]

    body, _ = trace_body(compute, specs, outer=(*several, *rows))
    inputs = (indices, *several, *rows, *body.captured)
    return list(UpdateRows(inputs, body, dim, index, len(several), adds).outputs)


def _check_rows(what: str, rows: Tensor, shape: Shape, table: Tensor) -> Tensor:
    """Return rows in the order of a shape, or raise if they are not like those of a table."""
    check_tensor(what, rows)
    if {*rows.shape} != {*shape} or rows.dtype != table.dtype:
        raise NamedMeshError(
            f"{what}: the function returned {rows.dtype}{rows.shape} "
            f"for rows {table.dtype}{shape} of {table.label}",
            str(table),
            fix="return rows of the same dimensions and dtype",
        )
    return transpose(rows, shape)


def row_gradient(
    gradient: Tensor, dim: Dimension, sum_duplicates: bool = True
) -> tuple[Tensor, Tensor]:
    """Return a table's gradient as indices and rows: that of `nm.gather` and sums of such.

    The gradient of the whole table is then never made. Both are gathered, so that every device can
    change the rows that it has; see `nm.update_rows`.

    Args:
        gradient: What `nm.grad` returned for the table, perhaps multiplied by a scalar.
        dim: The dimension of the table that lookups index.
        sum_duplicates: Add up the rows of an index that is there several times, so that each is
            there once; -1 takes the other places.

    Returns:
        The indices, along a new dimension, and the rows: that dimension, then the table's others.

    Example:
        >>> B, V = nm.dims("batch=3 vocab=9")
        >>> def rows(table, i):
        ...     loss = nm.sum(nm.gather(table, i, V))
        ...     return nm.row_gradient(nm.grad(loss, table), V)
        >>> nm.evaluate(rows, table=([V], [1.0] * 9), i=([B], [7, 2, 7]))
        (array([ 2,  7, -1], dtype=int32), array([1., 2., 0.], dtype=float32))
    """
    what = "row_gradient"
    check_has_dims(what, gradient, dim)
    terms = _find_terms(gradient, dim)
    if not terms:
        raise NamedMeshError(
            f"{what}: {gradient.label} is not made of rows along {dim}",
            str(gradient),
            fix="look the table up by nm.gather alone, outside of loops, and pass what nm.grad "
            "returned; or leave out rows= where the table is made",
        )
    size = sum(math.prod(indices.shape.sizes) for indices, _ in terms)
    index = name_apart(dim.resized(size), "rows", gradient, *(x for term in terms for x in term))
    flat = [_flatten_term(*term, index) for term in terms]
    indices, rows = (
        concat(parts, index.name) if len(parts) > 1 else parts[0]
        for parts in (list(one) for one in zip(*flat, strict=True))
    )
    wide = indices.dtype in ("int64", "uint32")
    indices = cast(indices, "int64" if wide else "int32")
    indices = where((indices >= 0) & (indices < dim.size), indices, -1)
    if not sum_duplicates:
        return indices, rows
    return _sum_duplicates(indices, rows, index)


def _find_terms(gradient: Tensor, dim: Dimension) -> Terms | None:
    """Find the indices and rows that a gradient is the sum of; None if there is more in it."""
    op = current("row_gradient").find_maker(gradient)
    if op is None:
        return None
    if op.zero:
        return []
    if op.added_rows is not None:
        indices, rows, along = op.added_rows
        return [(indices, rows)] if along == dim else None
    if op.adds_operands:
        parts = [_find_terms(x, dim) for x in op.inputs]
        return None if None in parts else [term for part in parts for term in part or ()]
    # What is linear in the gradient, with scalars besides, may be computed of its rows.
    large = [i for i, x in enumerate(op.inputs) if len(x.shape)]
    if not op.elementwise or len(large) != 1 or (large[0],) not in op.linear_in:
        return None
    (at,) = large
    terms = _find_terms(op.inputs[at], dim)
    if terms is None:
        return None
    inputs = op.inputs
    return [
        (indices, repeat_op(op, (*inputs[:at], rows, *inputs[at + 1 :])).output)
        for indices, rows in terms
    ]


def _flatten_term(indices: Tensor, rows: Tensor, index: Dimension) -> tuple[Tensor, Tensor]:
    """Gather indices and rows, and give them one dimension of the same name."""
    dims = list(indices.shape)
    own = index.resized(math.prod(indices.shape.sizes))
    rest = [dim for dim in rows.shape if dim not in indices.shape]
    if not dims:
        return broadcast(indices, [own]), broadcast(rows, [own, *rest])
    held = [dim for dim in dims if dim in rows.shape]  # a bag has one row for all its indices
    indices, rows = replicate(indices, *dims), replicate(rows, *held) if held else rows
    rows = broadcast(rows, [*dims, *rest])
    if len(dims) == 1:
        return rename(indices, dims[0], own), rename(rows, dims[0], own)
    return reshape(indices, dims, own), reshape(rows, dims, own)


def _sum_duplicates(indices: Tensor, rows: Tensor, index: Dimension) -> tuple[Tensor, Tensor]:
    """Add up rows of equal indices, in the order of these; -1 and zeros fill what is left."""
    if index.size == 1:
        return indices, where(indices >= 0, rows, 0.0)
    order = argsort(indices, index)
    ordered = gather(indices, order, index)
    first = not_equal(ordered, shift(ordered, index, 1, -1))
    # Rows without an index come first, and their place is outside.
    place = cumsum(cast(first, "int32"), index) - 1
    unique = scatter_add(where(first, ordered + 1, 0), place, index) - 1
    return unique, scatter_add(gather(rows, order, index), place, index)
