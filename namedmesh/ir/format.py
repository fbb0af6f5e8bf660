"""Values in sentences: how errors print what a user handed to an op."""

from __future__ import annotations

from typing import Any

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape

LONGEST = 60  # characters of a value's repr in one line


def to_python_number(value: Any) -> Any:
    """Convert a numpy scalar (or 0-d array) to Python's number; return anything else as is."""
    scalar = isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return value.item() if scalar else value


def count_noun(number: int, noun: str) -> str:
    """Format a count: 1 tensor, 2 tensors."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def is_named(value: Any) -> bool:
    """Return whether a value prints itself by name: a Tensor, a Dimension or a Shape."""
    return isinstance(value, (Dimension, Shape)) or (
        hasattr(value, "label") and isinstance(getattr(value, "shape", None), Shape)
    )


def format_value(value: Any) -> str:
    """Format a value in one line of bounded length: arrays by dtype and shape, dims by name."""
    if is_named(value):
        return str(value)
    if isinstance(value, (list, tuple)) and value and all(is_named(item) for item in value):
        return f"[{', '.join(map(str, value))}]"
    value = to_python_number(value)
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, Shape):
        return f"{dtype}{shape}"
    if shape is not None and dtype is not None and not isinstance(value, type):
        return f"{getattr(dtype, 'name', dtype)}{list(shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def describe_type(value: Any) -> str:
    """Format a value with its type, unless that can be seen."""
    if is_named(value) and not isinstance(value, Shape):
        return format_value(value)
    return f"{format_value(value)} of type {type(value).__name__}"
