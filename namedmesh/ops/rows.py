"""Rows of large tables: gradients as rows and their indices, and updates of these rows alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, join_names
from namedmesh.errors.source import Source
from namedmesh.ir.context import Context
from namedmesh.ir.differentiate import repeat_op
from namedmesh.ir.op import Body, Op, PlacementRules, every_op
from namedmesh.ir.operands import check_callable, check_has_dims, check_tensor
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current, trace_body
from namedmesh.ops.broadcast import broadcast
from namedmesh.ops.constants import range as count_along
from namedmesh.ops.constants import zeros
from namedmesh.ops.elementwise import cast
from namedmesh.ops.gather import ScatterAdd, check_indices, find_rows, is_bounded, scatter_add
from namedmesh.ops.join import concat
from namedmesh.ops.logic import equal, where
from namedmesh.ops.move import replicate
from namedmesh.ops.region import Enclosing
from namedmesh.ops.shape import name_apart, rename, reshape, transpose

Terms = list[tuple[Tensor, Tensor]]  # indices, and rows that have their dimensions


class FirstEqual(Op):
    """The position of the first element that equals each one, of whole numbers."""

    manual = True
    index: Dimension  # the only dimension

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape, "int32")]

    def lower(self, context: Context, numbers: Any) -> Any:
        # Sorting takes several times as long. In each round an element writes its position into the
        # bucket that its number falls in; the first one there, and all that equal it, are done.
        tf, size = context.tf, self.index.size
        buckets = 4 << size.bit_length()
        positions = tf.range(size)
        keys = tf.bitcast(tf.cast(numbers, tf.int32), tf.uint32)

        def find(round: Any, first: Any) -> list[Any]:
            factor = round * 0x9E3779B2 + 0x9E3779B1  # odd, and another one in each round
            places = tf.bitwise.right_shift(keys * factor, 32 - buckets.bit_length() + 1)
            places = tf.where(first < size, buckets, tf.bitcast(places, tf.int32))
            table = tf.fill([buckets + 1], size)
            table = tf.tensor_scatter_nd_min(table, places[:, None], positions)
            candidates = tf.gather(table, places)
            same = tf.equal(tf.gather(numbers, tf.minimum(candidates, size - 1)), numbers)
            return [round + 1, tf.where(same & (first == size), candidates, first)]

        start = [tf.constant(0, tf.uint32), tf.fill([size], size)]
        _, first = tf.while_loop(lambda _, first: tf.reduce_any(first == size), find, start)
        return first

    def placement(self) -> Placement:
        return Placement(whole=[self.index.name])


class UpdateRows(Enclosing):
    """Tables with other rows at some indices, as a body makes them of those that were there."""

    kind = "update_rows"
    manual = True
    on_shards = True
    any_padding = True
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
        # XLA reads the nearest row for an index outside of the table, and drops what is written
        # there; TensorFlow by itself does not.
        read = indices if context.compiled else tf.where(inside, indices, 0)
        rows = [tf.gather(table, read) for table in tables]
        changed = context.run(self.body, [*rows, *values[self.tables :]])
        places = indices if is_bounded(context, self.dim) else tf.where(inside, indices, size)
        if not context.compiled:
            places = tf.boolean_mask(places, inside)
            changed = [tf.boolean_mask(one, inside) for one in changed]
        scatter = tf.tensor_scatter_nd_add if self.adds else tf.tensor_scatter_nd_update
        results = []
        for table, one, shape, order in zip(tables, changed, shapes, orders, strict=True):
            result = scatter(table, places[:, None], one)
            results.append(context.arrange(result, shape.select(order), shape.names))
        return results

    def placement(self) -> Placement:
        mixed = (op.placement().mixed for op in every_op(self.body.ops))
        return Placement(whole={self.index.name}.union(*mixed))


class DescendRows(Op):
    """A table less a rate times its gradient; less one row after another where a device has all."""

    kind = "descend_rows"
    passes_through = True
    offers_kernel = True
    dim: Dimension  # of operands: the result, indices and rows of the gradient, the table, the rate

    @property
    def rest(self) -> Shape:
        """The dimensions of a row."""
        return self.inputs[0].shape.without(self.dim.name)

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context: Context, plain: Any, *values: Any) -> Any:
        tf = context.tf
        if not context.calls_kernel(self):
            return tf.identity(plain)
        indices, rows, table, rate = values
        shape, order = self.output.shape, [self.dim.name, *self.rest.names]
        each = Shape([*self.inputs[1].shape, *self.rest])
        rows = context.align(rows * -rate, self.inputs[2].shape, each)
        rows = tf.broadcast_to(rows, context.sizes(each))  # a bag has one for all its indices
        rows = tf.reshape(rows, [-1, *context.sizes(self.rest)])
        places = tf.reshape(find_rows(context, indices, self.dim)[0], [-1, 1])
        table = context.arrange(table, shape, order)
        table = tf.tensor_scatter_nd_add(table, places, rows)  # XLA drops what is outside
        return context.arrange(table, shape.select(order), shape.names)

    def plan(self, rules: PlacementRules, times: int) -> None:
        rules.place_kernel(self, times, self.rest.names)


def descend_rows(table: Tensor, gradient: Tensor, rate: Tensor, dim: Dimension) -> Tensor:
    """Return a table less a rate times its gradient, by rows if nothing of them is split."""
    plain = table - gradient * rate
    op = current("descend_rows").find_maker(gradient)
    if op is None or op.added_rows is None or op.added_rows[2] != dim:
        return plain
    return DescendRows((plain, *op.added_rows[:2], table, rate), dim).output


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
            rows, each made of its own.
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
        made = function(*values)
        results: list[Any] = [*made] if isinstance(made, (list, tuple)) else [made]
        if len(results) != len(several):
            raise NamedMeshError(
                f"{what}: the function returned {len(results)} tensors for {len(several)} tables",
                *map(str, several),
                fix="return the new rows of every table",
            )
        pairs = zip(results, shapes, several, strict=True)
        return [_check_rows(what, one, shape, table) for one, shape, table in pairs]

    body, _ = trace_body(compute, specs, outer=(*several, *rows))
    for op in every_op(body.ops):
        if index.name in op.placement().mixed:
            raise op.error(
                f"mixes rows along {index}, of which a device reads those that it has",
                *map(str, op.inputs),
                fix=f"read rows by nm.gather, compute this before {what} and pass it as rows",
            )
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

    The gradient of the whole table is then never made. Every device gets all indices; rows are
    gathered where `nm.update_rows` reads them, so that every device can change those that it has.

    Args:
        gradient: What `nm.grad` returned for the table, perhaps multiplied by a scalar.
        dim: The dimension of the table that lookups index.
        sum_duplicates: Add up the rows of an index that is there several times, so that each is
            there once; -1 takes the other places.

    Returns:
        The indices, along one dimension that the table lacks, and the rows, which have it too.

    Example:
        >>> B, V = nm.dims("batch=3 vocab=9")
        >>> def rows(table, i):
        ...     loss = nm.sum(nm.gather(table, i, V))
        ...     return nm.row_gradient(nm.grad(loss, table), V)
        >>> nm.evaluate(rows, table=([V], [1.0] * 9), i=([B], [7, 2, 7]))
        (array([ 7,  2, -1], dtype=int32), array([2., 1., 0.], dtype=float32))
    """
    what = "row_gradient"
    check_has_dims(what, gradient, dim)
    terms = find_terms(gradient, dim)
    if not terms:
        cause, fix, source = _find_cause(gradient, dim)
        raise NamedMeshError(
            f"{what}: {gradient.label} is not made of rows along {dim}: {cause}",
            str(gradient),
            fix=f"{fix}; or leave out rows= where the table is made",
            source=source,
        )
    indices, rows = terms[0]
    single = len(terms) == len(indices.shape) == 1 and {*indices.shape} <= {*rows.shape}
    if single and not sum_duplicates:  # what is computed of rows is computed of their shards
        return replicate(indices, *indices.shape), rows
    size = sum(math.prod(indices.shape.sizes) for indices, _ in terms)
    index = name_apart(dim.resized(size), "rows", gradient, *(x for term in terms for x in term))
    flat = [_flatten_term(_gather_indices(i, dim), rows, index) for i, rows in terms]
    indices, rows = (
        concat(parts, index.name) if len(parts) > 1 else parts[0]
        for parts in (list(one) for one in zip(*flat, strict=True))
    )
    return _sum_duplicates(indices, rows, index) if sum_duplicates else (indices, rows)


