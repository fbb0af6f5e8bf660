"""Ops that put tensors together along a dimension, and cut them apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, check_word, did_you_mean, join_names
from namedmesh.ir.context import Context
from namedmesh.ir.format import format_value
from namedmesh.ir.literal import check_number
from namedmesh.ir.op import Op
from namedmesh.ir.operands import check_dimension, check_has_dims, check_int, check_tensors
from namedmesh.ir.placement import Exchange, Placement, Shards
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.broadcast import broadcast
from namedmesh.ops.broadcast import sum as sum_over
from namedmesh.ops.halo import Stretch, find_exchanges, read_rows
from namedmesh.ops.shape import name_apart, reshape, transpose
from namedmesh.ops.slices import Pad, reverse, slice


class Concat(Op):
    """Tensors one after the other along a dimension."""

    by_name = True
    rearranges = True
    dim: Dimension  # of the result

    @property
    def linear_in(self) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(len(self.inputs))),)

    def results(self) -> list[tuple[Shape, str]]:
        first = self.inputs[0].shape
        return [(first.replace(self.dim.name, self.dim), self.inputs[0].dtype)]

    def lower(self, context: Context, *values: Any) -> Any:
        order = self.output.shape.names
        pairs = zip(values, self.inputs, strict=True)
        arranged = [context.arrange(value, x.shape, order) for value, x in pairs]
        at = order.index(self.dim.name)
        if context.ways(self.dim) == 1:
            return context.tf.concat(arranged, at)
        stretches = [stretch for _, stretch in self._reads(context.size(self.dim))]
        sources = list(zip(arranged, stretches, strict=True))
        return read_rows(context, sources, at, self.dim, 0)

    def _reads(self, size: int) -> list[tuple[Dimension, Stretch]]:
        """Return the rows that each device reads of every operand, for a shard of some size."""
        reads, start = [], 0
        for x in self.inputs:
            dim = x.shape.dims[x.shape.position(self.dim.name)]
            reads.append((dim, Stretch(size, -start, size, dim.size)))
            start += dim.size
        return reads

    def find_rows(self, name: str, start: int, stop: int) -> tuple[Tensor, int] | None:
        ends = list(itertools.accumulate(x.shape.size_of(self.dim.name) for x in self.inputs))
        begins = [0, *ends[:-1]]
        taken = [i for i in range(len(ends)) if begins[i] < stop and ends[i] > start]
        if name != self.dim.name or not taken or len(taken) == len(ends):
            return None
        return concat([self.inputs[i] for i in taken], name), begins[taken[0]]

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        parts = chunk(dy, self.dim, [x.shape.size_of(self.dim.name) for x in self.inputs])
        return [transpose(part, x.shape) for part, x in zip(parts, self.inputs, strict=True)]

    def placement(self) -> Placement:
        return Placement(exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        reads = self._reads(shards.size(self.dim))
        if min(dim.size for dim, _ in reads) < shards.ways(self.dim):
            return None
        return find_exchanges(self.inputs, shards, [(i, *read) for i, read in enumerate(reads)])


def concat(tensors: Sequence[Tensor], dim: Dimension | str) -> Tensor:
    """Return tensors one after the other; if split, devices get what they lack from neighbours.

    Args:
        tensors: The tensors, equal in dtype and in all dimensions but one, in any order.
        dim: That dimension, at any size, or its name.

    Example:
        >>> nm.evaluate(lambda x: nm.concat([x, -x], "seq"), x=(nm.dims("seq=2"), [1, 2]))
        array([ 1,  2, -1, -2], dtype=int32)
    """
    tensors = check_tensors("concat", tensors, "nm.concat([a, b], S)")
    name = dim if isinstance(dim, str) else check_dimension("concat", dim, *tensors).name
    without = [tensor for tensor in tensors if tensor.shape.named(name) is None]
    if without:
        known = {other for tensor in without for other in tensor.shape.names}
        problem = f"concat: {'; '.join(f'{x.label} has no dimension {name}' for x in without)}"
        fix = did_you_mean(name, known)
        raise NamedMeshError(problem, *map(str, without), fix=fix)
    first = tensors[0]
    others = {*first.shape.without(name)}
    different = [
        x.label for x in tensors if {*x.shape.without(name)} != others or x.dtype != first.dtype
    ]
    if different:
        verb = "differs" if len(different) == 1 else "differ"
        raise NamedMeshError(
            f"concat: {join_names(different)} {verb} from {first.label} "
            f"in more than dimension {name}",
            *map(str, tensors),
            fix="make their other dimensions and dtypes equal",
        )
    total = sum(tensor.shape.size_of(name) for tensor in tensors)
    return first if len(tensors) == 1 else Concat(tuple(tensors), Dimension(name, total)).output


def stack(tensors: Sequence[Tensor], dim: Dimension) -> Tensor:
    """Return tensors of one shape side by side along a new first dimension.

    Args:
        tensors: The tensors, equal in dtype and dimensions.
        dim: The new dimension, of the size of the list.

    Example:
        >>> nm.evaluate(lambda x: nm.stack([x, -x], nm.Dimension("copy", 2)), x=([], 7))
        array([ 7, -7], dtype=int32)
    """
    tensors = check_tensors("stack", tensors, "nm.stack([a, b], nm.Dimension('copy', 2))")
    if len(tensors) != check_dimension("stack", dim, *tensors).size:
        problem = f"stack: {dim} does not have the size of {len(tensors)} tensors"
        fix = f"give a dimension of size {len(tensors)}"
        raise NamedMeshError(problem, *map(str, tensors), fix=fix)
    one = Dimension(dim.name, 1)
    return concat([broadcast(x, [one, *x.shape]) for x in tensors], dim)


def unstack(x: Tensor, dim: Dimension) -> list[Tensor]:
    """Return a list of the slices of a tensor along a dimension: the inverse of `nm.stack`.

    Args:
        x: The tensor.
        dim: The dimension.

    Example:
        >>> C = nm.Dimension("copy", 2)
        >>> nm.evaluate(lambda x: nm.unstack(x, C)[1], x=([C], [1, 2]))
        array(2, dtype=int32)
    """
    check_has_dims("unstack", x, dim)
    return [sum_over(one, dim.resized(1)) for one in chunk(x, dim, dim.size)]


def repeat(x: Tensor, dim: Dimension, times: int) -> Tensor:
    """Return each element repeated along a dimension, as `numpy.repeat` does.

    Args:
        x: The tensor.
        dim: The dimension.
        times: The number of copies of each element.

    Example:
        >>> S = nm.Dimension("seq", 2)
        >>> nm.evaluate(lambda x: nm.repeat(x, S, 2), x=([S], [1, 2]))
        array([1, 1, 2, 2], dtype=int32)
    """
    return _multiply("repeat", x, dim, times, inner=True)


def tile(x: Tensor, dim: Dimension, times: int) -> Tensor:
    """Return all elements repeated along a dimension, as `numpy.tile` does.

    Args:
        x: The tensor.
        dim: The dimension.
        times: The number of copies.

    Example:
        >>> S = nm.Dimension("seq", 2)
        >>> nm.evaluate(lambda x: nm.tile(x, S, 2), x=([S], [1, 2]))
        array([1, 2, 1, 2], dtype=int32)
    """
    return _multiply("tile", x, dim, times, inner=False)


def _multiply(what: str, x: Tensor, dim: Dimension, times: int, inner: bool) -> Tensor:
    """Repeat elements along a dimension: broadcast along a new one beside it, and merge both."""
    check_has_dims(what, x, dim)
    if check_int(what, "times", times, x) < 1:
        raise NamedMeshError(f"{what}: {times} times is nothing", str(x), fix="give at least 1")
    if times == 1:
        return x
    copies = name_apart(Dimension(dim.name, times), "copy", x)
    pair = [dim, copies] if inner else [copies, dim]
    order = [one for own in x.shape for one in (pair if own == dim else [own])]
    return reshape(broadcast(x, order), pair, dim.resized(dim.size * times))


def chunk(x: Tensor, dim: Dimension, parts: int | Sequence[int]) -> list[Tensor]:
    """Return a list of parts of a tensor, cut along a dimension (`nm.split` is placement).

    Args:
        x: The tensor.
        dim: The dimension to cut.
        parts: The number of equal parts, or a list of their sizes.

    Example:
        >>> S = nm.Dimension("seq", 4)
        >>> nm.evaluate(lambda x: nm.chunk(x, S, [1, 3])[1], x=([S], [1, 2, 3, 4]))
        array([2, 3, 4], dtype=int32)
    """
    check_has_dims("chunk", x, dim)
    if isinstance(parts, (list, tuple)):
        sizes = [check_int("chunk", "size", size, x) for size in parts]
    else:
        count = check_int("chunk", "number of parts", parts, x)
        sizes = [dim.size // count] * count if 0 < count <= dim.size else []
    if sum(sizes) != dim.size or any(size < 1 for size in sizes):
        problem = f"chunk: {format_value(parts)} does not cut {dim} into whole parts"
        fix = "give a divisor of the size, or sizes that add up to it"
        raise NamedMeshError(problem, str(x), fix=fix)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [slice(x, dim, start, size) for start, size in zip(starts, sizes, strict=True)]


_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def pad(
    x: Tensor,
    dim: Dimension,
    low: int = 0,
    high: int = 0,
    value: float = 0,
    mode: str = "constant",
) -> Tensor:
    """Return a tensor that is longer along a dimension, filled with a value or with its own.

    Args:
        x: The tensor.
        dim: The dimension.
        low: The number of elements to put before.
        high: The number of elements to put after.
        value: Their value, a number known while tracing.
        mode: `constant`: the value. `edge`: the first and last element. `reflect`: what is beyond
            the edge in a mirror, `symmetric`: with the edge itself. `wrap`: the other end.

    Example:
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x: nm.pad(x, S, low=1, value=9), x=([S], [1, 2, 3]))
        array([9, 1, 2, 3], dtype=int32)
    """
    check_has_dims("pad", x, dim)
    check_word("mode of nm.pad", mode, _MODES)
    low, high = check_int("pad", "low", low, x), check_int("pad", "high", high, x)
    value = check_number("pad", value, x.dtype, x)
    if low < 0 or high < 0:
        problem = f"pad: cannot pad {dim} by {low} before and {high} after"
        fix = "use nm.slice to make it shorter"
        raise NamedMeshError(problem, str(x), fix=fix)
    if not low and not high:
        return x
    if mode == "constant":
        return Pad((x,), dim, low, high, 0, value).output
    return concat([*_beyond(x, dim, low, mode, 0), x, *_beyond(x, dim, high, mode, 1)], dim)


def _beyond(x: Tensor, dim: Dimension, count: int, mode: str, end: int) -> list[Tensor]:
    """Return what a mode puts beyond one end of a dimension."""
    most = dim.size - (mode == "reflect")
    if not count:
        return []
    if mode == "edge":
        return [repeat(slice(x, dim, end * (dim.size - 1), 1), dim.resized(1), count)]
    if count > most:
        problem = f"pad: {dim} has no more than {most} elements to pad with, not {count}"
        raise NamedMeshError(problem, str(x), fix="pad less, or twice")
    start = int(mode == "reflect")
    if (mode == "wrap") == (end == 0):
        start = dim.size - count - start
    part = slice(x, dim, start, count)
    return [part if mode == "wrap" else reverse(part, dim.resized(count))]
