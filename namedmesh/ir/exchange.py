"""What an op sends between devices by itself: the shards it works on, and its exchanges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from namedmesh.dims.dimension import Dimension
from namedmesh.dims.hop import Hop


@dataclass(frozen=True)
class Exchange:
    """One collective that an op makes on the shards of a split dimension.

    Attributes:
        kind: Such as `CollectivePermute`.
        dim: The dimension along whose axes devices communicate.
        elements: What one device sends or receives, whichever is more.
        dtype: The dtype of the elements.
        operand: The number of the operand that is sent.
        hop: Who sends to whom, in a CollectivePermute.
    """

    kind: str
    dim: str
    elements: int
    dtype: str
    operand: int = 0
    hop: Hop | None = None


class Shards:
    """Into how many shards each dimension of an op is split."""

    def __init__(self, ways: Mapping[str, int]):
        self._ways = dict(ways)

    def ways(self, dim: Dimension) -> int:
        """Return into how many shards a dimension is split."""
        return self._ways.get(dim.name, 1)

    def size(self, dim: Dimension) -> int:
        """Return the size of a shard; the last ones may be shorter, and are padded."""
        return -(-dim.size // self.ways(dim))

    def count_rest(self, dims: Iterable[Dimension], dim: Dimension) -> int:
        """Count the elements of a shard for each row along one of its dimensions."""
        return self.count(other for other in dims if other.name != dim.name)

    def count(self, dims: Iterable[Dimension]) -> int:
        """Count the elements of a shard that has some dimensions."""
        total = 1
        for dim in dims:
            total *= self.size(dim)
        return total
