"""What compilers say when a program does not fit into memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from namedmesh.aot.attribution import Buffer, find_origin
from namedmesh.artifacts.artifact import Artifact
from namedmesh.audit.hlo.array_types import ArrayType, parse_type
from namedmesh.errors.errors import NamedMeshError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)i?B?"
_FIRST_SIZE = re.compile(_SIZE)
# The needed and the available bytes, in the forms that compilers write them.
_TOTALS = (
    re.compile(rf"Used {_SIZE} of {_SIZE}"),
    re.compile(rf"Requires {_SIZE}, has {_SIZE} available"),
    re.compile(rf"temporaries \({_SIZE}\) exceeds available \w+ \({_SIZE}\)"),
)
_ALLOCATION = re.compile(r"\n\s*\d+\. Size: ")
_OPERATOR = re.compile(r'op_name="([^"]*)"')
_SHAPE = re.compile(r"Shape: (\S+\])")
_PARAMETER = re.compile(r"parameter\((\d+)\)")
_AVAILABLE = re.compile(r"(?:Used \S+ of|available HBM \(|has) ?([\d.]+)([MG])")


@dataclass(frozen=True)
class Exhausted:
    """A compiler's message that a program does not fit.

    Attributes:
        needed: The bytes it needs.
        available: The bytes there are.
        buffers: The largest allocations, if the message lists them.
    """

    needed: int
    available: int
    buffers: tuple[Buffer, ...]


def read_exhaustion(message: str, artifact: Artifact) -> Exhausted | None:
    """Read a compiler's out-of-memory message.

    What the brief form calls temporaries is everything: a model that is a little too deep has, by
    that number, the memory that shallower ones grow towards, weights and all.
    """
    if "RESOURCE_EXHAUSTED" not in message and "CompileTimeHbmOom" not in message:
        return None
    for pattern in _TOTALS:
        match = pattern.search(message)
        if match:
            needed, available = _bytes(match[1], match[2]), _bytes(match[3], match[4])
            return Exhausted(needed, available, tuple(_allocations(message, artifact)))
    return None


def read_available(message: str) -> int | None:
    """The bytes of memory that an out-of-memory message says there are."""
    match = _AVAILABLE.search(message)
    return _bytes(match[1], match[2]) if match else None


def _allocations(message: str, artifact: Artifact) -> list[Buffer]:
    """The allocations a message lists, those of entries under the entry's name."""
    entries, buffers = [*artifact.inputs, *artifact.variables], []
    for block in _ALLOCATION.split(message)[1:]:
        size = _FIRST_SIZE.match(block)
        operator = _OPERATOR.search(block)
        array = _array(block)
        number = _PARAMETER.search(block)
        origin = find_origin(operator[1] if operator else "", array, artifact)
        if number and int(number[1]) < len(entries):
            origin = entries[int(number[1])].name
        shape = "" if array is None else str(array)
        buffers.append(Buffer(_bytes(size[1], size[2]) if size else 0, shape, origin))
    return buffers


def _array(block: str) -> ArrayType | None:
    """The first array of an allocation's shape; None if the message has none that can be read."""
    match = _SHAPE.search(block)
    try:
        return parse_type(match[1].lstrip("(")).arrays[0] if match else None
    except NamedMeshError:
        return None


def _bytes(number: str, unit: str) -> int:
    """A size in bytes."""
    return int(float(number) * _UNITS[unit])
