"""One launch of a training run: its processes, how far it is, and how it ends."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.chaos.training import Place
from namedmesh.errors.errors import NamedMeshError
from namedmesh.training import read_metrics

LONGEST = 60.0  # seconds without an end or a step after which a run counts as hanging
SLOW = 0.05  # seconds that each part of a save waits, in a run under attack
ROOT = pathlib.Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Run:
    """A training run: its folder, and where its Artifacts are."""

    folder: pathlib.Path
    artifacts: pathlib.Path
    steps: int
    pause: float
    options: tuple[str, ...] = ()  # of the launcher, for processes that go on

    @property
    def disk(self) -> pathlib.Path:
        """The file system of its checkpoints."""
        return self.folder / "disk"

    @property
    def checkpoints(self) -> pathlib.Path:
        """Its checkpoints."""
        return self.disk / "checkpoints"

    def complete_steps(self) -> list[int]:
        """Return the steps of its complete checkpoints, by the names of their folders."""
        with contextlib.suppress(OSError):
            return sorted(int(one.name) for one in self.checkpoints.iterdir() if one.name.isdigit())
        return []

    def folder_of(self, step: int) -> int:
        """Return the number of a checkpoint's folder in its file system; 0 if it is gone."""
        with contextlib.suppress(OSError):
            return (self.checkpoints / str(step)).stat().st_ino
        return 0

    def is_saving(self) -> bool:
        """Return whether a checkpoint is being written."""
        with contextlib.suppress(OSError):
            return any(one.name.endswith(".part") for one in self.checkpoints.iterdir())
        return False

    def last_step(self) -> int:
        """Return the last step that was logged."""
        with contextlib.suppress(NamedMeshError):
            rows = read_metrics(self.folder / "metrics.jsonl")
            return int(rows[-1]["step"]) if rows else 0
        return 0


class Attempt:
    """A launch that runs, with its output in a file."""

    def __init__(self, run: Run, place: Place, number: int, extra: Sequence[str] = ()):
        self.run, self.place = run, place
        for old in run.folder.glob("*.pid"):
            old.unlink()
        self.output = run.folder / f"attempt-{number}.log"
        launch = [sys.executable, "-m", "namedmesh", "launch", "-n", str(place.processes)]
        launch += ["--devices", str(place.devices), "--grace", "15"]
        launch += [*run.options, "--"]
        worker = [sys.executable, "-m", "benchmarks.chaos.worker", str(run.folder)]
        worker += ["--artifact", str(run.artifacts / place.artifact), "--steps", str(run.steps)]
        worker += ["--pause", str(run.pause), "--slow", str(SLOW if run.pause else 0.0), *extra]
        with open(self.output, "wb") as log:
            self.process = subprocess.Popen(
                [*launch, *worker], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
            )
        self.start = time.monotonic()

    @property
    def text(self) -> str:
        """Return the output of its processes so far."""
        return self.output.read_text(errors="replace")

    def last_lines(self) -> str:
        """Return the end of what they have printed, for a person to read."""
        lines = [line for line in self.text.splitlines() if "[Gloo]" not in line]
        return "\n".join(lines)[-3000:]

    def starts(self) -> list[int]:
        """Return the steps that its processes went on from, each time that they did."""
        found = re.findall(r"^\[0\] training from step (\d+)$", self.text, re.MULTILINE)
        return [int(one) for one in found]

    def pids(self) -> list[int]:
        """Return the ids of its processes that run, once they have met."""
        texts = {one.read_text() for one in self.run.folder.glob("process-*.pid")}
        return sorted(int(text) for text in texts if text and is_worker(int(text)))

    def children(self, mark: str) -> list[int]:
        """Return the ids of the launcher's children that have a word in their command lines."""
        own = self.process.pid
        with contextlib.suppress(OSError):
            text = pathlib.Path(f"/proc/{own}/task/{own}/children").read_text()
            return [int(one) for one in text.split() if mark in _read_command(int(one))]
        return []

    def ended(self) -> bool:
        """Return whether all its processes have ended."""
        return self.process.poll() is not None

    def wait_for(self, condition: Callable[[], bool], seconds: float = LONGEST) -> bool:
        """Wait until a condition holds or the attempt has ended; False if neither came in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition() or self.ended():
                return True
            time.sleep(0.005)
        return False

    def wait_for_steps(self, count: int) -> bool:
        """Wait until some more steps are logged; False if a step takes longer than allowed."""
        first = self.run.last_step()
        for step in range(first + 1, first + count + 1):
            if not self.wait_for(lambda step=step: self.run.last_step() >= step):
                return False
            if self.ended():
                break
        return True

    def send(self, rng: random.Random, number: int) -> int | None:
        """Send a signal to one of its processes; return its id, None if all have ended."""
        pids = self.pids()
        if not pids:
            return None
        pid = rng.choice(pids)
        self.send_to(pid, number)
        return pid

    def send_to(self, pid: int, number: int) -> None:
        """Send a signal to a process, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if is_worker(pid):
                os.kill(pid, number)

    def end(self) -> None:
        """Kill it, should it still run; the launcher's guard kills its processes."""
        if not self.ended():
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        end = time.monotonic() + LONGEST
        while self.pids() and time.monotonic() < end:
            time.sleep(0.01)


def is_worker(pid: int) -> bool:
    """Return whether a process runs and is one of ours, not another that got the same id."""
    return "benchmarks.chaos.worker" in _read_command(pid)


def _read_command(pid: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""
