"""The lines of code that instructions were compiled from, by the tables at a module's head."""

from __future__ import annotations

import functools
import itertools
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence

from namedmesh.audit.hlo.module import Module
from namedmesh.errors.source import Source, is_ours

_TEXT = re.compile(r'(?m)^(\d+) "(.*)"')
_NUMBERS = re.compile(r"(\w+)=(\d+)")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_LINE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')  # of earlier compilers
_LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_PYTHON = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))


class SourceLines:
    """The stack of each instruction of a module, innermost line first."""

    def __init__(self, module: Module) -> None:
        tables = module.tables
        self._files, self._functions = (
            dict(_TEXT.findall("\n".join(tables.get(name, ()))))
            for name in ("FileNames", "FunctionNames")
        )
        self._locations, self._frames = (
            {row.partition(" ")[0]: dict(_NUMBERS.findall(row)) for row in tables.get(name, ())}
            for name in ("FileLocations", "StackFrames")
        )
        self._found: dict[str, Source | None] = {}
        # Some versions write the number of a parent plus one: there, the outermost is its own.
        self._shift = int(self._frames.get("1", {}).get("parent_frame_id") == "1")

    def stack(self, metadata: str) -> Iterator[Source]:
        """Yield the lines that an instruction's metadata names, the innermost first."""
        if match := _LINE.search(metadata):
            yield Source(match[1], int(match[2]))
        match = _FRAME.search(metadata)
        frame = match[1] if match else "0"
        seen = set()
        while frame in self._frames and frame not in seen:
            seen.add(frame)
            at = self._locations.get(self._frames[frame].get("file_location_id", ""), {})
            file = self._files.get(at.get("file_name_id", ""), "")
            function = self._functions.get(at.get("function_name_id", ""), "")
            yield Source(file, int(at.get("line", 0)), None, function)
            frame = str(int(self._frames[frame].get("parent_frame_id", 0)) - self._shift)

    def find(self, metadata: str) -> Source | None:
        """Find the user's innermost line; without one, the innermost that is not of jax."""
        frame = _FRAME.search(metadata)
        key = frame[1] if frame else metadata  # many instructions are of one line
        if key not in self._found:
            self._found[key] = choose_line([one for one in self.stack(metadata) if one.file])
        return self._found[key]


def choose_line(lines: Sequence[Source]) -> Source | None:
    """Return the user's innermost line; without one, the innermost that is not of jax."""
    users = (one for one in lines if not is_installed(one.file))
    others = (one for one in lines if not is_ours(one.file))
    return next(itertools.chain(users, others, lines), None)


@functools.cache
def is_installed(file: str) -> bool:
    """Return whether a file is of Python, of an installed library or of namedmesh."""
    installed = any(part in file for part in _LIBRARIES) or file.startswith((*_PYTHON, "<frozen"))
    return installed or is_ours(file)
