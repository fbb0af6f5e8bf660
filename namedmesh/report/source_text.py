"""The files that a plan's lines are in, with their text where it can be read."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable, Sequence
from typing import Any

from namedmesh.errors.source import Source
from namedmesh.report.interning import Interned


class SourceFiles:
    """The files of a plan, in the order in which its ops mention them."""

    def __init__(self) -> None:
        self._paths: Interned[str] = Interned()
        self._layers: set[str] = set()

    def add(self, source: Source) -> int:
        """Return the number of the file that a line is in."""
        if source.of_a_layer:
            self._layers.add(source.file)
        return self._paths.add(source.file)

    def to_json(self) -> list[dict[str, Any]]:
        """Return each file's name, whether it is a layer's, and its lines."""
        paths = self._paths.values
        return [
            {
                "name": name,
                "layer": path in self._layers,
                "lines": [line.rstrip("\n") for line in linecache.getlines(path)],
            }
            for path, name in zip(paths, shorten_paths(paths), strict=True)
        ]


def shorten_paths(paths: Sequence[str]) -> list[str]:
    """Shortens paths to their last part, or as many parts as tell them from each other."""
    return [_shorten(path, paths) for path in paths]


def _shorten(path: str, paths: Iterable[str]) -> str:
    """The last parts of a path that no other path ends with."""
    parts = path.split(os.sep)
    others = [other.split(os.sep) for other in paths if other != path]
    for count in range(1, len(parts)):
        if all(other[-count:] != parts[-count:] for other in others):
            return "/".join(parts[-count:])
    return path
