"""Placement: what an op asks of its operands' shardings, and what it sends between devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from namedmesh.dims.dimension import Dimension
from namedmesh.dims.hop import Hop
from namedmesh.errors.errors import NamedMeshError


@dataclass(frozen=True)
class Placement:
    """What an op asks of the places of its operands; every other dimension passes through by name.

    Args:
        whole: Dimensions the op needs unsplit.
        reduced: Dimensions it reduces over, which split ones turn into an AllReduce. XLA knows how
            to combine partial results of an ordinary op; those of a manual op are added up, so a
            manual op may only sum over split dimensions and needs others whole.
        renames: Operand dimension to the result dimension that takes its place.
        divisible: Dimensions that may be split only where the devices divide their size evenly,
            each with another size that must divide too (of the dimension that takes its place).
        exchanged: Dimensions that may be split because the op itself sends between devices what it
            needs of other shards; `Op.exchanges` says what.

    Example:
        >>> from namedmesh import Placement
        >>> Placement(reduced=["model"]).reduced
        frozenset({'model'})
    """

    whole: frozenset[str]
    reduced: frozenset[str]
    renames: Mapping[str, str]
    divisible: Mapping[str, int]
    exchanged: frozenset[str]

    def __init__(
        self,
        whole: Iterable[str] = (),
        reduced: Iterable[str] = (),
        renames: Mapping[str, str] | None = None,
        divisible: Mapping[str, int] | None = None,
        exchanged: Iterable[str] = (),
    ):
        named = (("whole", whole), ("reduced", reduced), ("exchanged", exchanged))
        for field_name, names in named:
            if isinstance(names, str):
                raise NamedMeshError(
                    f"{field_name} of a placement is a list of names, not the text {names!r}",
                    fix=f"write {field_name}=[{names!r}]",
                )
            object.__setattr__(self, field_name, frozenset(names))
        object.__setattr__(self, "renames", renames or {})
        object.__setattr__(self, "divisible", divisible or {})


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
