"""The one error class, and the sentences every error is made of."""

import difflib
import operator
import re
from collections.abc import Collection, Iterable, Sequence
from typing import SupportsIndex

from namedmesh.errors.source import Source, caller

# What a terminal obeys or what turns the direction of text, and half surrogate pairs.
_LONGEST = 10_000  # characters of a text that is shown
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_controls(text: str) -> str:
    """Escape what a terminal would obey, and cut what fills it: a stranger's file may have both."""
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"
    return CONTROLS.sub(lambda one: one[0].encode("unicode_escape").decode(), text)


class NamedMeshError(ValueError):
    """A mistake in a program, mesh, layout or input: what is wrong, where, and how to fix it.

    Args:
        problem: One sentence.
        *details: The tensors, layouts and the like that it is about, a line each.
        fix: What to write instead.
        source: The user's line; by default the one that is running.

    Example:
        >>> try:
        ...     nm.Dimension("batch", 0)
        ... except nm.NamedMeshError as error:
        ...     print(error.problem, "|", error.fix)
        dimension batch has size 0 | a size is a positive whole number
    """

    def __init__(self, problem: str, *details: str, fix: str, source: Source | None = None):
        problem, fix = escape_controls(problem), escape_controls(fix)
        details = tuple(map(escape_controls, details))
        source = source or caller()
        user = caller(layers=False)
        if source.of_a_layer and source.code.startswith("raise "):
            source = user  # an error that a layer raises is about the line that called it
        self.problem, self.details, self.fix, self.source = problem, details, fix, source
        lines = [problem, *(f"  {detail}" for detail in details)]
        places = {"at": source}
        if source.of_a_layer and not user.of_a_layer:
            places["for"] = user
        for role, place in places.items():
            lines.append(f"  {role} {place}: {place.code}" if place.code else f"  {role} {place}")
        lines.append(f"  fix: {fix}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        # An exception is copied and unpickled by calling its class with its args, which for this
        # one are the message alone; made without a call it also keeps the line it is about.
        return _rebuild_error, (type(self), self.args), vars(self)


def _rebuild_error(kind: type[NamedMeshError], arguments: tuple[object, ...]) -> NamedMeshError:
    """Make an error of which the message is known."""
    return kind.__new__(kind, *arguments)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the closest known name as a question, or the list of all of them."""
    known = sorted(set(known))
    close = difflib.get_close_matches(str(name), known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"use one of: {', '.join(known)}" if known else "there are none to choose from"


def join_names(names: Sequence[str]) -> str:
    """Join names into a phrase: a, b and c."""
    names = list(names)
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "none"


def suggest_names(names: Iterable[str], known: Iterable[str]) -> str:
    """Return a did-you-mean for each of several names that are not known."""
    known = sorted(set(known))
    return " ".join(dict.fromkeys(did_you_mean(name, known) for name in names))


def name_all(noun: str, names: Sequence[str], plural: str | None = None) -> str:
    """Put a noun before names, in the plural where there are several: dimensions a and b."""
    return f"{noun if len(names) == 1 else plural or noun + 's'} {join_names(names)}"


def check_identifier(name: object, what: str, *details: str) -> str:
    """Return name when it is an identifier, or raise."""
    if not isinstance(name, str):
        fix = "write the name as a string"
        if hasattr(name, "name"):
            fix = f"write its name, {getattr(name, 'name')!r}"  # noqa: B009
        raise NamedMeshError(f"{what} name {name!r} is not a string", *details, fix=fix)
    if not name.isidentifier():
        raise NamedMeshError(
            f"{what} name {name!r} is not an identifier",
            *details,
            fix="use letters, digits and underscores, not starting with a digit",
        )
    return name


def whole_number(value: object) -> int | None:
    """Return a whole number as an int; None for anything else, True and arrays included."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except Exception:  # arrays have __index__ too, and raise whatever they like
        return None


def check_size(size: object, what: str, *details: str) -> int:
    """Return size as an int when it is a positive whole number, or raise."""
    number = whole_number(size)
    if number is not None and number > 0:
        return number
    raise NamedMeshError(
        f"{what} has size {size!r}", *details, fix="a size is a positive whole number"
    )


def check_count(value: object, what: str, least: int = 0) -> int:
    """Return a whole number as an int, or raise."""
    number = whole_number(value)
    if number is not None and number >= least:
        return number
    raise NamedMeshError(
        f"{what}={value!r} is not a count", fix=f"give a whole number, {least} or more"
    )


def check_text(text: object, what: str, example: str) -> str:
    """Return text when it is a string, or raise."""
    if not isinstance(text, str):
        raise NamedMeshError(
            f"{what} cannot be read from {type(text).__name__} {text!r}",
            fix=f"write a string such as {example!r}",
        )
    return text


def check_word(what: str, value: object, choices: Collection[str]) -> None:
    """Raise for a word that is not one of the choices: a typo would count nothing."""
    if not isinstance(value, str) or value not in choices:
        raise NamedMeshError(f"there is no {what} {value!r}", fix=did_you_mean(str(value), choices))
