"""What neighbours must send each other, by enumerating the rows that every position meets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Meets = Callable[[int], set[int]]


@dataclass(frozen=True)
class Along:
    """One dimension of an op: its rows, its positions, and the rows that each position meets."""

    size: int
    count: int
    meets: Meets
    back: Meets

    def reversed(self) -> Along:
        """The same for the derivative: positions are read, and rows are made."""
        return Along(self.count, self.size, self.back, self.meets)

    def share(self, ways: int) -> list[range]:
        """The positions of each device, those that pad the last ones included."""
        shard = -(-self.count // ways)
        return [range(p * shard, (p + 1) * shard) for p in range(ways)]

    def reads(self, ways: int) -> list[range]:
        """The rows that each device reads: from its first one on, as many as any device needs."""
        met = [set().union(*map(self.meets, positions)) for positions in self.share(ways)]
        span = max(max(rows) - min(rows) + 1 for rows in met)
        return [range(min(rows), min(rows) + span) for rows in met]

    def halos(self, ways: int) -> list[int]:
        """How many rows each device gets from the shards at every distance."""
        shard, slabs = -(-self.size // ways), {}
        for p, rows in enumerate(self.reads(ways)):
            for row in rows:
                owner = row // shard
                if 0 <= row < self.size and owner != p:
                    slabs.setdefault(owner - p, set()).add(row % shard)
        return [max(rows) - min(rows) + 1 for rows in slabs.values()]


def same(size: int, window: int, stride: int = 1) -> Along:
    """A window with padding "same": half of the missing places before, the rest after."""
    count = -(-size // stride)
    low = max((count - 1) * stride + window - size, 0) // 2
    return Along(
        size,
        count,
        lambda o: {o * stride + k - low for k in range(window)},
        lambda i: {(i + low - k) // stride for k in range(window) if (i + low - k) % stride == 0},
    )


def linear(size: int, count: int) -> Along:
    """Linear means: the rows nearer to a position than a row, or than a position if that is more.

    Everything is multiplied by twice the sizes, so that it is whole.
    """
    reach = 2 * max(size, count)
    near = lambda o, i: abs((2 * o + 1) * size - (2 * i + 1) * count) < reach
    around = lambda n, made, read: range(n * read // made - 4 - read, n * read // made + 4 + read)
    return Along(
        size,
        count,
        lambda o: {i for i in around(o, count, size) if near(o, i)},
        lambda i: {o for o in around(i, size, count) if near(o, i)},
    )


def elements_sent(slides: Sequence[tuple[str, Along]], rest: int, ways: Mapping[str, int]) -> int:
    """Count what a device gets for an op, whose dimensions are fetched one after the other.

    Args:
        slides: The dimensions along which something slides.
        rest: The elements of a device's shard along all others.
        ways: Into how many shards dimensions are split.

    Returns:
        The elements; rows that came along one dimension are sent on along the next.
    """
    shards = {name: -(-along.size // ways.get(name, 1)) for name, along in slides}
    total = 0
    for name, along in slides:
        if ways.get(name, 1) > 1:
            others = rest
            for other, size in shards.items():
                others *= size if other != name else 1
            total += sum(along.halos(ways[name])) * others
            shards[name] = len(along.reads(ways[name])[0])
    return total


@dataclass(frozen=True)
class Convolution:
    """One convolution of a model: sizes, window, stride, and its channels by name."""

    rows: int
    columns: int
    window: int
    stride: int
    before: tuple[str, int]
    after: tuple[str, int]
    first: bool = False  # reads an image, which gets no gradient

    def sent(self, batch: int, ways: Mapping[str, int]) -> int:
        """What it sends in a step: for the result, and for both derivatives."""
        space = [
            (name, same(size, self.window, self.stride))
            for name, size in (("rows", self.rows), ("columns", self.columns))
        ]
        back = [(name, along.reversed()) for name, along in space]
        share = lambda name, size: -(-size // ways.get(name, 1))
        images = share("batch", batch)
        reading = elements_sent(space, images * share(*self.before), ways)
        taking_back = elements_sent(back, images * share(*self.after), ways)
        # The derivative by the window reads what the convolution read, and fetches it again.
        return 2 * reading + (0 if self.first else taking_back)


def pooling_sent(rows: int, columns: int, rest: int, ways: Mapping[str, int]) -> int:
    """What a maximum over 2 x 2 sends: nothing, unless shards of both sizes do not match.

    The derivative takes back a value for each element of the windows.
    """
    space = [("rows", same(rows, 2, 2)), ("columns", same(columns, 2, 2))]
    back = [(name, along.reversed()) for name, along in space]
    return elements_sent(space, rest, ways) + elements_sent(back, 4 * rest, ways)


def resizing_sent(sizes: Sequence[tuple[str, int, int]], rest: int, ways: Mapping[str, int]) -> int:
    """What a linear resize and its derivative send, along one dimension after the other."""
    total = 0
    now = {name: before for name, before, _ in sizes}
    for name, before, after in sizes:
        along = linear(before, after)
        others = rest
        for other, size in now.items():
            others *= -(-size // ways.get(other, 1)) if other != name else 1
        for each in (along, along.reversed()) if before != after else ():
            total += elements_sent([(name, each)], others, ways)
        now[name] = after
    return total


def halve(size: int, times: int) -> int:
    """The rows of a level below."""
    for _ in itertools.repeat(None, times):
        size = -(-size // 2)
    return size
