"""Printing at run time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.format import format_value
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current
from namedmesh.signature.printed import PrintedLine


def print(*values: Any) -> None:
    """Print values whenever the step has run: a line of words and tensors.

    In a loop over a dimension the line is printed for every iteration, when the step is done. What
    is printed is one more result of the step, and the host waits for it.

    Args:
        *values: Tensors, and anything else by its text.

    Example:
        >>> B, = nm.dims("batch=3")
        >>> def mean(x):
        ...     nm.print("the largest is", nm.max(x, B), "of", x)
        ...     return nm.mean(x, B)
        >>> nm.evaluate(mean, x=([B], [1.0, 2.0, 6.0]))
        the largest is 6.0 of [1. 2. 6.]
        array(3., dtype=float32)
    """
    trace = current("print")
    tensors = tuple(value for value in values if isinstance(value, Tensor))
    if not tensors:
        texts = ", ".join(format_value(value) for value in values)
        raise NamedMeshError(
            f"print: there is no tensor among {texts or 'nothing'}",
            fix="use Python's own print, which prints while the function is traced",
        )
    words = tuple(None if isinstance(value, Tensor) else str(value) for value in values)
    trace.printed.append(PrintedLine(words, tuple(map(trace.bring, tensors))))


def take_printed(lines: list[PrintedLine]) -> list[Tensor]:
    """Take the lines that the loop body being traced prints, and return their values."""
    trace = current("print")
    taken, trace.printed = trace.printed, []
    lines += taken
    return [value for line in taken for value in line.values]


def print_iterations(lines: Sequence[PrintedLine], rows: Iterator[Tensor], over: Dimension) -> None:
    """Print the lines of a loop body for every iteration, with the values the loop returned."""
    for line in lines:
        values = tuple(next(rows) for _ in line.values)
        current("print").printed.append(
            PrintedLine(line.words, values, (over.name, *line.iterations))
        )
