"""The one error class, and the sentences every error is made of."""

import difflib
from collections.abc import Iterable, Sequence

from namedmesh.dims.source import Source, caller


class NamedMeshError(ValueError):
    """A mistake in a program, mesh, layout or input: what is wrong, where, and how to mend it."""

    def __init__(self, problem: str, *details: str, fix: str, source: Source | None = None):
        source = source or caller()
        user = caller(layers=False)
        if source.of_a_layer and source.code.startswith("raise "):
            source = user  # a layer's own complaint is about the line that called it
        self.problem, self.details, self.fix, self.source = problem, details, fix, source
        lines = [problem, *(f"  {detail}" for detail in details)]
        for place, one in (("at", source), ("for", user)):
            if place == "at" or (source.of_a_layer and not user.of_a_layer):
                lines.append(f"  {place} {one}: {one.code}" if one.code else f"  {place} {one}")
        lines.append(f"  fix: {fix}")
        super().__init__("\n".join(lines))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A did-you-mean for a name that is not known, or the list of what is."""
    known = sorted(set(known))
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"use one of: {', '.join(known)}" if known else "there are none to choose from"


def join_names(names: Sequence[str]) -> str:
    """Names in a sentence: a, b and c."""
    names = list(names)
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "none"


def check_identifier(name: object, what: str, *details: str) -> str:
    """Returns name when it is an identifier, or raises."""
    if not isinstance(name, str):
        fix = (
            f"write its name, {name.name!r}"
            if hasattr(name, "name")
            else "write the name as a string"
        )  # type: ignore[attr-defined]
        raise NamedMeshError(f"{what} name {name!r} is not a string", *details, fix=fix)
    if not name.isidentifier():
        raise NamedMeshError(
            f"{what} name {name!r} is not an identifier",
            *details,
            fix="use letters, digits and underscores, not starting with a digit",
        )
    return name


def check_size(size: object, what: str, *details: str) -> int:
    """Returns size as an int when it is a positive whole number, or raises."""
    if isinstance(size, bool) or not hasattr(size, "__index__") or int(size) < 1:  # type: ignore[arg-type]
        raise NamedMeshError(
            f"{what} has size {size!r}", *details, fix="a size is a positive whole number"
        )
    return int(size)  # type: ignore[arg-type]


def check_text(text: object, what: str, example: str) -> str:
    """Returns text when it is a string, or raises."""
    if not isinstance(text, str):
        raise NamedMeshError(
            f"{what} cannot be read from {type(text).__name__} {text!r}",
            fix=f"write a string such as {example!r}",
        )
    return text
