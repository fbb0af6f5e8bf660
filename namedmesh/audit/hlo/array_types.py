"""The types of HLO values: elements, arrays with their layout in memory, tuples of them."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from namedmesh.errors.errors import NamedMeshError

_COMMENT = re.compile(r"\s*(?:/\*.*?\*/\s*)*")  # HLO numbers the parts of long tuples: /*index=5*/
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{((?:[^{}]|\{[^{}]*\})*)\})?")
_LAYOUT_PART = re.compile(r"([A-Z]+|[*#])((?:\([^()]*\))+)")
_FIX = "report this line together with the version of jax; its HLO has something new"


class UnreadableHlo(ValueError):
    """HLO text that could not be read; the parser of whole lines quotes the line."""

    def quoting(self, line: str) -> NamedMeshError:
        """Make the error that a user sees, with the line it is about."""
        text = line.strip()
        text = text if len(text) <= 400 else text[:400] + "..."
        return NamedMeshError(f"cannot read compiled HLO: {self}", text, fix=_FIX)


@dataclass(frozen=True)
class ElementType:
    """An element type of HLO."""

    name: str  # in HLO text, such as f32 or s4
    bits: int  # of one element; tokens and opaque handles have none
    dtype: str  # the name in numpy or ml_dtypes, such as float32; HLO's own where they have none

    @property
    def stored_bits(self) -> int:
        """The bits of an element in memory unless a layout packs it: at least a byte."""
        return max(8, self.bits) if self.bits else 0


_FLOAT8 = ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
_ROWS = (
    ("pred", 8, "bool"),
    *((f"s{bits}", bits, f"int{bits}") for bits in (1, 2, 4, 8, 16, 32, 64)),
    *((f"u{bits}", bits, f"uint{bits}") for bits in (1, 2, 4, 8, 16, 32, 64)),
    ("f4e2m1fn", 4, "float4_e2m1fn"),
    *((f"f8{kind}", 8, f"float8_{kind}") for kind in _FLOAT8),
    ("bf16", 16, "bfloat16"),
    ("f16", 16, "float16"),
    ("f32", 32, "float32"),
    ("f64", 64, "float64"),
    ("c64", 64, "complex64"),
    ("c128", 128, "complex128"),
    ("token", 0, "token"),
    ("opaque", 0, "opaque"),
)
ELEMENT_TYPES: dict[str, ElementType] = {row[0]: ElementType(*row) for row in _ROWS}
_BY_DTYPE = {element.dtype: element for element in ELEMENT_TYPES.values()}


def count_bytes(dtype: str, elements: int) -> int:
    """Count the bytes of elements that are not packed."""
    return elements * _BY_DTYPE[dtype].stored_bits // 8


@dataclass(frozen=True)
class ArrayType:
    """An array: its element type, sizes, and layout in memory."""

    element: ElementType
    sizes: tuple[int, ...]  # of dynamic dimensions, their bounds
    minor_to_major: tuple[int, ...] | None = None  # None if the text has no layout
    tiles: tuple[tuple[int, ...], ...] = ()  # in which TPUs store arrays, the outermost first
    memory_space: int = 0  # 0 is a device's main memory
    packed_bits: int | None = None  # of an element, where the layout packs elements

    @property
    def elements(self) -> int:
        """The number of elements, without padding."""
        return math.prod(self.sizes)

    @property
    def arrays(self) -> tuple[ArrayType, ...]:
        """All arrays in this type: itself."""
        return (self,)

    @property
    def bytes(self) -> int:
        """The bytes of main memory, the padding of tiles included."""
        if self.memory_space:
            return 0
        bits = self.packed_bits or self.element.stored_bits
        return -(-math.prod(self._padded_sizes()) * bits // 8)

    def _padded_sizes(self) -> list[int]:
        """Round the sizes up to whole tiles; a scalar takes a tile of its own."""
        sizes = list(self.sizes)
        if not self.tiles:
            return sizes
        if not sizes:
            return list(self.tiles[0])
        minor_to_major, widths = self.minor_to_major or (), reversed(self.tiles[0])
        for dimension, width in zip(minor_to_major, widths, strict=False):
            sizes[dimension] = -(-sizes[dimension] // width) * width
        return sizes

    def __str__(self) -> str:
        return f"{self.element.name}[{','.join(map(str, self.sizes))}]"


@dataclass(frozen=True)
class TupleType:
    """A tuple of values, which may be tuples themselves."""

    parts: tuple[HloType, ...]

    @property
    def arrays(self) -> tuple[ArrayType, ...]:
        """All arrays in it, in order."""
        return tuple(array for part in self.parts for array in part.arrays)

    @property
    def bytes(self) -> int:
        """The bytes of main memory of its arrays."""
        return sum(array.bytes for array in self.arrays)

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.parts))})"


HloType = ArrayType | TupleType


def parse_type(text: str) -> HloType:
    """Read a type as HLO text has it."""
    try:
        type, end = read_type(text, 0)
        if text[end:].strip():
            raise UnreadableHlo(f"{text[end:].strip()[:40]!r} follows a type")
    except UnreadableHlo as error:
        raise error.quoting(text) from None
    return type


def read_type(text: str, start: int) -> tuple[HloType, int]:
    """Read the type that starts at a position of HLO text."""
    start = _skip(text, start)
    match = _ARRAY.match(text, start)
    if match:
        return _parse_array(match[0]), match.end()
    if text.startswith("b(", start):  # a buffer: its contents take the memory
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
    """Return the position after white space and comments."""
    match = _COMMENT.match(text, at)
    return match.end() if match else at


@functools.lru_cache(maxsize=65536)  # a module repeats few types many times
def _parse_array(text: str) -> ArrayType:
    """Parse the text of an array type."""
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
