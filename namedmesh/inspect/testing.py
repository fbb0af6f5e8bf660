"""nm.testing: what a step communicates, as a test states it or as a golden file has it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from namedmesh.display.text import human
from namedmesh.errors.errors import NamedMeshError, check_count, did_you_mean
from namedmesh.files import check_path, read_file, write_file
from namedmesh.inspect.inspect import inspect
from namedmesh.inspect.inspection import Inspection
from namedmesh.records.collective import ALL_PHASES, KINDS, Collective

UPDATE = "NAMEDMESH_UPDATE_COLLECTIVES"  # of the environment: whether golden files are written
_PART = re.compile(
    r"(?P<count>\d+|no)\b *(?P<kind>[A-Z]\w*)?"
    r"(?: of (?P<bytes>\d+) bytes(?: of (?P<dtype>\w+))?)?"
    r"(?: over (?P<axes>[\w+]+|\?))?(?: in (?P<phase>\w+))?"
)
_FIX = "write e.g. '2 AllReduce over model in forward, 1 over data in backward', or 'nothing'"
_LARGEST = 2**24  # bytes of a golden file


class CollectivesDiffer(AssertionError):
    """A step does not communicate what a test says that it does."""


class Expected(NamedTuple):
    """Collectives that a step is to have: how many, and what is said of them."""

    count: int
    kind: str
    bytes: int | None
    dtype: str | None
    axes: str | None
    phase: str | None

    def matches(self, one: Collective) -> bool:
        """Return whether a collective is one of these."""
        said = (self.bytes, self.dtype, self.axes and {*self.axes.split("+")}, self.phase)
        known = (one.bytes, one.dtype, {*one.axes}, one.phase)
        return self.kind == one.kind and all(
            a in (None, b) for a, b in zip(said, known, strict=True)
        )

    def __str__(self) -> str:
        of = f" of {self.bytes} bytes" if self.bytes is not None else ""
        of += f" of {self.dtype}" if self.dtype else ""
        over = f" over {self.axes}" if self.axes else ""
        return f"{self.count} {self.kind}{of}{over}{f' in {self.phase}' if self.phase else ''}"


def assert_collectives(
    step: Any,
    arguments: Any = (),
    expected: str | os.PathLike[str] | None = None,
    *,
    smallest: int = 0,
    mesh: Any = None,
    target: str | None = None,
) -> Inspection:
    """Check that a step communicates what is expected, and nothing else.

    Args:
        step: What `nm.inspect` takes, or what it returns.
        arguments: The arguments of the step: a tuple, or one alone. What `nm.inspect` returned has
            none: `expected` may stand in their place.
        expected: `"2 AllReduce over model in forward, 1 over data in backward"`; a part may leave
            out the kind, which is then that of the part before it, and what it says nothing of. Or
            the path of a golden file, with a part on each line. It has no names of functions,
            tensors and lines; `pytest --update-collectives` writes it.
        smallest: Collectives of fewer bytes do not count, e.g. 1024 for losses and norms.
        mesh: The mesh that `nm.inspect` takes.
        target: The target that `nm.inspect` takes.

    Returns:
        The inspection.

    Raises:
        CollectivesDiffer: An AssertionError with what came and what went, and the lines of code.

    Example:
        >>> import jax.numpy as jnp
        >>> import namedmesh as nm
        >>> seen = nm.testing.assert_collectives(jnp.sum, jnp.ones([8]), "nothing")
    """
    __tracebackhide__ = True
    if expected is None and isinstance(arguments, (str, os.PathLike)):
        arguments, expected = (), arguments
    if expected is None:
        raise NamedMeshError("nothing says which collectives are expected", fix=_FIX)
    smallest = check_count(smallest, "smallest")
    given = arguments if isinstance(arguments, (tuple, list)) else (arguments,)
    seen = step
    if not isinstance(step, Inspection):
        seen = inspect(step, *given, mesh=mesh, target=target)
    found = [one for one in seen.collectives if one.bytes >= smallest]
    if isinstance(expected, str):
        parts, label = read_expected(expected), "the text"
    else:
        path = check_path(expected, "the golden file")
        label = os.path.basename(path)
        if os.environ.get(UPDATE) not in (None, "", "0"):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            write_file(path, write_golden(seen, found).encode(), "the golden file")
        if not os.path.exists(path):
            fix = "write it with pytest --update-collectives"
            raise NamedMeshError(f"there is no golden file {path!r}", fix=fix)
        parts = read_expected(read_file(path, "the golden file", _LARGEST).decode())
    axes = [*seen.mesh.axes]
    for axis in (axis for part in parts for axis in (part.axes or "?").split("+")):
        if axis not in (*axes, "?"):
            problem = f"{label}: {seen.mesh} has no axis {axis!r}"
            raise NamedMeshError(problem, fix=did_you_mean(axis, axes) or _FIX)
    lines = compare(parts, found)
    if lines:
        title = f"{seen.name} on {seen.mesh} does not communicate as {label} says:"
        raise CollectivesDiffer("\n".join([title, *lines]))
    return seen


def read_expected(text: str) -> list[Expected]:
    """Read the parts of what is expected; lines that begin with # are comments."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found, kind = [], ""
    for part in re.split(r"[\n;]|, ?(?=\d+\b|no )|,? and (?=\d+\b|no )", "\n".join(lines)):
        part = " ".join(part.strip(" ,").split())
        if part in ("", "nothing"):
            continue
        match = _PART.fullmatch(part)
        kind = (match and match["kind"]) or kind
        if match is None or not kind:
            raise NamedMeshError(f"cannot read {part!r}", fix=_FIX)
        for word, words in ((kind, KINDS), (match["phase"], ALL_PHASES)):
            if word is not None and word not in words:
                fix = f"{did_you_mean(word, words)}: {', '.join(words)}"
                raise NamedMeshError(f"{part!r}: there is no {word!r}", fix=fix)
        count = 0 if match["count"] == "no" else int(match["count"])
        size = int(match["bytes"]) if match["bytes"] else None
        found.append(Expected(count, kind, size, match["dtype"], match["axes"], match["phase"]))
    return found


