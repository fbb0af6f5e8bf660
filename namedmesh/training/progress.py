"""How far training is: a bar on a terminal, lines of text elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from namedmesh.errors.errors import NamedMeshError
from namedmesh.training.arguments import check_count, check_real
from namedmesh.training.printing import format_duration

# Which metrics are shown, and how.
FORMATS = {
    "loss": "loss {:.3f}",
    "tokens_per_second": "{:,.0f} tokens/s",
    "mfu": "MFU {:.1%}",
    "left_out": "left out {:.1%}",
    "no_room": "no room {:.1%}",
}


class ProgressBar:
    """Shows the step, some metrics and the time left.

    On a terminal it is a bar that is redrawn in place (by rich); elsewhere, e.g. in a log file, a
    line is written from time to time.

    Args:
        first: The step that training starts from.
        total: The last step.
        out: Where to write; by default standard error.
        every: Seconds between two lines where there is no terminal.
        minutes: A time limit, after which training ends whatever the step; 0 for none.
        formats: How to show metrics: a format string for each name. Others are not shown.
        unit: What is counted.

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
        self._first, self._total = check_count(first, "first"), check_count(total, "total")
        self._out = sys.stderr if out is None else out
        if not hasattr(self._out, "write") or not hasattr(self._out, "isatty"):
            raise NamedMeshError(
                f"out is a {type(out).__name__}, expected a text file", fix="give e.g. sys.stdout"
            )
        self._every = check_real(every, "every")
        self._limit = check_real(minutes, "minutes") * 60 or math.inf
        if formats is not None and not isinstance(formats, Mapping):
            raise NamedMeshError(
                f"formats is a {type(formats).__name__}, expected a dict",
                fix="give a format for each metric, e.g. {'loss': 'loss {:.3f}'}",
            )
        self._formats = FORMATS if formats is None else formats
        self._start, self._shown = time.monotonic(), -math.inf
        self._terminal = self._out.isatty()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show how far training is, unless a line was written a moment ago.

        Args:
            step: How many steps were taken.
            metrics: The latest metrics; those with a format are shown.
        """
        now = time.monotonic()
        recent = now - self._shown < self._every
        if not self._terminal and recent and step < self._total:
            return
        self._shown = now
        text = "  ".join([*self._describe(step, metrics), f"ETA {self._estimate(step, now)}"])
        if not self._terminal:
            print(text, file=self._out, flush=True)
            return
        fraction = max(step / max(self._total, 1), (now - self._start) / self._limit)
        bar = self._open_bar()
        bar.update(self._task, completed=min(fraction, 1.0), description=text, refresh=True)

    def _describe(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """The step and the metrics, each as text."""
        shown = [(name, form) for name, form in self._formats.items() if name in metrics]
        count = f"{self._unit} {step}/{self._total}"
        return [count, *(form.format(metrics[name]) for name, form in shown)]

    def _estimate(self, step: int, now: float) -> str:
        """The time left, at the speed so far and within the time limit."""
        spent = now - self._start
        left = spent / max(step - self._first, 1) * (self._total - step)
        return format_duration(min(left, self._limit - spent))

    def _open_bar(self) -> Progress:
        """The bar on the terminal, made when it is first shown."""
        if self._bar is None:
            console = Console(file=self._out, force_terminal=True)
            columns = BarColumn(bar_width=24), TextColumn("{task.description}", markup=False)
            # No thread of its own: a bar is redrawn when there is something new to show.
            self._bar = Progress(*columns, console=console, auto_refresh=False)
            self._task = self._bar.add_task("", total=1.0)
            self._bar.start()
        return self._bar

    def close(self) -> None:
        """Leave the last state of the bar on the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
