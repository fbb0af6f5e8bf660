"""The nesting of a step's results: tuples, lists and dicts with numbers for leaves."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

# Each leaf is the number of the result that belongs there; None has no leaves.
ResultStructure = Union[
    int,
    None,
    tuple["ResultStructure", ...],
    list["ResultStructure"],
    dict[Any, Any],
    "NamedStructure",
]


@dataclass(frozen=True)
class NamedStructure:
    """A named tuple in a nesting: the name of its class, its fields, and what they hold."""

    name: str
    fields: tuple[str, ...]
    items: tuple[ResultStructure, ...]


def number_leaves(structure: Any) -> ResultStructure:
    """The nesting of a value, its leaves numbered in order."""
    return _number(structure, itertools.count())


def _number(structure: Any, numbers: Iterator[int]) -> ResultStructure:
    """Numbers the leaves of one part of a structure."""
    if structure is None:
        return None
    if isinstance(structure, dict):
        return {key: _number(value, numbers) for key, value in structure.items()}
    if isinstance(structure, (tuple, list)):
        items = [_number(item, numbers) for item in structure]
        if isinstance(structure, list):
            return items
        fields = getattr(structure, "_fields", None)
        if fields is None:
            return tuple(items)
        return NamedStructure(type(structure).__name__, tuple(fields), tuple(items))
    return next(numbers)


def fill_structure(structure: ResultStructure, leaves: Sequence[Any]) -> Any:
    """A nesting with values for its leaves."""
    if structure is None:
        return None
    if isinstance(structure, int):
        return leaves[structure]
    if isinstance(structure, dict):
        return {key: fill_structure(value, leaves) for key, value in structure.items()}
    if isinstance(structure, NamedStructure):
        items = (fill_structure(item, leaves) for item in structure.items)
        return _named_tuple(structure.name, structure.fields)._make(items)
    items = [fill_structure(item, leaves) for item in structure]
    return tuple(items) if isinstance(structure, tuple) else items


@functools.cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """The class of named tuples of a name and fields, the same each time."""
    return collections.namedtuple(name, fields, rename=True)
