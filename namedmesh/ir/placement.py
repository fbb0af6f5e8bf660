"""Placement: what an op asks of its operands' shardings, and what it sends between devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.hop import Hop
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding
from namedmesh.errors.errors import NamedMeshError


@dataclass(frozen=True)
class Placement:
    """An op's demands on its operands' shardings; other dimensions pass through by name.

    Args:
        whole: Dimensions that must not be sharded.
        reduced: Dimensions that are reduced over: an AllReduce if they are sharded. Partial
            results of a manual op are added up: it may only sum over sharded dimensions.
        renames: The result dimension that takes the place of an operand's.
        divisible: Dimensions that may be sharded only if the devices divide their size, each with
            another size that they must divide.
        exchanged: Dimensions that may be sharded because the op sends what it needs of other shards
            itself; see `Op.exchanges`. One that is `divisible` too is exchanged where they do not.
        priced: Dimensions that are gathered before the op where that sends the fewest bytes,
            and where they and others of these want one axis.

    Example:
        >>> nm.Placement(reduced=["model"]).reduced
        frozenset({'model'})
    """

    whole: frozenset[str]
    reduced: frozenset[str]
    renames: Mapping[str, str]
    divisible: Mapping[str, int]
    exchanged: frozenset[str]
    priced: frozenset[str]

    def __init__(
        self,
        whole: Iterable[str] = (),
        reduced: Iterable[str] = (),
        renames: Mapping[str, str] | None = None,
        divisible: Mapping[str, int] | None = None,
        exchanged: Iterable[str] = (),
        priced: Iterable[str] = (),
    ):
        named = {"whole": whole, "reduced": reduced, "exchanged": exchanged, "priced": priced}
        for field_name, names in named.items():
            if isinstance(names, str) or not isinstance(names, Iterable):
                name = getattr(names, "name", names)
                raise NamedMeshError(
                    f"{field_name} of a placement is a list of names, not {names!r}",
                    fix=f"write {field_name}=[{name!r}]",
                )
            object.__setattr__(self, field_name, frozenset(names))
        object.__setattr__(self, "renames", renames or {})
        object.__setattr__(self, "divisible", divisible or {})

    @property
    def mixed(self) -> frozenset[str]:
        """Dimensions of which an element of a result may be made of several."""
        return self.whole | self.reduced | self.exchanged | {*self.renames}


@dataclass(frozen=True)
class Exchange:
    """One collective that an op makes on the shards of a sharded dimension."""

    kind: str
    dim: str
    elements: int
    dtype: str
    operand: int = 0
    hop: Hop | None = None


@dataclass(frozen=True)
class Ring:
    """Devices among which shards of one operand of a product go round, or sums of its result."""

    tensor: int  # the operand; that after the last is the result
    dim: Dimension
    axes: tuple[str, ...]  # mesh axes that number the devices, in order
    size: int  # how many devices there are

    @property
    def hops(self) -> list[tuple[int, int]]:
        """Sends of a device: to the next (1) or the previous one (-1), and how often in a loop."""
        both = (self.size - 1) // 2  # rounds in which shards go both ways, all but one in a loop
        ways = [(1, 1)] * (2 - self.size % 2 if both else 1) + [(-1, 1)] * (both > 0)
        return ways + [(way, both - 1) for way in (1, -1) if both > 1]

    def hop(self, way: int) -> Hop:
        """Return who sends to whom: to the next device (1), or to the previous one (-1)."""
        return Hop(-way, 0, self.size - 1, cyclic=True, axes=self.axes)


def find_ring(shapes: Sequence[Shape], places: Sequence[Sharding], mesh: Mesh) -> Ring | None:
    """Find the dimension of one tensor of a product that has more axes there than in others."""
    for i, shape in enumerate(shapes):
        for dim in shape:
            axes = [place.axes(dim.name) for place in places]
            has = [j for j, other in enumerate(shapes) if j != i and dim in other]
            kept = min((len(axes[j]) for j in has), default=len(axes[i]))
            if kept < len(axes[i]):
                return Ring(i, dim, axes[i][kept:], mesh.size(axes[i][kept:]))
    return None


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
        return math.prod(map(self.size, dims))
