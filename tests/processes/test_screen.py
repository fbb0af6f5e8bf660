"""The launcher's screen: what it says of each process while it runs and after its end."""

import io
import time
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from namedmesh.processes.screen import Screen, describe_status


def draw(screen: Screen, width: int = 90) -> list[str]:
    """The lines that a terminal shows."""
    out = io.StringIO()
    Console(file=out, width=width).print(screen._draw())
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_every_process_has_a_line_and_the_last_faults_follow(monkeypatch):
    screen = Screen(io.StringIO())
    processes: list[Any] = [
        SimpleNamespace(pid=70, returncode=None),
        SimpleNamespace(pid=71, returncode=-9),
        SimpleNamespace(pid=72, returncode=None),
    ]
    screen.show(["0", "1", "spare"], processes)
    for pid in (70, 71):
        screen.update(pid, {"step": 20, "saved": 15})
        screen.update(pid, {"step": 21})
    for number in range(5):
        screen.note(f"fault {number} " + "x" * 200)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 7)
    head, *rows = draw(screen)
    assert head.split("  ")[0] == "process" and len(rows) == 6
    assert " ".join(rows[0].split()) == "0 70 runs 21 15 - 7 s ago"
    assert " ".join(rows[1].split()) == "1 71 status 137 (SIGKILL) 21 15 - -"
    assert " ".join(rows[2].split()) == "spare 72 waits - - - -"
    assert [row.split()[1:3] for row in rows[3:]] == [["fault", str(one)] for one in (2, 3, 4)]
    assert all(len(row) <= 90 for row in rows)


def test_signals_without_a_name_have_a_number():
    assert describe_status(0) == "status 0"
    assert describe_status(-15) == "status 143 (SIGTERM)"
    assert describe_status(-37) == "status 165 (signal 37)"
