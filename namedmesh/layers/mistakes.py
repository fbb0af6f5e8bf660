"""Reporting every mistake in a layer's arguments at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from namedmesh.errors.errors import NamedMeshError, did_you_mean

Mistake = tuple[str, str]  # what is wrong, and how to fix it


def raise_mistakes(owner: str, mistakes: Iterable[Mistake], *details: str) -> None:
    """Raise one error that lists every mistake; return when there are none."""
    mistakes = list(mistakes)
    if len(mistakes) == 1:
        ((problem, fix),) = mistakes
        raise NamedMeshError(problem, *details, fix=fix)
    if mistakes:
        raise NamedMeshError(
            f"{owner}: {len(mistakes)} arguments are wrong",
            *(f"{problem}; {fix}" for problem, fix in mistakes),
            *details,
            fix="correct each of the arguments listed above",
        )


def check_choice(owner: str, name: str, value: Any, choices: Iterable[str]) -> list[Mistake]:
    """Check that an option is one of its choices."""
    choices = list(choices)
    if value in choices:
        return []
    return [(f"{owner}{name}={value!r} is not a choice", did_you_mean(str(value), choices))]


def is_number(value: Any) -> bool:
    """Return whether a value is a Python number (a bool is not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
