"""Source: the line of the user's own code that an op or an error belongs to."""

import contextlib
import copy
import dataclasses
import functools
import inspect
import linecache
import os
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType, TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LARGEST = 2**24  # bytes of a source file that is read
# Layers are models, as a user would write them: their lines count as the user's.
_LAYERS = os.path.join(_PACKAGE, "layers") + os.sep
# Frames between the user's line and ours; <string> is the code that dataclasses generate.
_BETWEEN = (
    _PACKAGE,
    contextlib.__file__,
    copy.__file__,
    dataclasses.__file__,
    functools.__file__,
    inspect.__file__,
    "<string>",
)
# jax and numpy ask for arrays and numbers: the line that called them is the user's.
_JAX = os.sep + os.path.join("site-packages", "jax") + os.sep
_NUMPY = os.sep + os.path.join("site-packages", "numpy") + os.sep


@dataclass(frozen=True)
class Source:
    """One line of the user's program, or of a layer that a line of the user's program calls."""

    file: str
    line: int
    outer: "Source | None" = field(default=None, compare=False, repr=False)
    function: str = field(default="", compare=False, repr=False)  # that the line is in

    @property
    def user(self) -> "Source":
        """The user's own line."""
        return self.outer or self

    @property
    def code(self) -> str:
        """The text of the line, without indentation."""
        lines = read_lines(self.file)
        return lines[self.line - 1].strip() if 0 < self.line <= len(lines) else ""

    @property
    def variable(self) -> str | None:
        """The variable the line assigns to, when it is a plain assignment."""
        match = re.match(r"([A-Za-z_]\w*)\s*(?::[^=]+)?=[^=]", self.code)
        return match.group(1) if match else None

    @property
    def of_a_layer(self) -> bool:
        """True if the line is one of namedmesh.layers."""
        return self.file.startswith(_LAYERS)

    def __str__(self) -> str:
        name = os.path.basename(self.file)
        return f"{name}:{self.line}" if self.line else name


def read_lines(file: str) -> list[str]:
    """Return the lines of a source file; none of what is not a regular file, or is too large."""
    # A plan from somebody else may name anything: a pipe would be waited for, a device never ends.
    unknown = file not in linecache.cache and os.path.exists(file)
    if unknown and not (os.path.isfile(file) and os.path.getsize(file) <= _LARGEST):
        return []
    return linecache.getlines(file)


@functools.cache
def is_ours(file: str) -> bool:
    """Return whether a file is of namedmesh, its layers included, or between it and the user's."""
    return file.startswith(_BETWEEN) or _JAX in file or _NUMPY in file


@functools.cache
def _is_between(file: str) -> bool:
    """Return whether frames of a file are skipped on the way to the user's line."""
    return is_ours(file) and not file.startswith(_LAYERS)


def caller(layers: bool = True) -> Source:
    """Find the user's line: the innermost that is not ours; lines of layers count as the user's."""
    frame = _leave(sys._getframe(1), _is_between if layers else is_ours)
    if not frame.f_code.co_filename.startswith(_LAYERS):
        return _source_of(frame)
    user = _source_of(_leave(frame, is_ours))
    return Source(frame.f_code.co_filename, frame.f_lineno, user, _find_public_layer(frame))


def find_user_line(trace: TracebackType | None) -> Source | None:
    """Return the innermost of the user's lines that a traceback has."""
    found = None
    while trace is not None:
        if not is_ours(trace.tb_frame.f_code.co_filename):
            found = Source(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return found


def is_users(file: str) -> bool:
    """Return whether a file is neither ours nor of a library."""
    installed = (os.sep + "site-packages" + os.sep, os.path.dirname(os.__file__), "<frozen")
    return not is_ours(file) and not any(part in file for part in installed)


def is_of_jax(file: str) -> bool:
    """Return whether a file is one of jax."""
    return _JAX in file


def warn_caller(text: str) -> None:
    """Warn at the user's line."""
    line = caller()
    warnings.warn_explicit(text, UserWarning, line.file, line.line)


def describe_thread(frame: FrameType) -> str:
    """Return the user's line that a thread is running, given its innermost frame."""
    inner: FrameType | None = frame
    while inner is not None:
        file = inner.f_code.co_filename
        if is_users(file):
            source = _source_of(inner)
            return f"{source} in {source.function}"
        inner = inner.f_back
    return str(_source_of(frame))


def _find_public_layer(frame: FrameType | None) -> str:
    """Return the innermost public function of namedmesh.layers that a frame runs in."""
    # Plans name it, and must not change when a helper of ours is renamed.
    while frame is not None and is_ours(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_LAYERS):
            name = _public_name(frame.f_code.co_qualname)
            if name:
                return name
        frame = frame.f_back
    return ""


@functools.cache
def _public_name(qualified: str) -> str:
    """Return a qualified name without what is nested in the function; empty if it is private."""
    name = qualified.partition(".<")[0]
    private = any(part.startswith("_") and not part.endswith("_") for part in name.split("."))
    return "" if private else name


def _source_of(frame: FrameType) -> Source:
    """Return the line that a frame is running."""
    code = frame.f_code
    return Source(code.co_filename, frame.f_lineno, None, code.co_qualname)


def _leave(frame: FrameType, skip: Callable[[str], bool]) -> FrameType:
    """Return the innermost frame whose file is not skipped, or the outermost of all."""
    while frame.f_back is not None and skip(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
