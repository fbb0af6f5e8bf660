"""Reading typed values out of JSON, where everything that is wrong is noted, not just the first."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from namedmesh.errors.errors import NamedMeshError

T = TypeVar("T")
_MISSING: Any = object()


@dataclass(frozen=True)
class JsonCursor:
    """A value somewhere in a JSON document, with the path that leads to it.

    Reading a value of the wrong type notes a problem and returns a stand-in of the right type, so
    that one pass finds every problem. What is read means something only if there are none.
    """

    value: Any
    path: str = ""
    problems: dict[str, None] = field(default_factory=dict)  # in order, each once

    def member(self, key: str) -> JsonCursor:
        """The value of an object's key, which must be there."""
        path = f"{self.path}.{key}" if self.path else key
        if not isinstance(self.value, dict):
            self.wrong("an object")
            return JsonCursor(_MISSING, path, self.problems)
        if key not in self.value:
            self.note(f"{path} is missing")
        return JsonCursor(self.value.get(key, _MISSING), path, self.problems)

    def has(self, key: str) -> bool:
        """Whether an object has a key that need not be there."""
        return isinstance(self.value, dict) and key in self.value

    def items(self) -> list[JsonCursor]:
        """The values of a list."""
        if not isinstance(self.value, list):
            self.wrong("a list")
            return []
        return [
            JsonCursor(value, f"{self.path}[{i}]", self.problems)
            for i, value in enumerate(self.value)
        ]

    def members(self) -> dict[str, JsonCursor]:
        """The values of an object by key."""
        if not isinstance(self.value, dict):
            self.wrong("an object")
            return {}
        return {key: self.member(key) for key in self.value}

    def text(self, choices: tuple[str, ...] = ()) -> str:
        """A string, one of some if there are choices."""
        if not isinstance(self.value, str) or (choices and self.value not in choices):
            self.wrong(f"one of {', '.join(choices)}" if choices else "text")
            return ""
        return self.value

    def number(self) -> int:
        """A whole number of at least zero."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < 0:
            self.wrong("a non-negative whole number")
            return 0
        return self.value

    def real(self) -> float:
        """A number of at least zero, whole or not."""
        number = self.value if isinstance(self.value, (int, float)) else -1.0
        if isinstance(self.value, bool) or not 0 <= number < 1e300:
            self.wrong("a non-negative number")
            return 0.0
        return float(number)

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            self.wrong("true or false")
            return False
        return self.value

    def build(self, function: Callable[[], T], default: T) -> T:
        """What a function returns; if it raises a NamedMeshError, the problem is noted."""
        try:
            return function()
        except NamedMeshError as error:
            self.note(f"{self.path}: {error.problem}")
            return default

    def wrong(self, expected: str) -> None:
        """Note that this is not what was expected, unless it is known to be missing."""
        if self.value is not _MISSING:
            text = json.dumps(self.value)
            shown = text if len(text) <= 60 else text[:57] + "..."
            self.note(f"{self.path or 'it'} is {shown}, expected {expected}")

    def note(self, problem: str) -> None:
        """Note a problem, once."""
        self.problems[problem] = None
