"""The lines that `translate` reads and writes: of files, or of standard input and output."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from namedmesh.errors.errors import NamedMeshError


def read_lines(path: str) -> list[str]:
    """Read the lines of a file or of standard input; what is not UTF-8 is replaced, and said."""
    try:
        with open(path, "rb") if path != "-" else sys.stdin.buffer as file:
            raw = file.read().splitlines()
    except OSError as error:
        raise NamedMeshError(
            f"cannot read {path!r}: {error.strerror}", fix="check --input"
        ) from None
    lines = [line.decode("utf-8", errors="replace") for line in raw]
    wrong = sum("\ufffd" in line for line in lines)
    if wrong:
        print(f"{wrong} of {len(lines)} lines are not UTF-8 everywhere", file=sys.stderr)
    return lines


def open_output(path: str) -> Any:
    """Open a file to write to, or standard output."""
    if path == "-":
        return contextlib.nullcontext(sys.stdout)
    try:
        return open(path, "w", encoding="utf-8")
    except OSError as error:
        raise NamedMeshError(
            f"cannot write {path!r}: {error.strerror}", fix="check --output"
        ) from None
