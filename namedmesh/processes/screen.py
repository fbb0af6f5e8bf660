"""The launcher's screen: who lives, how far each process is, the last save and the last faults."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

_FAULTS = 3  # lines about the processes that stay in sight


class Screen:
    """A table below the lines of the processes, on a terminal."""

    def __init__(self, out: TextIO):
        self._console = Console(file=out, force_terminal=True)
        self._live = Live(console=self._console, auto_refresh=False)
        self._numbers: dict[int, int] = {}
        self._statuses: dict[int, dict[str, Any]] = {}
        self._heard: dict[int, float] = {}
        self._notes: deque[str] = deque(maxlen=_FAULTS)

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, numbers: dict[int, int]) -> None:
        """Show other processes, by their ids."""
        self._numbers = numbers
        self._refresh()

    def update(self, pid: int, status: dict[str, Any]) -> None:
        """Show how far a process is."""
        self._statuses.setdefault(pid, {}).update(status)
        self._heard[pid] = time.monotonic()
        self._refresh()

    def note(self, text: str) -> None:
        """Show what happened to the processes."""
        self._notes.append(f"{time.strftime('%H:%M:%S')} {text}")
        self._refresh()

    def print(self, text: str) -> None:
        """Print lines of the processes above the table."""
        self._console.out(text, end="", highlight=False)

    def _refresh(self) -> None:
        """Draw the table again."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("process", "id", "step", "last save", "last copy", "heard"):
            table.add_column(name, justify="right", no_wrap=True)
        for pid, index in self._numbers.items():
            status = self._statuses.get(pid, {})
            heard = f"{time.monotonic() - self._heard[pid]:.0f} s ago" if status else "not yet"
            texts = (str(status.get(name, "-")) for name in ("step", "saved", "copied"))
            table.add_row(str(index), str(pid), *texts, heard)
        self._live.update(Group(table, *map(Text, self._notes)), refresh=True)