def find_terms(gradient: Tensor, dim: Dimension) -> Terms | None:
    """Find the indices and rows that a gradient is the sum of; None if there is more in it."""
    op = current("row_gradient").find_maker(gradient)
    if op is None:
        return None
    if op.zero:
        return []
    if op.added_rows is not None:
        indices, rows, along = op.added_rows
        return [(indices, rows)] if along == dim else None
    alike = all({*x.shape} == {*gradient.shape} for x in op.inputs)
    if op.adds_operands or (op.kind == "add" and alike):
        parts = [find_terms(x, dim) for x in op.inputs]
        return None if None in parts else [term for part in parts for term in part or ()]
    # What is linear in the gradient, with scalars besides, may be computed of its rows.
    large = [i for i, x in enumerate(op.inputs) if len(x.shape)]
    if not op.elementwise or len(large) != 1 or (large[0],) not in op.linear_in:
        return None
    (at,) = large
    terms = find_terms(op.inputs[at], dim)
    if terms is None:
        return None
    inputs, repeated = op.inputs, []
    for indices, rows in terms:
        if op.output.itemsize > rows.itemsize:  # they are sent before they are cast
            rows = _replicate_rows(rows, indices)
        repeated.append((indices, repeat_op(op, (*inputs[:at], rows, *inputs[at + 1 :])).output))
    return repeated


