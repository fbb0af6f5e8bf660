"""The nesting of a step's results: tuples, lists and dicts with numbers for leaves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

# Each leaf is the number of the result that belongs there; None has no leaves.
ResultStructure = (
    int | None | tuple["ResultStructure", ...] | list["ResultStructure"] | dict[Any, Any]
)


def number_leaves(structure: Any) -> ResultStructure:
    """The nesting of a value, its leaves numbered in order.

    Args:
        structure: Nested tuples, lists and dicts of anything.

    Returns:
        The same nesting with a number for each leaf; named tuples become plain ones.

    Example:
        >>> number_leaves({"loss": object(), "pair": (object(), None)})
        {'loss': 0, 'pair': (1, None)}
    """
    return _number(structure, itertools.count())


def _number(structure: Any, numbers: Iterator[int]) -> ResultStructure:
    """Numbers the leaves of one part of a structure."""
    if structure is None:
        return None
    if isinstance(structure, dict):
        return {key: _number(value, numbers) for key, value in structure.items()}
    if isinstance(structure, (tuple, list)):
        items = [_number(item, numbers) for item in structure]
        return tuple(items) if isinstance(structure, tuple) else items
    return next(numbers)


def fill_structure(structure: ResultStructure, leaves: Sequence[Any]) -> Any:
    """A nesting with values for its leaves.

    Args:
        structure: As `number_leaves` returns it.
        leaves: The values, by number.

    Returns:
        The nested values.

    Example:
        >>> fill_structure({"loss": 0, "pair": (1, None)}, [0.5, 2])
        {'loss': 0.5, 'pair': (2, None)}
    """
    if structure is None:
        return None
    if isinstance(structure, int):
        return leaves[structure]
    if isinstance(structure, dict):
        return {key: fill_structure(value, leaves) for key, value in structure.items()}
    items = [fill_structure(item, leaves) for item in structure]
    return tuple(items) if isinstance(structure, tuple) else items
