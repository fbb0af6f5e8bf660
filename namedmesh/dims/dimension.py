"""Dimension and Shape: what a name is."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from namedmesh.dims.errors import NamedMeshError, check_identifier, check_size, check_text


@dataclass(frozen=True)
class Dimension:
    """A named dimension of a known size; a layout sees only its name."""

    name: str
    size: int

    def __post_init__(self) -> None:
        check_identifier(self.name, "dimension")
        object.__setattr__(self, "size", check_size(self.size, f"dimension {self.name}"))

    def resized(self, size: int) -> "Dimension":
        """The same name at another size."""
        return Dimension(self.name, size)

    def __str__(self) -> str:
        return f"{self.name}={self.size}"


class Shape(Sequence[Dimension]):
    """Ordered dimensions with unique names."""

    __slots__ = ("dims",)

    def __init__(self, dims: Iterable[Dimension] = ()):
        if isinstance(dims, Dimension):
            raise NamedMeshError(
                f"expected a list of dimensions, not the single dimension {dims}",
                fix=f"write [{dims.name}]",
            )
        if isinstance(dims, str) or not isinstance(dims, Iterable):
            raise NamedMeshError(
                f"expected a list of dimensions, not {type(dims).__name__} {dims!r}",
                fix="make dimensions with nm.dims('batch=8 model=16') and pass a list of them",
            )
        self.dims = tuple(dims)
        seen: dict[str, Dimension] = {}
        for dim in self.dims:
            if not isinstance(dim, Dimension):
                raise NamedMeshError(
                    f"{dim!r} is not a Dimension",
                    fix="make dimensions with nm.dims('batch=8 model=16') and pass those",
                )
            if dim.name in seen:
                raise NamedMeshError(
                    f"dimension {dim.name} appears twice in one shape: [{', '.join(map(str, self.dims))}]",
                    fix=f"rename one of them, e.g. nm.rename(x, {dim.name}, nm.Dimension('{dim.name}_2', {dim.size}))",
                )
            seen[dim.name] = dim

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(dim.name for dim in self.dims)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes, in order."""
        return tuple(dim.size for dim in self.dims)

    @property
    def elements(self) -> int:
        """How many elements a tensor of this shape has."""
        return math.prod(self.sizes)

    def named(self, name: str) -> Dimension | None:
        """The dimension of that name, if there is one."""
        return next((dim for dim in self.dims if dim.name == name), None)

    def size_of(self, name: str) -> int:
        """Returns the size of the dimension of that name."""
        return self.dims[self.position(name)].size

    def position(self, name: str) -> int:
        """The position of the dimension of that name."""
        return self.names.index(name)

    def without(self, *names: str) -> "Shape":
        """This shape less the dimensions of those names."""
        return Shape(dim for dim in self.dims if dim.name not in names)

    def replaced(self, name: str, *dims: Dimension) -> "Shape":
        """This shape with other dimensions in the place of the named one."""
        at = self.position(name)
        return Shape(self.dims[:at] + dims + self.dims[at + 1 :])

    def __getitem__(self, index):  # type: ignore[override]
        return self.dims[index]

    def __len__(self) -> int:
        return len(self.dims)

    def __iter__(self) -> Iterator[Dimension]:
        return iter(self.dims)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self.dims == other.dims

    def __hash__(self) -> int:
        return hash(self.dims)

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.dims))}]"

    __repr__ = __str__


def dims(text: str) -> list[Dimension]:
    """Dimensions from one line, in order.

    >>> G, S = dims("group=64 seq=128")
    >>> G
    Dimension(name='group', size=64)
    """
    found: dict[str, Dimension] = {}
    for match in re.finditer(r"[^\s,;]+", check_text(text, "dimensions", "batch=8 model=16")):
        name, equals, size = match.group().partition("=")
        if (
            not equals
            or not name.isidentifier()
            or not re.fullmatch(r"\d{1,18}", size)
            or int(size) < 1
            or name in found
        ):
            raise NamedMeshError(
                f"dimension {name} is given twice"
                if name in found
                else f"cannot read {match.group()!r} as name=size",
                text,
                " " * match.start() + "^" * len(match.group()),
                fix="write dimensions as 'batch=8 model=16', each name once, each size a positive whole number",
            )
        found[name] = Dimension(name, int(size))
    return [*found.values()]