def _find_cause(gradient: Tensor, dim: Dimension) -> tuple[str, str, Source | None]:
    """Find why a gradient is not a sum of rows: the reason, the fix, and the user's line."""
    op = current("row_gradient").find_maker(gradient)
    if op is None or op.zero:
        return "no lookup is in it", "pass what nm.grad returned", None
    large = [x for x in op.inputs if {*x.shape} == {*gradient.shape}]
    if op.adds_operands or op.kind == "add":
        large = [x for x in large if find_terms(x, dim) is None]
    elif not op.elementwise or len(large) != 1:
        large = []
    if large:
        return _find_cause(large[0], dim)
    if op.kind != "scatteradd":
        fix = "look the table up by nm.gather alone, before branches, nm.checkpoint and loops "
        return f"{op.kind} reads the table otherwise", f"{fix}within loops", op.source
    shared = [one for one in op.inputs[0].shape if one in gradient.shape]
    if shared:
        cause = f"ids and table share {join_names([str(one) for one in shared])}"
        return cause, "make one parameter for each of the tables", op.source
    if (along := getattr(op, "dim", dim)) != dim:
        return f"it is looked up along {along}", f"give {along} as rows=", op.source
    return "send_gradient='table' sends all of it", "leave out send_gradient=", op.source


def find_looked_up(body: Body, over: Dimension) -> dict[Tensor, Dimension]:
    """Find parameters with rows that a loop's body reads by lookups alone, as they are inside."""
    trace = current("scan")
    variables = trace.root.variables.values()
    rows = {one.tensor: one.shape.named(one.rows) for one in variables if one.rows is not None}
    found = {}
    for tensor, outer in zip(body.captures, body.captured, strict=True):
        maker = trace.find_maker(outer)
        if maker is not None and maker.kind == "cast":  # as is moved before the loop
            (outer,) = maker.inputs
        dim = None if over.name in outer.shape.names else rows.get(outer)
        if dim is not None and _is_looked_up(body, tensor, dim):
            found[tensor] = dim
    return found


