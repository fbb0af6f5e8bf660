"""Tuples, lists and dicts of tensors, flattened and put together again."""

from collections.abc import Iterator
from typing import Any


def flatten(structure: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts, in order; None has no leaves."""
    if structure is None:
        return []
    if isinstance(structure, dict):
        return [leaf for key in structure for leaf in flatten(structure[key])]
    if isinstance(structure, (tuple, list)):
        return [leaf for item in structure for leaf in flatten(item)]
    return [structure]


def unflatten(structure: Any, leaves: Iterator[Any]) -> Any:
    """The same nesting with other leaves."""
    if structure is None:
        return None
    if isinstance(structure, dict):
        return {key: unflatten(value, leaves) for key, value in structure.items()}
    if isinstance(structure, (tuple, list)):
        items = [unflatten(item, leaves) for item in structure]
        if hasattr(structure, "_fields"):
            return type(structure)(*items)
        return type(structure)(items)
    return next(leaves)
