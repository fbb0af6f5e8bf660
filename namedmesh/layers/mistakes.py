"""Reporting every mistake in a layer's arguments at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from namedmesh.errors.errors import NamedMeshError, did_you_mean

Mistake = tuple[str, str]  # what is wrong, and how to fix it


def raise_mistakes(owner: str, mistakes: Iterable[Mistake], *details: str) -> None:
    """Raise one error that lists every mistake; return when there are none.

    Args:
        owner: The function or class whose arguments are wrong.
        mistakes: Pairs of a problem and its fix.
        details: Lines that describe the operands.

    Raises:
        NamedMeshError: If there is any mistake. A single one is the error's own problem and fix;
            several are listed one per line.

    Example:
        >>> try:
        ...     raise_mistakes("dense", [("k=0", "pass 1"), ("rate=2", "pass 0.1")])
        ... except NamedMeshError as error:
        ...     print(error.problem, error.details)
        dense: 2 arguments are wrong ('k=0; pass 1', 'rate=2; pass 0.1')
    """
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
    """Check that an option is one of its choices.

    Args:
        owner: A prefix of the message, such as `"gating: "`.
        name: The option's name.
        value: The option's value.
        choices: The values it may have.

    Returns:
        The mistake in a list, or an empty list.

    Example:
        >>> check_choice("", "router", "topk", ["top_k", "expert_choice"])
        [("router='topk' is not a choice", "did you mean 'top_k'?")]
    """
    choices = list(choices)
    if value in choices:
        return []
    return [(f"{owner}{name}={value!r} is not a choice", did_you_mean(str(value), choices))]


def is_number(value: Any) -> bool:
    """Return whether a value is a Python number (a bool is not).

    Args:
        value: Anything.

    Returns:
        True for an int or a float.

    Example:
        >>> is_number(0.5), is_number(True), is_number("1")
        (True, False, False)
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool)
