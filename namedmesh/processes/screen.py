"""The launcher's screen: who lives, how far each process is, the last save and the last faults."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

_FAULTS = 3  # lines about the processes that stay in sight
_COLUMNS = ("process", "id", "state", "step", "saved", "copied", "heard")
_SIGNALS = {one.value: one.name for one in signal.Signals}  # those between have no names


def describe_status(code: int) -> str:
    """Describe how a process ended."""
    name = _SIGNALS.get(-code, f"signal {-code}")
    return f"status {code}" if code >= 0 else f"status {128 - code} ({name})"


class Screen:
    """A table below the lines of the processes, on a terminal."""

    def __init__(self, out: TextIO):
        self._rows: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._statuses: dict[int, dict[str, Any]] = {}
        self._notes: deque[str] = deque(maxlen=_FAULTS)
        self._console = Console(file=out, force_terminal=True)
        self._live = Live(console=self._console, get_renderable=self._draw, redirect_stdout=False)

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, names: Sequence[str], processes: Sequence[subprocess.Popen[bytes]]) -> None:
        """Show these processes from now on."""
        self._rows = [*zip(names, processes, strict=True)]

    def update(self, pid: int, status: dict[str, Any]) -> None:
        """Note how far a process is."""
        before = self._statuses.get(pid, {})
        self._statuses[pid] = before | status | {"heard": time.monotonic()}

    def note(self, text: str) -> None:
        """Show what happened to the processes."""
        self._notes.append(f"{time.strftime('%H:%M:%S')} {text}")
        self._live.refresh()

    def print(self, text: str) -> None:
        """Print lines of the processes above the table."""
        self._console.out(text, end="", highlight=False)

    def _draw(self) -> Group:
        """Draw the table; a thread does it four times a second."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in _COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        for name, one in self._rows:
            status, heard = self._statuses.get(one.pid, {}), "-"
            state = "waits" if name == "spare" else "runs"
            if one.returncode is not None:
                state = describe_status(one.returncode)
            elif "heard" in status:
                heard = f"{time.monotonic() - status['heard']:.0f} s ago"
            texts = (str(status.get(key, "-")) for key in ("step", "saved", "copied"))
            table.add_row(name, str(one.pid), state, *texts, heard)
        notes = (Text(one, no_wrap=True, overflow="ellipsis") for one in list(self._notes))
        return Group(table, *notes)
