"""Halo exchange: ops along one dimension whose devices read rows of neighbouring shards."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.hop import Hop
from namedmesh.ir.context import Context
from namedmesh.ir.op import Op
from namedmesh.ir.placement import Exchange, Placement, Shards
from namedmesh.ir.tensor import Tensor


@dataclass(frozen=True)
class Stretch:
    """The rows that each device reads: from floor((step * position + start) / divisor) on."""

    step: int  # from the first row of one device to that of the next
    start: int  # the first row of the first device
    length: int  # rows that each device reads; those that do not exist get a fill value
    stop: int  # rows from here on do not exist
    divisor: int = 1
    cyclic: bool = False  # the first row comes after the last; shards must be of equal size

    def first(self, position: Any) -> Any:
        """Return the first row that a device reads."""
        at = position * self.step + self.start
        return at // self.divisor if self.divisor > 1 else at


@dataclass(frozen=True)
class Slab:
    """Rows of one shard, from low on, that a hop brings, or that are a device's own."""

    hop: Hop
    low: int | None  # None where each device sends from another row on
    rows: int
    own: bool

    def find_low(self, tf: Any, stretch: Stretch, shard: int, receiver: Any, sender: Any) -> Any:
        """Return the first row that a device sends to another."""
        if self.low is not None:
            return self.low
        return tf.clip_by_value(stretch.first(receiver) - sender * shard, 0, shard - self.rows)


