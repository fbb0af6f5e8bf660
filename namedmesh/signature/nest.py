"""Nested tuples, lists and dicts: their leaves, and the nesting of a step's results."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from namedmesh.errors.mistakes import Explained

Rebuild = Callable[[Any, dict[str, Any]], Any]


def fields_of(structure: Any) -> dict[str, Any] | None:
    """Return the fields of a user's dataclass by name; None for anything else."""
    if isinstance(structure, (type, Explained)) or not dataclasses.is_dataclass(structure):
        return None
    return {one.name: getattr(structure, one.name) for one in dataclasses.fields(structure)}


def flatten(structure: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists, dicts and dataclasses, in order, without None."""
    leaves: list[Any] = []
    map_leaves(structure, leaves.append)
    return leaves


def unflatten(structure: Any, leaves: Iterator[Any]) -> Any:
    """Return the same nesting with other leaves."""
    return map_leaves(structure, lambda _: next(leaves))


def map_leaves(
    structure: Any,
    function: Callable[[Any], Any],
    rebuild: Rebuild = lambda old, fields: dataclasses.replace(old, **fields),
    is_leaf: Callable[[Any], bool] = lambda value: False,
) -> Any:
    """Return the same nesting with a function of each leaf in its place, in order."""
    if structure is None:
        return None
    if is_leaf(structure):
        return function(structure)
    if isinstance(structure, Mapping):
        pairs = structure.items()
        return {key: map_leaves(value, function, rebuild, is_leaf) for key, value in pairs}
    if isinstance(structure, (tuple, list)):
        items = [map_leaves(item, function, rebuild, is_leaf) for item in structure]
        if hasattr(structure, "_fields"):
            return type(structure)._make(items)  # type: ignore[union-attr]
        return items if isinstance(structure, list) else tuple(items)
    fields = fields_of(structure)
    if fields is not None:
        return rebuild(structure, map_leaves(fields, function, rebuild, is_leaf))
    return function(structure)


def format_nest(structure: Any, leaf: Callable[[Any], str]) -> str:
    """Format nested values in one line, each leaf as a function formats it."""
    if structure is None:
        return "None"
    fields = fields_of(structure)
    if fields is not None:
        entries = (f"{name}={format_nest(value, leaf)}" for name, value in fields.items())
        return f"{type(structure).__name__}({', '.join(entries)})"
    if isinstance(structure, Mapping):
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
    if fields_of(pattern) is not None:
        alike = type(structure) is type(pattern)
        return match_leaves(fields_of(pattern), fields_of(structure)) if alike else None
    if isinstance(pattern, Mapping):
        if not isinstance(structure, Mapping) or structure.keys() != pattern.keys():
            return None
        pairs = [(pattern[key], structure[key]) for key in pattern]
    elif isinstance(pattern, (tuple, list)):
        if not isinstance(structure, (tuple, list)) or len(structure) != len(pattern):
            return None
        pairs = list(zip(pattern, structure, strict=True))
    else:
        nested = isinstance(structure, (dict, tuple, list)) or fields_of(structure) is not None
        return None if nested else [structure]
    matched: list[Any] = []
    for pair in pairs:
        leaves = match_leaves(*pair)
        if leaves is None:
            return None
        matched += leaves
    return matched


# The nesting of results: each leaf is the number of the result that belongs there.
ResultStructure = Any


def number_leaves(structure: Any) -> ResultStructure:
    """Return the nesting of a value, its leaves numbered in order, in named tuples for dataclasses.

    A file keeps the names of their fields, and not their class.
    """
    numbers = itertools.count()

    def rebuild(old: Any, fields: dict[str, Any]) -> Any:
        return named_tuple(type(old).__name__, (*fields,))(**fields)

    return map_leaves(structure, lambda _: next(numbers), rebuild)


def fill_structure(structure: ResultStructure, leaves: Sequence[Any]) -> Any:
    """Return a nesting with values for its leaves."""
    return map_leaves(structure, leaves.__getitem__)


def is_plain(structure: ResultStructure) -> bool:
    """Return whether jax nests results so: one, or a tuple, list or sorted dict of them."""
    if hasattr(structure, "_fields"):
        return False
    items = structure if isinstance(structure, (tuple, list)) else [structure]
    if isinstance(structure, dict):
        items = structure.values()
        if not all(isinstance(key, str) for key in structure) or [*structure] != sorted(structure):
            return False
    return all(item is None or isinstance(item, int) for item in items)


@functools.cache
def named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """Return the class of named tuples of a name and fields, the same each time."""
    return collections.namedtuple(name, fields, rename=True)
