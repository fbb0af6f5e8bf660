"""Values that a page refers to by number, each kept once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value", bound=Hashable)


class Interned(Generic[Value]):
    """A list of different values, each known by its position."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._positions: dict[Value, int] = {}

    def add(self, value: Value) -> int:
        """Return the position of a value, which is entered if it is new."""
        if value not in self._positions:
            self._positions[value] = len(self.values)
            self.values.append(value)
        return self._positions[value]