@lru_cache(maxsize=4096)  # a plan asks in each pass, a search in each plan
def find_slabs(stretch: Stretch, ways: int, shard: int) -> tuple[Slab, ...]:
    """Find what devices send so that each has the rows that it reads."""
    mirrored = stretch.step < 0
    # For each distance between sender and receiver: the first and the last receiver, the range of
    # rows that any of them reads, and the most that one reads, which a collective moves for all.
    moves: dict[int, tuple[int, int, int, int, int]] = {}
    for p in range(ways):
        low, high = stretch.first(p), stretch.first(p) + stretch.length
        if not stretch.cyclic:
            low, high = max(low, 0), min(high, stretch.stop)
        for q in range(low // shard, -(-high // shard) if high > low else 0):
            by = q + p if mirrored else q - p
            rows = max(low - q * shard, 0), min(high - q * shard, shard)
            first, _, least, most, count = moves.get(by, (p, p, *rows, 0))
            count = max(count, rows[1] - rows[0])
            moves[by] = first, p, min(least, rows[0]), max(most, rows[1]), count
    slabs = []
    for by, (first, last, low, high, count) in sorted(moves.items()):
        own = (by % ways if stretch.cyclic else by) == 0
        if mirrored:
            own = first == last and by == 2 * first
        hop = Hop(by, first, last, mirrored, stretch.cyclic)
        if own or count == high - low:
            slabs.append(Slab(hop, low, high - low, own))
        else:
            slabs.append(Slab(hop, None, count, own))
    return tuple(slabs)


def list_sent(
    slabs: Iterable[Slab], dim: Dimension, others: int, dtype: str, operand: int = 0
) -> list[Exchange]:
    """List the collectives that bring slabs, with some elements in each row."""
    return [
        Exchange("CollectivePermute", dim.name, slab.rows * others, dtype, operand, slab.hop)
        for slab in slabs
        if not slab.own
    ]


def find_exchanges(
    inputs: Sequence[Tensor], shards: Shards, reads: Iterable[tuple[int, Dimension, Stretch]]
) -> list[Exchange] | None:
    """Find what an op sends that reads stretches of its operands; None to gather them instead."""
    exchanges, gathered = [], {}
    for operand, dim, stretch in reads:
        x, ways = inputs[operand], shards.ways(dim)
        others = shards.count_rest(x.shape, dim)
        gathered[operand] = dim.size * others * (ways - 1) / ways
        slabs = find_slabs(stretch, ways, shards.size(dim))
        exchanges += list_sent(slabs, dim, others, x.dtype, operand)
    sent = sum(one.elements for one in exchanges)
    return exchanges if sent < sum(gathered.values()) else None


def read_rows(
    context: Context, sources: Sequence[tuple[Any, Stretch]], at: int, dim: Dimension, fill: float
) -> Any:
    """Join the rows that each device reads from its own shards and from what others send."""
    total: Any = None
    for x, stretch in reversed(sources):
        value, exists = _read_one(context, x, dim, stretch, _Rows(context.tf, x, at))
        if total is None and fill:
            total = context.scalar(fill, value.dtype)
        total = value if total is None else context.tf.where(exists(), value, total)
    return total


def _read_one(
    context: Context, x: Any, dim: Dimension, stretch: Stretch, rows: _Rows
) -> tuple[Any, Callable[[], Any]]:
    """Read one stretch; return its rows, and a function that tells which of them exist."""
    ways, shard, length = context.ways(dim), rows.sizes[rows.at], stretch.length
    parts: list[tuple[Slab, Any]] = []
    position = context.position(dim)
    for slab in find_slabs(stretch, ways, shard):
        reader = slab.hop.by - position if slab.hop.mirrored else position - slab.hop.by
        low = slab.find_low(context.tf, stretch, shard, reader, position)
        value = rows.cut(x, low, slab.rows)
        parts.append((slab, value if slab.own else context.permute(value, dim, slab.hop)))

    def begin(slab: Slab, p: Any) -> Any:
        """Return the row at which a slab begins among those that a device reads."""
        owner = slab.hop.by - p if slab.hop.mirrored else slab.hop.by + p
        return (
            owner * shard + slab.find_low(context.tf, stretch, shard, p, owner) - stretch.first(p)
        )

    fixed = all(slab.low is not None for slab, _ in parts)
    begins = [{begin(slab, p) for p in range(ways)} for slab, _ in parts] if fixed else []
    # Slabs that begin at the same row on every device need only be concatenated.
    if fixed and all(len(one) == 1 for one in begins):
        values = [value for _, value in parts]
        total = rows.join([(*one, x) for one, x in zip(begins, values, strict=True)], length)
    else:
        total = rows.zeros(length)
        for slab, value in parts:
            total = rows.put(value, begin(slab, position), slab.rows, total)

    def exists() -> Any:
        numbers = stretch.first(position) + context.tf.range(length)  # over all devices
        return rows.along((numbers >= 0) & (numbers < stretch.stop))

    return total, exists


class _Rows:
    """Rows along one dimension of values like another."""

    def __init__(self, tf: Any, like: Any, at: int):
        self.tf, self.dtype, self.at = tf, like.dtype, at
        self.sizes = [int(size) for size in like.shape]

    def along(self, value: Any) -> Any:
        """Shape one value for each row so that it broadcasts."""
        return align_rows(self.tf, value, self.at, len(self.sizes))

    def zeros(self, count: int) -> Any:
        """Make rows of zeros."""
        sizes = [count if i == self.at else size for i, size in enumerate(self.sizes)]
        return self.tf.zeros(sizes, self.dtype)

    def cut(self, value: Any, low: Any, size: int) -> Any:
        """Cut out rows, the first of which a device may know only when it runs."""
        whole = value.shape[self.at] == size
        return value if whole else cut_rows(self.tf, value, self.at, low, size)

    def join(self, parts: list[tuple[int, Any]], length: int) -> Any:
        """Join parts that each begin at a row, with zeros between them."""
        joined, end = [], 0
        for begin, value in sorted(parts, key=lambda part: part[0]):
            joined += [self.zeros(begin - end)] if begin > end else []
            joined.append(value)
            end = begin + int(value.shape[self.at])
        joined += [self.zeros(length - end)] if length > end else []
        return joined[0] if len(joined) == 1 else self.tf.concat(joined, self.at)

    def put(self, value: Any, begin: Any, size: int, total: Any) -> Any:
        """Put rows into others, from a row on that a device knows when it runs."""
        # XLA has no scatter with a known window here: pad, cut the part that overlaps, select.
        tf, length = self.tf, int(total.shape[self.at])
        around = [[length, length] if i == self.at else [0, 0] for i in range(len(self.sizes))]
        low = tf.clip_by_value(length - begin, 0, length + size)
        moved = self.cut(tf.pad(value, around), low, length)
        index = tf.range(length)
        return tf.where(self.along((index >= begin) & (index < begin + size)), moved, total)


def align_rows(tf: Any, values: Any, at: int, rank: int) -> Any:
    """Shape one value for each row so that it broadcasts along the dimension at a position."""
    return tf.reshape(values, [-1 if i == at else 1 for i in range(rank)])


def count_rows(context: Context, dim: Dimension) -> Any:
    """Return the index along a dimension of every row of a device's shard."""
    size = context.size(dim)
    return context.position(dim) * size + context.tf.range(size)


def cut_rows(tf: Any, x: Any, at: int, low: Any, size: int) -> Any:
    """Cut out rows, the first of which may be known only when the step runs."""
    begin = [low if i == at else 0 for i in range(len(x.shape))]
    sizes = [size if i == at else one for i, one in enumerate(x.shape)]
    return tf.slice(x, begin, sizes)


class Window(Op):
    """An op that needs one dimension whole and keeps the others."""

    by_name = True
    late_sums = False
    rearranges = True
    dim: Dimension  # of the operand

    @property
    def at(self) -> int:
        """The position of the dimension in the operand."""
        return self.inputs[0].shape.position(self.dim.name)

    def result_dim(self) -> Dimension:
        """Return the dimension as the result has it."""
        return self.dim

    def index(self, start: Any, stop: Any, stride: int = 1) -> tuple[builtins.slice, ...]:
        """Return the index of a part of the operand along the dimension."""
        return (*[builtins.slice(None)] * self.at, builtins.slice(start, stop, stride))

    def results(self) -> list[tuple[Shape, str]]:
        x = self.inputs[0]
        return [(x.shape.replace(self.dim.name, self.result_dim()), x.dtype)]

    def placement(self) -> Placement:
        return Placement(whole=[self.dim.name])


class SplitWindow(Window):
    """A window that may stay split: each device reads what it lacks of its neighbours' shards."""

    fill = 0.0  # the value of rows that do not exist

    @property
    def linear_in(self) -> tuple[tuple[int, ...], ...]:
        return ((0,),) if self.fill == 0 else ()

    def stretches(self, ways: int, shard: int, size: int) -> list[Stretch]:
        """Return the rows that each device reads for its shard of the result."""
        raise NotImplementedError

    def whole(self, context: Context, x: Any) -> Any:
        """Lower the op where the dimension is whole."""
        raise NotImplementedError

    def local(self, context: Context, x: Any) -> Any:
        """Compute a device's shard of the result from the rows that it has read."""
        return x

    def lower(self, context: Context, x: Any) -> Any:
        ways = context.ways(self.dim)
        if ways == 1:
            return self.whole(context, x)
        stretches = self.stretches(ways, context.size(self.dim), context.size(self.result_dim()))
        sources = [(x, stretch) for stretch in stretches]
        return self.local(context, read_rows(context, sources, self.at, self.dim, self.fill))

    def placement(self) -> Placement:
        return Placement(exchanged=[self.dim.name])

    def exchanges(self, shards: Shards) -> list[Exchange] | None:
        ways, shard = shards.ways(self.dim), shards.size(self.dim)
        if self.result_dim().size < min(ways, self.dim.size):
            return None  # more devices without a row of the result: gather instead
        stretches = self.stretches(ways, shard, shards.size(self.result_dim()))
        return find_exchanges(self.inputs, shards, [(0, self.dim, one) for one in stretches])
