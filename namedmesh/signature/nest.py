"""Nested tuples, lists and dicts: their leaves, and the nesting of a step's results."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union


def flatten(structure: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists and dicts, in order; None has no leaves."""
    if structure is None:
        return []
    if isinstance(structure, dict):
        return [leaf for key in structure for leaf in flatten(structure[key])]
    if isinstance(structure, (tuple, list)):
        return [leaf for item in structure for leaf in flatten(item)]
    return [structure]


def unflatten(structure: Any, leaves: Iterator[Any]) -> Any:
    """Return the same nesting with other leaves."""
    return _map_nest(structure, leaves, lambda kind, items: kind._make(items))


def _map_nest(structure: Any, leaves: Iterator[Any], name: Callable[[Any, list[Any]], Any]) -> Any:
    """Return the same nesting with other leaves, named tuples as a function makes them."""
    if structure is None:
        return None
    if isinstance(structure, dict):
        return {key: _map_nest(value, leaves, name) for key, value in structure.items()}
    if isinstance(structure, (tuple, list)):
        items = [_map_nest(item, leaves, name) for item in structure]
        if hasattr(structure, "_fields"):
            return name(type(structure), items)
        return items if isinstance(structure, list) else tuple(items)
    return next(leaves)


def format_nest(structure: Any, leaf: Callable[[Any], str]) -> str:
    """Format nested values in one line, each leaf as a function formats it."""
    if structure is None:
        return "None"
    if isinstance(structure, dict):
        entries = (f"{key!r}: {format_nest(value, leaf)}" for key, value in structure.items())
        return f"{{{', '.join(entries)}}}"
    if isinstance(structure, (tuple, list)):
        opening, closing = "[]" if isinstance(structure, list) else "()"
        return f"{opening}{', '.join(format_nest(item, leaf) for item in structure)}{closing}"
    return leaf(structure)


def match_leaves(pattern: Any, structure: Any) -> list[Any] | None:
    """Return a structure's leaves in the order of a pattern; None if they nest differently."""
    if pattern is None or structure is None:
        return [] if pattern is structure else None
    if isinstance(pattern, dict):
        if not isinstance(structure, dict) or structure.keys() != pattern.keys():
            return None
        pairs = [(pattern[key], structure[key]) for key in pattern]
    elif isinstance(pattern, (tuple, list)):
        if not isinstance(structure, (tuple, list)) or len(structure) != len(pattern):
            return None
        pairs = list(zip(pattern, structure, strict=True))
    else:
        return None if isinstance(structure, (dict, tuple, list)) else [structure]
    matched: list[Any] = []
    for pair in pairs:
        leaves = match_leaves(*pair)
        if leaves is None:
            return None
        matched += leaves
    return matched


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
    """A named tuple in a nesting: the name of its class, its fields, and their nestings."""

    name: str
    fields: tuple[str, ...]
    items: tuple[ResultStructure, ...]


def number_leaves(structure: Any) -> ResultStructure:
    """Return the nesting of a value, its leaves numbered in order."""

    def name(kind: Any, items: list[Any]) -> NamedStructure:
        return NamedStructure(kind.__name__, tuple(kind._fields), tuple(items))

    return _map_nest(structure, itertools.count(), name)


def fill_structure(structure: ResultStructure, leaves: Sequence[Any]) -> Any:
    """Return a nesting with values for its leaves."""
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


def is_plain(structure: ResultStructure) -> bool:
    """Return whether jax nests results so: one, or a tuple, list or sorted dict of them."""
    items = structure if isinstance(structure, (tuple, list)) else [structure]
    if isinstance(structure, dict):
        items = structure.values()
        if not all(isinstance(key, str) for key in structure) or [*structure] != sorted(structure):
            return False
    return all(item is None or isinstance(item, int) for item in items)


@functools.cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """Return the class of named tuples of a name and fields, the same each time."""
    return collections.namedtuple(name, fields, rename=True)
