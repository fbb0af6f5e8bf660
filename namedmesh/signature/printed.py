"""Lines that a step prints: words and values, returned beside the results of the function."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_LINES, _RESULTS = "namedmesh.printed", "namedmesh.results"


@dataclass(frozen=True)
class PrintedLine:
    """One line that a step prints, or one for each iteration of the loops that it is in."""

    words: tuple[str | None, ...]  # None stands for the next value
    values: tuple[Any, ...]  # tensors while a program is traced
    iterations: tuple[str, ...] = ()  # the loops' dimensions, outermost first, as values have them


def wrap_results(structure: Any, lines: Sequence[PrintedLine]) -> Any:
    """Put printed lines beside the results of a function, if there are any."""
    if not lines:
        return structure
    keys = [json.dumps([i, line.words, line.iterations]) for i, line in enumerate(lines)]
    named = {key: list(line.values) for key, line in zip(keys, lines, strict=True)}
    return {_LINES: named, _RESULTS: structure}


def unwrap_results(results: Any, quiet: bool = False) -> Any:
    """Print the lines, and return the results of the function."""
    if type(results) is not dict or results.keys() != {_LINES, _RESULTS}:
        return results
    for key, values in results[_LINES].items() if not quiet else ():
        _, words, iterations = json.loads(key)
        for text in format_line(PrintedLine(tuple(words), tuple(values), tuple(iterations))):
            print(text, flush=True)
    return results[_RESULTS]


def format_line(line: PrintedLine) -> list[str]:
    """Format a line, once for every iteration."""
    missing = [one for one in line.values if not getattr(one, "is_fully_addressable", True)]
    if missing:
        return [" ".join(word or "(on other hosts)" for word in line.words)]
    arrays = [np.asarray(value) for value in line.values]
    sizes = arrays[0].shape[: len(line.iterations)] if arrays else ()
    texts = []
    for index in np.ndindex(*sizes):
        values = iter(array[index] for array in arrays)
        words = [str(next(values)) if word is None else word for word in line.words]
        iterations = zip(line.iterations, index, strict=True)
        prefix = "".join(f"{name} {number}: " for name, number in iterations)
        texts.append(prefix + " ".join(words))
    return texts
