"""Dimension and Shape: named sizes, and their order in a tensor."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, overload

from namedmesh.errors.errors import (
    NamedMeshError,
    check_identifier,
    check_size,
    check_text,
    did_you_mean,
)
from namedmesh.errors.mistakes import Explained, MissingKey


@dataclass(frozen=True)
class Dimension(Explained):
    """A named dimension of a known size; ops match names, layouts map them to mesh axes.

    Args:
        name: An identifier.
        size: A positive whole number.

    Example:
        >>> B = nm.Dimension("batch", 8)
        >>> print(B, B.resized(4))
        batch=8 batch=4
    """

    name: str
    size: int

    def __post_init__(self) -> None:
        check_identifier(self.name, "dimension")
        object.__setattr__(self, "size", check_size(self.size, f"dimension {self.name}"))

    def resized(self, size: int) -> "Dimension":
        """Return a dimension of the same name and another size.

        Args:
            size: A positive whole number.
        """
        return Dimension(self.name, size)

    def __str__(self) -> str:
        return f"{self.name}={self.size}"

    def __format__(self, form: str) -> str:
        return format(self.size if form[-1:].isalpha() and form[-1] != "s" else str(self), form)

    def _refuse(self, *unused: object) -> NoReturn:
        raise NamedMeshError(
            f"dimension {self} is not a number",
            fix="use its size, e.g. M.size * 2, and M.resized(n) for a dimension of another size",
        )


class Shape(Explained, Sequence[Dimension], methods=False):
    """The shape of a tensor: an immutable sequence of dimensions, each name once.

    Args:
        dims: The dimensions.

    Example:
        >>> shape = nm.Shape(nm.dims("batch=8 model=16"))
        >>> shape.names, shape.sizes, shape.elements
        (('batch', 'model'), (8, 16), 128)
        >>> shape.without("batch")
        [model=16]
    """

    __slots__ = ("dims", "names")

    def __init__(self, dims: Iterable[Dimension] = ()):
        if isinstance(dims, Dimension):
            raise NamedMeshError(
                f"expected a list of dimensions, not the single dimension {dims}",
                fix=f"write [{dims.name}]",
            )
        scalar = getattr(dims, "ndim", None) == 0  # an array of no dimensions only looks iterable
        if scalar or isinstance(dims, str) or not isinstance(dims, Iterable):
            raise NamedMeshError(
                f"expected a list of dimensions, not {type(dims).__name__} {dims!r}",
                fix="make dimensions with nm.dims('batch=8 model=16') and pass a list of them",
            )
        self.dims = tuple(dims)
        seen: set[str] = set()
        for dim in self.dims:
            if not isinstance(dim, Dimension):
                raise NamedMeshError(
                    f"{dim!r} is not a Dimension",
                    fix="make dimensions with nm.dims('batch=8 model=16') and pass those",
                )
            if dim.name in seen:
                other = f"nm.Dimension('{dim.name}_2', {dim.size})"
                raise NamedMeshError(
                    f"dimension {dim.name} appears twice in one shape: {self}",
                    fix=f"rename one of them, e.g. nm.rename(x, {dim.name}, {other})",
                )
            seen.add(dim.name)
        self.names = tuple(dim.name for dim in self.dims)  # in order

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes, in order."""
        return tuple(dim.size for dim in self.dims)

    @property
    def elements(self) -> int:
        """The number of elements of a tensor of this shape."""
        return math.prod(self.sizes)

    def named(self, name: str) -> Dimension | None:
        """Return the dimension of that name, or None.

        Args:
            name: A name.
        """
        return next((dim for dim in self.dims if dim.name == name), None)

    def size_of(self, name: str) -> int:
        """Return the size of the dimension of that name.

        Args:
            name: The name of a dimension of this shape.
        """
        return self.dims[self.position(name)].size

    def position(self, name: str) -> int:
        """Return the position of the dimension of that name.

        Args:
            name: The name of a dimension of this shape.

        Raises:
            NamedMeshError: The shape has no dimension of that name.
        """
        if name in self.names:
            return self.names.index(name)
        if isinstance(name, Dimension):
            problem, fix = f"{name} is a Dimension, not its name", f"write {name.name!r}"
        else:
            problem, fix = f"{self} has no dimension {name!r}", did_you_mean(name, self.names)
        raise NamedMeshError(problem, fix=fix)

    def index(self, dim: Dimension, *bounds: int) -> int:  # type: ignore[override]
        """Return the position of a dimension.

        Args:
            dim: A dimension of this shape.
            *bounds: Where to look for it, as for a list.
        """
        at = self.position(dim.name if isinstance(dim, Dimension) else dim)
        return self.dims.index(dim, *bounds) if dim in self.dims else at

    def without(self, *names: str) -> "Shape":
        """Return this shape without some dimensions.

        Args:
            *names: The names to leave out; those that the shape lacks are ignored.
        """
        return Shape(dim for dim in self.dims if dim.name not in names)

    def replace(self, name: str, *dims: Dimension) -> "Shape":
        """Return this shape with other dimensions in the place of the named one.

        Args:
            name: The name of the dimension to replace.
            *dims: Any number of dimensions.
        """
        at = self.position(name)
        return Shape(self.dims[:at] + dims + self.dims[at + 1 :])

    def select(self, names: Iterable[str]) -> "Shape":
        """Return the dimensions of some names, in the order of the names.

        Args:
            names: Names of dimensions of this shape, each once.
        """
        return Shape(self.dims[self.position(name)] for name in names)

    @overload
    def __getitem__(self, index: int) -> Dimension: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Dimension, ...]: ...

    def __getitem__(self, index: int | slice) -> Dimension | tuple[Dimension, ...]:
        if isinstance(index, (str, Dimension)):
            raise NamedMeshError(
                f"a shape is indexed by position, not by {index!r}",
                fix="write shape.named(name) for the dimension, or shape.position(name)",
            )
        try:
            return self.dims[index]
        except (IndexError, TypeError):
            last = len(self) - 1
            fix = f"it has positions 0 to {last}" if self.dims else "it is that of a scalar"
            raise MissingKey(f"{self} has no dimension at position {index!r}", fix=fix) from None

    def __len__(self) -> int:
        return len(self.dims)

    def __iter__(self) -> Iterator[Dimension]:
        return iter(self.dims)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (list, tuple)):  # x.shape == [B, M]
            return self.dims == tuple(other)
        return isinstance(other, Shape) and self.dims == other.dims

    def __hash__(self) -> int:
        return hash(self.dims)

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.dims))}]"

    __repr__ = __str__


def dims(text: str) -> list[Dimension]:
    """Return dimensions from one line of text, in order.

    Args:
        text: Names with sizes, such as 'batch=8 model=16', separated by spaces or commas.

    Example:
        >>> G, S = nm.dims("group=64 seq=128")
        >>> G
        Dimension(name='group', size=64)
    """
    example = "batch=8 model=16"
    sizes = read_sizes(check_text(text, "dimensions", example), "dimension", example)
    return [Dimension(name, size) for name, size in sizes.items()]


def read_sizes(text: str, noun: str, example: str) -> dict[str, int]:
    """Read names and sizes such as those of an example, or raise with a caret."""
    sizes: dict[str, int] = {}
    for match in re.finditer(r"[^\s,;]+", text):
        name, _, size = match.group().partition("=")
        positive = re.fullmatch(r"\d{1,18}", size) and int(size) > 0
        if not name.isidentifier() or not positive or name in sizes:
            problem = f"cannot read {match.group()!r} as name=size"
            raise NamedMeshError(
                f"{noun} {name} is given twice" if name in sizes else problem,
                text,
                " " * match.start() + "^" * len(match.group()),
                fix=f"write e.g. {example!r}, each name once, each size a positive whole number",
            )
        sizes[name] = int(size)
    return sizes
