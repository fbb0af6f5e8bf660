"""Progress and results as text: a bar on a terminal or lines elsewhere, tables, durations."""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

# The metrics that are shown, and their formats.
FORMATS = {
    "loss": "loss {:.3f}",
    "tokens_per_second": "{:,.0f} tokens/s",
    "mfu": "MFU {:.1%}",
    "left_out": "left out {:.1%}",
    "no_room": "no room {:.1%}",
}


class ProgressBar:
    """The step, some metrics and the time left: a bar on a terminal, lines of text elsewhere.

    Args:
        first: The step that training starts from.
        total: The last step.
        out: The file to write to; by default standard error.
        every: Seconds between two lines of text.
        minutes: A time limit, after which training ends; 0 for none.
        formats: A format string for each metric to show.
        unit: The word for a step.

    Example:
        >>> import sys
        >>> from namedmesh.training import ProgressBar
        >>> bar = ProgressBar(0, 100, out=sys.stdout)
        >>> bar.show(100, {"loss": 2.5, "tokens_per_second": 12345.6})
        step 100/100  loss 2.500  12,346 tokens/s  ETA 0:00
        >>> bar.close()
    """

    def __init__(
        self,
        first: int,
        total: int,
        *,
        out: TextIO | None = None,
        every: float = 10.0,
        minutes: float = 0.0,
        formats: Mapping[str, str] | None = None,
        unit: str = "step",
    ):
        self._unit = unit
        self._first, self._total = first, total
        self._out = sys.stderr if out is None else out
        self._every, self._limit = every, minutes * 60 or math.inf
        self._formats = FORMATS if formats is None else formats
        self._start, self._shown = time.monotonic(), -math.inf
        self._terminal = self._out.isatty()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show how far training is, unless a line was written a moment ago.

        Args:
            step: The number of steps taken.
            metrics: The latest metrics.
        """
        now = time.monotonic()
        recent = now - self._shown < self._every
        if not self._terminal and recent and step < self._total:
            return
        self._shown, spent = now, now - self._start
        shown = [name for name in self._formats if name in metrics]
        # The time left, at the speed so far and within the time limit.
        left = spent / max(step - self._first, 1) * (self._total - step)
        words = [f"{self._unit} {step}/{self._total}"]
        words += [self._formats[name].format(metrics[name]) for name in shown]
        text = "  ".join([*words, f"ETA {format_duration(min(left, self._limit - spent))}"])
        if not self._terminal:
            print(text, file=self._out, flush=True)
            return
        fraction = max(step / max(self._total, 1), spent / self._limit)
        bar = self._open_bar()
        bar.update(self._task, completed=min(fraction, 1.0), description=text, refresh=True)

    def _open_bar(self) -> Progress:
        """Return the bar on the terminal, made when it is first shown."""
        if self._bar is None:
            console = Console(file=self._out, force_terminal=True)
            columns = BarColumn(bar_width=24), TextColumn("{task.description}", markup=False)
            # No thread of its own: the bar changes only when there is something new to show.
            self._bar = Progress(*columns, console=console, auto_refresh=False)
            self._task = self._bar.add_task("", total=1.0)
            self._bar.start()
        return self._bar

    def close(self) -> None:
        """Leave the last state of the bar on the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def render_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    title: str | None = None,
) -> str:
    """Render rows of text as a table with aligned columns.

    Args:
        header: The names of the columns.
        rows: The cells; a row may be shorter than the header.
        right: The columns to align to the right.
        title: A line above the table.

    Returns:
        The table as plain text.

    Example:
        >>> from namedmesh.training import render_table
        >>> rows = [["de", "31.5"], ["gd", "8.0"]]
        >>> print(render_table(["language", "BLEU"], rows, right=["BLEU"]))
        language  BLEU
        de        31.5
        gd         8.0
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="", show_edge=False)
    for name in header:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # Wide enough for any table: a file has no width, and a terminal wraps lines by itself.
    console = Console(file=io.StringIO(), width=10_000, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(lines if title is None else [title, *lines])


def format_duration(seconds: float) -> str:
    """Format seconds as minutes and seconds, or hours, minutes and seconds.

    Args:
        seconds: A duration; a negative one counts as zero.

    Returns:
        The duration as text.

    >>> from namedmesh.training import format_duration
    >>> format_duration(187), format_duration(3720)
    ('3:07', '1:02:00')
    """
    minutes, whole = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}" if hours else f"{minutes}:{whole:02d}"