def _is_looked_up(body: Body, tensor: Tensor, dim: Dimension) -> bool:
    """Return whether ops of a body read rows of a tensor along a dimension, and nothing else."""
    if tensor in {*body.outputs}:
        return False
    for op in body.ops:
        if tensor in {*op.inputs}:
            looks_up = op.looks_up == dim and op.inputs[0] is tensor and op.inputs[1] is not tensor
            passes = op.kind == "cast" and op.output.floating
            if not looks_up and not (passes and _is_looked_up(body, op.output, dim)):
                return False
    return True


def add_rows(table: Tensor, dim: Dimension, terms: Terms) -> Tensor:
    """Add rows up to the gradient of a table that is made of them."""
    total = None
    for indices, rows in terms:
        term = ScatterAdd((indices, rows), dim, table.shape).output
        total = term if total is None else total + term
    return zeros(table.shape, table.dtype) if total is None else total


def _replicate_rows(rows: Tensor, indices: Tensor) -> Tensor:
    """Gather the dimensions that rows have in common with their indices."""
    # Of a bag's weighed rows the gradient is made of fewer numbers: one row, and the weights.
    maker = current("row_gradient").find_maker(rows)
    if maker is not None and _count_source_bytes(rows) < rows.shape.elements * rows.itemsize:
        rows = repeat_op(maker, tuple(_replicate_rows(x, indices) for x in maker.inputs)).output
    held = [dim for dim in indices.shape if dim in rows.shape]  # a bag has one for all its indices
    return replicate(rows, *held) if held else rows


def _count_source_bytes(x: Tensor) -> int:
    """Count the bytes of a tensor, or of those that it is made of, element by element."""
    own, maker = x.shape.elements * x.itemsize, current("row_gradient").find_maker(x)
    if maker is None or not maker.linear_in or maker.placement().reduced or maker.states_place:
        return own
    if not (maker.elementwise or maker.sums) or maker.outputs != (x,):
        return own
    large = [one for one in maker.inputs if one.shape.elements == x.shape.elements]
    small = sum(one.shape.elements * one.itemsize for one in maker.inputs if one not in {*large})
    return min(own, small + sum(map(_count_source_bytes, large))) if len(large) < 2 else own


def _gather_indices(indices: Tensor, dim: Dimension) -> Tensor:
    """Gather indices as int32, -1 for those outside a dimension."""
    # First as they are: so they were gathered for the lookup.
    indices = replicate(indices, *indices.shape) if len(indices.shape) else indices
    if indices.dtype in ("int64", "uint32"):
        inside = (indices >= 0) & (indices < dim.size)
        return where(inside, cast(where(inside, indices, 0), "int32"), -1)
    indices = cast(indices, "int32")
    return where((indices >= 0) & (indices < dim.size), indices, -1)


def _flatten_term(indices: Tensor, rows: Tensor, index: Dimension) -> tuple[Tensor, Tensor]:
    """Give indices and rows one dimension of the same name."""
    dims = list(indices.shape)
    own = index.resized(math.prod(indices.shape.sizes))
    rest = [dim for dim in rows.shape if dim not in indices.shape]
    if not dims:
        return broadcast(indices, [own]), broadcast(rows, [own, *rest])
    # A dimension that rows lack is one that no layout splits: they would be gathered repeated.
    apart = [dim if dim in rows.shape else name_apart(dim, "rows", indices, rows) for dim in dims]
    rows = broadcast(_replicate_rows(rows, indices), [*apart, *rest])
    if len(dims) == 1:
        return rename(indices, dims[0], own), rename(rows, apart[0], own)
    return reshape(indices, dims, own), reshape(rows, apart, own)


def _sum_duplicates(indices: Tensor, rows: Tensor, index: Dimension) -> tuple[Tensor, Tensor]:
    """Add up rows of equal indices where the first is; -1 and zeros fill the other places."""
    if index.size == 1:
        return indices, where(indices >= 0, rows, 0.0)
    first = FirstEqual((indices,), index).output
    known = indices >= 0
    unique = where(known & equal(first, count_along(index)), indices, -1)
    return unique, scatter_add(rows, where(known, first, -1), index, send="rows")
