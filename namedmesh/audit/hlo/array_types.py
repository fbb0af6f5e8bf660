"""The types of HLO values: arrays with their layout in memory, and tuples of them."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from namedmesh.audit.hlo.element_types import ELEMENT_TYPES, ElementType
from namedmesh.errors.errors import NamedMeshError

_COMMENT = re.compile(r"\s*(?:/\*.*?\*/\s*)*")  # HLO numbers the parts of long tuples: /*index=5*/
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{((?:[^{}]|\{[^{}]*\})*)\})?")
_LAYOUT_PART = re.compile(r"([A-Z]+|[*#])((?:\([^()]*\))+)")
_FIX = "report this line together with the version of jax; its HLO has something new"


class UnreadableHlo(ValueError):
    """Why a shard of HLO text could not be read; what reads whole lines quotes the line."""

    def quoting(self, line: str) -> NamedMeshError:
        """The error a user sees, with the line it is about."""
        text = line.strip()
        return NamedMeshError(
            f"cannot read compiled HLO: {self}",
            text if len(text) <= 400 else text[:400] + "...",
            fix=_FIX,
        )


@dataclass(frozen=True)
class ArrayType:
    """An array: its element type, sizes, and layout in memory.

    Attributes:
        element: The element type.
        sizes: The sizes of its dimensions; those of dynamic dimensions are their bounds.
        minor_to_major: The dimensions, the one that changes fastest first; None if not stated.
        tiles: The tiles that TPUs store arrays in, the outermost first.
        memory_space: 0 for a device's main memory.
        packed_bits: The bits an element takes where the layout packs elements, otherwise None.
    """

    element: ElementType
    sizes: tuple[int, ...]
    minor_to_major: tuple[int, ...] | None = None
    tiles: tuple[tuple[int, ...], ...] = ()
    memory_space: int = 0
    packed_bits: int | None = None

    @property
    def elements(self) -> int:
        """How many elements it has, padding aside."""
        return math.prod(self.sizes)

    @property
    def arrays(self) -> tuple[ArrayType, ...]:
        """Itself, as the only array there is."""
        return (self,)

    @property
    def bytes(self) -> int:
        """The bytes of main memory it takes, the padding of tiles included.

        >>> parse_type("f32[10,100]{1,0:T(8,128)}").bytes
        8192
        """
        if self.memory_space:
            return 0
        bits = self.packed_bits or self.element.stored_bits
        return -(-math.prod(self._padded_sizes()) * bits // 8)

    def _padded_sizes(self) -> list[int]:
        """The sizes rounded up to whole tiles; a scalar takes a tile of its own."""
        sizes = list(self.sizes)
        if not self.tiles:
            return sizes
        if not sizes:
            return list(self.tiles[0])
        for dimension, width in zip(
            self.minor_to_major or (), reversed(self.tiles[0]), strict=False
        ):
            sizes[dimension] = -(-sizes[dimension] // width) * width
        return sizes

    def __str__(self) -> str:
        return f"{self.element.name}[{','.join(map(str, self.sizes))}]"


@dataclass(frozen=True)
class TupleType:
    """Several values in one, which may be tuples themselves."""

    parts: tuple[HloType, ...]

    @property
    def arrays(self) -> tuple[ArrayType, ...]:
        """Every array in it, in order."""
        return tuple(array for part in self.parts for array in part.arrays)

    @property
    def bytes(self) -> int:
        """The bytes of main memory that its arrays take."""
        return sum(array.bytes for array in self.arrays)

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.parts))})"


HloType = ArrayType | TupleType


def parse_type(text: str) -> HloType:
    """Read a type as HLO text has it."""
    try:
        found, end = read_type(text, 0)
        if text[end:].strip():
            raise UnreadableHlo(f"{text[end:].strip()[:40]!r} follows a type")
    except UnreadableHlo as error:
        raise error.quoting(text) from None
    return found


def read_type(text: str, start: int) -> tuple[HloType, int]:
    """Read the type that starts at a position of HLO text."""
    start = _skip(text, start)
    match = _ARRAY.match(text, start)
    if match:
        return _array(match[0]), match.end()
    if text.startswith("b(", start):  # a buffer: its contents are what takes memory
        contents, end = read_type(text, start + 2)
        return contents, end + 1
    if not text.startswith("(", start):
        raise UnreadableHlo(f"expected a type at {text[start : start + 40]!r}")
    parts, at = [], _skip(text, start + 1)
    while not text.startswith(")", at):
        part, at = read_type(text, at)
        parts.append(part)
        at = _skip(text, at)
        if text.startswith(",", at):
            at = _skip(text, at + 1)
        elif not text.startswith(")", at):
            raise UnreadableHlo(f"expected ',' or ')' at {text[at : at + 40]!r}")
    return TupleType(tuple(parts)), at + 1


def _skip(text: str, at: int) -> int:
    """The position after white space and comments."""
    match = _COMMENT.match(text, at)
    return match.end() if match else at


@functools.lru_cache(maxsize=65536)  # a module repeats few types many times
def _array(text: str) -> ArrayType:
    """An array type from its text alone."""
    match = _ARRAY.fullmatch(text)
    assert match is not None, "read_type matched it"
    name, dims, layout = match.groups()
    if name not in ELEMENT_TYPES:
        raise UnreadableHlo(f"the element type {name!r} is unknown")
    sizes = []
    for dim in dims.split(",") if dims.strip() else ():
        bound = dim.strip().removeprefix("<=")
        if not bound.isdigit():
            raise UnreadableHlo(f"{dim.strip()!r} is not the size of a dimension")
        sizes.append(int(bound))
    if layout is None:
        return ArrayType(ELEMENT_TYPES[name], tuple(sizes))
    order, _, details = layout.partition(":")
    tiles: tuple[tuple[int, ...], ...] = ()
    numbers = {"S": 0, "E": 0}
    for part in _LAYOUT_PART.finditer(details):
        groups = part[2][1:-1].split(")(")
        if part[1] == "T":
            # A dimension that a tile merges with the next, written *, is not padded by itself.
            tiles = tuple(
                tuple(1 if width.strip() == "*" else int(width) for width in group.split(","))
                for group in groups
            )
        elif part[1] in numbers:
            numbers[part[1]] = int(groups[0])
    return ArrayType(
        ELEMENT_TYPES[name],
        tuple(sizes),
        tuple(int(dim) for dim in order.split(",") if dim.strip()),
        tiles,
        numbers["S"],
        numbers["E"] or None,
    )
