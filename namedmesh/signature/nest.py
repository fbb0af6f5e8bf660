"""Tuples, lists and dicts of tensors, flattened and put together again."""

from collections.abc import Callable, Iterator
from typing import Any


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
    if structure is None:
        return None
    if isinstance(structure, dict):
        return {key: unflatten(value, leaves) for key, value in structure.items()}
    if isinstance(structure, (tuple, list)):
        items = [unflatten(item, leaves) for item in structure]
        if hasattr(structure, "_fields"):
            return type(structure)._make(items)  # type: ignore[union-attr]
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
    """Return a structure's leaves in the order of a pattern, None where the two nest otherwise.

    Tuples and lists are one kind.
    """
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
    found = [match_leaves(*pair) for pair in pairs]
    return (
        None
        if any(leaves is None for leaves in found)
        else [leaf for leaves in found for leaf in leaves or ()]
    )
