"""Sorting along a dimension, and the largest elements of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.hop import Hop
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.op import Op
from namedmesh.ir.operands import check_dimension, check_dtype_kind, check_has_dims
from namedmesh.ir.placement import Exchange, Placement, Shards
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.constants import zeros
from namedmesh.ops.gather import ScatterAdd
from namedmesh.ops.halo import count_rows
from namedmesh.ops.shape import name_apart, rename


def order_keys(tf: Any, x: Any, nan_first: bool = False) -> Any:
    """Convert floating point values to whole numbers of the same order; others stay."""
    if not x.dtype.is_floating:
        return x
    wide, whole = (tf.float64, tf.int64) if x.dtype == tf.float64 else (tf.float32, tf.int32)
    x = tf.cast(x, wide)
    bits = tf.bitcast(x, whole)
    # The bits of negative numbers count down from the sign, -0.0: reversed, they count up.
    keys = tf.where(bits < 0, whole.min - bits, bits)
    return tf.where(tf.math.is_nan(x), tf.constant(whole.min if nan_first else whole.max), keys)


def from_order_keys(tf: Any, keys: Any, dtype: Any, nan_first: bool = False) -> Any:
    """Convert the keys of floating point values back."""
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    nan = tf.equal(keys, keys.dtype.min if nan_first else keys.dtype.max)
    bits = tf.where(keys < 0, keys.dtype.min - keys, keys)
    value = tf.where(nan, tf.constant(float("nan"), wide), tf.bitcast(bits, wide))
    return tf.cast(value, dtype)


def unsign_zero_and_nan(tf: Any, x: Any) -> Any:
    """Take the sign from zeros and nan, by which some backends tell them apart."""
    whole = {2: tf.int16, 4: tf.int32, 8: tf.int64}[x.dtype.size]
    negative_zero = tf.equal(tf.bitcast(x, whole), whole.min)
    nan = tf.constant(float("nan"), x.dtype)
    return tf.where(tf.math.is_nan(x), nan, tf.where(negative_zero, tf.zeros([], x.dtype), x))


def sort_keys(tf: Any, x: Any) -> Any:
    """Convert values to int32 or int64 of the same order, which every backend sorts alike."""
    keys = order_keys(tf, x)
    return tf.cast(keys, tf.int64 if keys.dtype in (tf.int64, tf.uint32) else tf.int32)


class TopK(Op):
    """The largest elements along a dimension, in order, and their indices."""

    by_name = True
    manual = True
    dim: Dimension
    k: Dimension

    def results(self) -> list[tuple[Shape, str]]:
        x = self.inputs[0]
        shape = x.shape.replace(self.dim.name, self.k)
        return [(shape, x.dtype), (shape, "int32")]

    def lower(self, context: Context, x: Any) -> Any:
        tf = context.tf
        at, rank = self.inputs[0].shape.position(self.dim.name), len(self.inputs[0].shape)
        last = [i for i in range(rank) if i != at] + [at]
        back = [*range(at), rank - 1, *range(at, rank - 1)]
        rows = tf.transpose(x, last)
        if context.ways(self.dim) == 1:
            values, indices = self._choose(context, rows)
        else:
            values, indices = self._choose_of_shards(context, rows)
        return tf.transpose(values, back), tf.transpose(indices, back)

    def _choose(self, context: Context, rows: Any) -> tuple[Any, Any]:
        """Choose along the last dimension."""
        tf = context.tf
        if context.compiled and rows.dtype.is_floating:
            # XLA has a fast way for floating point numbers, in which nan and zeros have signs.
            return tf.math.top_k(unsign_zero_and_nan(tf, rows), self.k.size)
        _, indices = tf.math.top_k(sort_keys(tf, rows), self.k.size)
        return tf.gather(rows, indices, batch_dims=len(rows.shape) - 1), indices

    def _choose_of_shards(self, context: Context, rows: Any) -> tuple[Any, Any]:
        """Choose from every shard, then from the choices, gathered with their indices."""
        tf, rank = context.tf, len(rows.shape)
        keys, numbers = sort_keys(tf, rows), count_rows(context, self.dim)
        exists = numbers < self.dim.size
        keys, indices = tf.math.top_k(tf.where(exists, keys, keys.dtype.min), self.k.size)
        pairs = tf.stack([keys, tf.cast(tf.gather(numbers, indices), keys.dtype)])
        pairs = context.gather(pairs, self.dim)  # shards, keys and indices, rows, chosen
        pairs = tf.transpose(pairs, [1, *range(2, rank + 1), 0, rank + 1])
        keys, indices = tf.unstack(tf.reshape(pairs, [2, *rows.shape[:-1], -1]))
        keys, chosen = tf.math.top_k(keys, self.k.size)
        if rows.dtype.is_floating:
            values = from_order_keys(tf, keys, rows.dtype)
        else:
            values = tf.cast(keys, rows.dtype)
        return values, tf.cast(tf.gather(indices, chosen, batch_dims=rank - 1), tf.int32)

    def vjp(self, dvalues: Tensor, dindices: Tensor) -> list[Tensor | None]:
        (x,), indices = self.inputs, self.outputs[1]
        if self.k.name == self.dim.name:
            apart = name_apart(self.k, "sorted", x)
            dvalues, indices = rename(dvalues, self.k, apart), rename(indices, self.k, apart)
        return [ScatterAdd((indices, dvalues), self.dim, x.shape).output]

    def placement(self) -> Placement:
        if self.k.name == self.dim.name:
            return Placement(whole=[self.dim.name])
        return Placement(whole=[self.k.name], exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        ways, x = shards.ways(self.dim), self.inputs[0]
        if 4 * ways * self.k.size > self.dim.size:
            return None
        others = shards.count_rest(x.shape, self.dim)
        dtype = "int64" if x.dtype in ("float64", "int64", "uint32") else "int32"
        return [Exchange("AllGather", self.dim.name, 2 * ways * self.k.size * others, dtype)]


def top_k(x: Tensor, dim: Dimension, k: Dimension) -> tuple[Tensor, Tensor]:
    """Return the largest elements along a dimension, the first at ties, and their int32 indices.

    nan is the largest number. Over a split dimension the choices of every shard are gathered. The
    gradient of the values goes to the elements that were chosen; indices have none.

    Args:
        x: A tensor of numbers.
        dim: The dimension.
        k: The dimension that takes its place, of the number of elements to find.

    Example:
        >>> S, K = nm.dims("seq=4 best=2")
        >>> nm.evaluate(lambda x: nm.top_k(x, S, K), x=([S], [3, 9, 1, 7]))
        (array([9, 7], dtype=int32), array([1, 3], dtype=int32))
    """
    check_has_dims("top_k", x, dim)
    check_dtype_kind("top_k", "number", x)
    known = x.shape.without(dim.name).names
    if check_dimension("top_k", k, x).size > dim.size or k.name in known:
        fix = f"give a new dimension of size at most {dim.size}"
        raise NamedMeshError(f"top_k: {k} cannot hold the largest of {dim}", str(x), fix=fix)
    values, indices = TopK((x,), dim, k).outputs
    return values, indices


class Sort(Op):
    """Elements in order along a dimension, their indices, or another tensor's elements in it."""

    by_name = True
    manual = True
    dim: Dimension
    descending: bool = False
    indexed: bool = False

    @property
    def kind(self) -> str:
        return "argsort" if self.indexed else "sort"

    @property
    def linear_in(self) -> tuple[tuple[int, ...], ...]:
        return ((1,),) if len(self.inputs) > 1 and not self.indexed else ()

    def results(self) -> list[tuple[Shape, str]]:
        last = self.inputs[-1]
        return [(last.shape, "int32" if self.indexed else last.dtype)]

    def lower(self, context: Context, *values: Any) -> Any:
        tf, rank = context.tf, len(values[0].shape)
        at = self.inputs[0].shape.position(self.dim.name)
        last = [i for i in range(rank) if i != at] + [at]
        rows = [tf.transpose(value, last) for value in values]
        if self.indexed:
            rows.append(tf.broadcast_to(count_rows(context, self.dim), rows[0].shape))
        rows = self._sort(tf, rows)
        if context.ways(self.dim) > 1:
            rows = self._merge_shards(context, rows)
        return tf.transpose(rows[-1], [*range(at), rank - 1, *range(at, rank - 1)])

    def _sort(self, tf: Any, rows: Sequence[Any], stable: bool = True) -> list[Any]:
        """Sort rows by the first of them; where that is not stable, at ties by the last one."""
        keys = sort_keys(tf, rows[0])
        if self.descending:  # TensorFlow's own descending order reverses ties under XLA
            keys = tf.bitwise.invert(keys)
        order = tf.argsort(keys, stable=True)
        if not stable:
            first = tf.argsort(rows[-1])
            order = tf.argsort(_take(tf, keys, first), stable=True)
            order = _take(tf, first, order)
        return [_take(tf, one, order) for one in rows]

    def _merge_shards(self, context: Context, rows: Sequence[Any]) -> list[Any]:
        """Merge sorted shards with those of other devices, round by round."""
        # Pairs of devices exchange shards as a sorting network prescribes: one keeps the smaller
        # half of both, the other one the larger.
        tf, ways, size = context.tf, context.ways(self.dim), context.size(self.dim)
        place = context.position(self.dim)
        for partners in list_rounds(ways):
            hop = Hop(sources=tuple(partners))
            others = [context.permute(one, self.dim, hop) for one in rows]
            partner = tf.gather(tf.constant(partners), place)
            lower = partner > place
            both = [
                tf.concat([tf.where(lower, mine, other), tf.where(lower, other, mine)], -1)
                for mine, other in zip(rows, others, strict=True)
            ]
            merged = self._sort(tf, both, stable=not self.indexed)
            rows = [
                tf.where(partner < 0, mine, tf.where(lower, one[..., :size], one[..., size:]))
                for mine, one in zip(rows, merged, strict=True)
            ]
        return list(rows)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        if self.indexed:
            return [None]
        x = self.inputs[0]
        indices = Sort((x,), self.dim, self.descending, indexed=True).output
        back = Sort((indices, dy), self.dim).output
        return [back] if len(self.inputs) == 1 else [None, back]

    def placement(self) -> Placement:
        return Placement(exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        ways, width = shards.ways(self.dim), sum(x.itemsize for x in self.inputs)
        sent = (width + 4 * self.indexed) * len(list_rounds(ways))
        if self.dim.size % ways or sends_more(sent, width * (ways - 1)):
            return None
        dtypes = [x.dtype for x in self.inputs] + ["int32"] * self.indexed
        count = shards.count(self.inputs[0].shape)
        exchanges = []
        for partners in list_rounds(ways):
            hop = Hop(sources=tuple(partners))
            for i, dtype in enumerate(dtypes):
                operand, kind = min(i, len(self.inputs) - 1), "CollectivePermute"
                exchanges.append(Exchange(kind, self.dim.name, count, dtype, operand, hop))
        return exchanges


def sends_more(sent: int, gathered: int) -> bool:
    """Return whether merging sends more bytes for each element than gathering."""
    return sent > gathered


def list_rounds(count: int) -> list[list[int]]:
    """List who compares with whom in a sorting network of Batcher's, round by round."""
    rounds = []
    top = 1 << max(count - 1, 1).bit_length() - 1
    step = top
    while step:
        width, rest, distance = top, 0, step
        while True:
            partners = [-1] * count
            for i in range(count - distance):
                if i & step == rest:
                    partners[i], partners[i + distance] = i + distance, i
            if max(partners) >= 0:
                rounds.append(partners)
            if width == step:
                break
            distance, width, rest = width - step, width // 2, step
        step //= 2
    return rounds


def _take(tf: Any, rows: Any, order: Any) -> Any:
    """Put the elements of rows into an order."""
    return tf.gather(rows, order, batch_dims=len(rows.shape) - 1)


def argsort(x: Tensor, dim: Dimension, descending: bool = False) -> Tensor:
    """Return the int32 indices that sort a dimension; elements that tie keep their order.

    nan is the largest number. Pairs of devices merge shards, unless it sends less to gather them.

    Args:
        x: A tensor of numbers.
        dim: The dimension.
        descending: Put the largest first.

    Example:
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x: nm.argsort(x, S), x=([S], [3, 1, 2]))
        array([1, 2, 0], dtype=int32)
    """
    _check("argsort", x, dim)
    if dim.size == 1:
        return zeros(x.shape, "int32")
    return Sort((x,), dim, descending, indexed=True).output


def sort(x: Tensor, dim: Dimension, descending: bool = False) -> Tensor:
    """Return the elements sorted along a dimension; it communicates as `nm.argsort` does.

    Args:
        x: A tensor of numbers.
        dim: The dimension.
        descending: Put the largest first.

    Example:
        >>> S = nm.Dimension("seq", 3)
        >>> nm.evaluate(lambda x: nm.sort(x, S, descending=True), x=([S], [3, 1, 2]))
        array([3, 2, 1], dtype=int32)
    """
    _check("sort", x, dim)
    return x if dim.size == 1 else Sort((x,), dim, descending).output


def _check(what: str, x: Tensor, dim: Dimension) -> None:
    """Raise unless a tensor of numbers has a dimension."""
    check_has_dims(what, x, dim)
    check_dtype_kind(what, "number", x)