def write_golden(seen: Inspection, found: Iterable[Collective]) -> str:
    """Return the text of a golden file."""
    counts: Counter[Expected] = Counter()
    for one in found:
        facts = (one.kind, one.bytes, one.dtype, "+".join(one.axes), one.phase)
        counts[Expected(0, *facts)] += one.times
    rows = sorted(counts, key=lambda one: (ALL_PHASES.index(one.phase or ""), one[1:]))
    head = f"# What a step communicates on {seen.mesh}; pytest --update-collectives writes it."
    lines = [str(one._replace(count=counts[one])) for one in rows]
    return "\n".join([head, *(lines or ["nothing"])]) + "\n"


def compare(parts: Sequence[Expected], found: Sequence[Collective]) -> list[str]:
    """Return the lines of a diff; none if all is as expected."""
    lines, left = [], [*found]
    for part in parts:  # each takes the collectives that no part before it has taken
        own = [one for one in left if part.matches(one)]
        left = [one for one in left if one not in own]
        count = sum(one.times for one in own)
        if count != part.count:
            lines += [f"- {part}", *([f"  found {count}:"] if own else []), *_describe("+", own)]
    return lines + (["not expected:", *_describe("+", left)] if left else [])


def _describe(sign: str, ones: Iterable[Collective]) -> list[str]:
    """Return a line for each collective, equal ones once."""
    rows: Counter[str] = Counter()
    for one in ones:
        facts = f"{one.kind} of {one.bytes} bytes of {one.dtype} over {'+'.join(one.axes)}"
        sent = human(one.total_wire_bytes)
        at = f" at {one.source}: {one.source.code}" if one.source.line else ""
        rows[f"{facts} in {one.phase}, {sent} on the wire, of {one.tensor}{at}"] += one.times
    return [f"{sign} {count} {text}" for text, count in rows.items()]


def __dir__() -> list[str]:
    """List the public names."""
    return [assert_collectives.__name__, CollectivesDiffer.__name__]
