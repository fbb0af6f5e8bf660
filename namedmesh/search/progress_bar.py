"""How far a search is: a bar on a terminal."""

from __future__ import annotations

import importlib.util
import sys
from types import TracebackType
from typing import Any

from namedmesh.display.text import human
from namedmesh.search.exploration import Exploration


class SearchBar:
    """Shows how many candidates were planned, and the fastest so far."""

    def __init__(self, wanted: bool | None, plans: int):
        present = importlib.util.find_spec("rich") is not None
        self._wanted = present and (sys.stderr.isatty() if wanted is None else wanted)
        self._plans = plans
        self._bar: Any = None

    def __enter__(self) -> SearchBar:
        if self._wanted:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = BarColumn(bar_width=24), TextColumn("{task.description}", markup=False)
            # No thread of its own: processes are forked while it is shown.
            self._bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
            self._bar.start()
            self._task = self._bar.add_task("", total=self._plans)
        return self

    def show(self, exploration: Exploration) -> None:
        """Show where a search stands."""
        if self._bar is None:
            return
        done, left = len(exploration.measures), int(exploration.open.sum())
        text = f"{done} planned, {left:,} open"
        if front := exploration.front():
            best = exploration.measures[front[0]]
            text += f", best {best.seconds * 1e3:.4g} ms, {human(best.memory_bytes)}"
        self._bar.update(self._task, completed=done, description=text, refresh=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
