"""The sizes of arrays that lie padded on devices, remembered for as long as the arrays live."""

from __future__ import annotations

import weakref
from typing import Any

# By the array's id, since jax arrays cannot be hashed; an entry goes when its array does.
_sizes: dict[int, tuple[weakref.ref[Any], tuple[int, ...]]] = {}


def remember_sizes(array: Any, sizes: tuple[int, ...]) -> None:
    """Note that an array holds a smaller one, and padding behind it."""
    if tuple(array.shape) == tuple(sizes):
        return
    key = id(array)
    _sizes[key] = (weakref.ref(array, lambda _: _sizes.pop(key, None)), tuple(sizes))


def unpadded_sizes(array: Any) -> tuple[int, ...]:
    """The sizes of what an array holds: its own, unless it is known to be padded."""
    reference, sizes = _sizes.get(id(array), (None, ()))
    if reference is None or reference() is not array:
        return tuple(array.shape)
    return sizes
