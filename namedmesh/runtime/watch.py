"""The watch: what every process is doing, told to the others once a second.

A thread of each process stores a short record with the coordinator. From the records, process 0
reports steps that do not end, and whoever loses a connection learns which process is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax

from namedmesh.dims.source import describe_thread
from namedmesh.runtime.collective_trace import current_trace
from namedmesh.runtime.coordination import read_texts, store_text
from namedmesh.runtime.processes import Processes

_SECONDS = 1.0  # between two records
_SILENCE = 2.5  # seconds without a new record after which a process is silent
_GRACE = 3.0  # seconds for a step to end by itself once another process has stopped with an error
_PATIENCE = 15.0  # the same if it has ended in good order: the step may be about to end too
_MOST_SHOWN = 32  # processes in a report
Record = dict[str, Any]

_watch: Watch | None = None


def current_watch() -> Watch | None:
    """The watch of this process; None if it runs by itself.

    Returns:
        The watch that `start_watch` started.
    """
    return _watch


def start_watch(processes: Processes, hang_seconds: float | None) -> Watch:
    """Starts the watch of this process.

    Args:
        processes: Which process this is.
        hang_seconds: How long a step may take before it is reported; None for ever.

    Returns:
        The watch.
    """
    global _watch
    _watch = Watch(processes, hang_seconds)
    _watch.start()
    return _watch


class Watch:
    """What this process is doing, and what the others say that they are doing.

    Args:
        processes: Which process this is.
        hang_seconds: How long a step may take before it is reported; None for ever.

    Attributes:
        processes: Which process this is.
        hang_seconds: How long a step may take.
        failure: Why this process cannot go on, once that is known; empty before.
    """

    def __init__(self, processes: Processes, hang_seconds: float | None):
        self.processes, self.hang_seconds, self.failure = processes, hang_seconds, ""
        self._trace = current_trace()
        self._main = threading.main_thread().ident
        self._calls: Counter[str] = Counter()
        self._program, self._since, self._inside = "", time.monotonic(), False
        self._pending: Any = None
        self._beat, self._reported = 0, 0.0
        self._gone: set[int] = set()  # processes that were found silent
        self._waiting = (0.0, 0.0)  # the step that waits for one that has stopped, and since when
        self._ended = threading.Event()

    def start(self) -> None:
        """Starts the thread."""
        self._tell()
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def say_ended(self) -> None:
        """Tells the others that this process ends in good order."""
        self._ended.set()
        store_text(f"ended/{self.processes.index}", "it has come to its end")

    @contextlib.contextmanager
    def step(self, program: str) -> Iterator[None]:
        """Notes that a step runs within.

        Args:
            program: The name of the program.

        Yields:
            Nothing.
        """
        if self._trace is not None:
            self._trace.begin()
        self._calls[program] += 1
        self._program, self._since, self._inside = program, time.monotonic(), True
        try:
            yield
        finally:
            self._since, self._inside = time.monotonic(), False

    def expect(self, result: Any) -> None:
        """Notes a result of a step that may still be running.

        Args:
            result: An array of jax.
        """
        self._pending = result

    @property
    def place(self) -> str:
        """What this process is doing, in words."""
        return _describe(self._record())

    def silent(self) -> dict[int, Record]:
        """The other processes that give no sign of life now, with their last records.

        It takes some seconds to find out.

        Returns:
            The records by process; those that have stopped or ended are among them.
        """
        before = self._records()
        time.sleep(_SILENCE)
        silent = self._unchanged(before)
        self._gone.update(silent)
        return silent

    def _unchanged(self, before: dict[int, Record]) -> dict[int, Record]:
        """The records of other processes that are the same as they were."""
        return {
            index: record
            for index, record in self._records().items()
            if index != self.processes.index and before.get(index, {}).get("beat") == record["beat"]
        }

    def stopped(self, kind: str = "stopped") -> dict[int, str]:
        """The other processes that stopped with an error, and the errors.

        Args:
            kind: `ended` for those that came to their end instead.

        Returns:
            The first line of each error, by process.
        """
        reasons = {int(name): reason for name, reason in read_texts(kind).items()}
        reasons.pop(self.processes.index, None)
        return dict(sorted(reasons.items()))

    def say_stopped(self, reason: str) -> None:
        """Tells the others that this process stops with an error.

        Args:
            reason: The error.
        """
        self._ended.set()
        store_text(f"stopped/{self.processes.index}", reason[:300])

    def wait_for_others(self, seconds: float) -> None:
        """Waits until the others have stopped too: their coordinator is in this process.

        Args:
            seconds: How long to wait at most.
        """
        start, before = time.monotonic(), self._records()
        while time.monotonic() < start + seconds:
            left = self._gone | set(self.stopped()) | {self.processes.index}
            if len(left) == self.processes.count:
                return
            time.sleep(0.2)
            if time.monotonic() > start + _SILENCE:
                self._gone.update(self._unchanged(before))

    def _run(self) -> None:
        """Tells the others what this process does, and looks what they do."""
        while not self._ended.wait(_SECONDS):
            try:
                self._tell()
                if self._trace is not None:
                    self._trace.pass_on()
                self._stop_with_others()
                if self.processes.first and self.hang_seconds is not None:
                    self._report_hang(self.hang_seconds)
            except jax.errors.JaxRuntimeError:
                return  # the coordinator is gone, and jax ends this process

    def _tell(self) -> None:
        """Stores this process's record."""
        self._beat += 1
        store_text(f"life/{self.processes.index}", json.dumps(self._record()))

    def _record(self) -> Record:
        """What this process is doing now."""
        if self._pending is not None and not self._inside:
            with contextlib.suppress(RuntimeError):  # an array that was used up is there
                if not self._pending.is_ready():
                    return self._describe_step()
            self._pending = None
        if self._inside:
            return self._describe_step()
        frame = sys._current_frames().get(self._main or 0)
        where = describe_thread(frame) if frame is not None else ""
        return {**self._describe_step(), "inside": False, "at": where}

    def _describe_step(self) -> Record:
        """The step that runs or ran last."""
        return {
            "beat": self._beat,
            "program": self._program,
            "step": self._calls[self._program],
            "seconds": round(time.monotonic() - self._since, 1),
            "inside": True,
            "at": "" if self._trace is None else self._trace.last(self._program),
        }

    def _stop_with_others(self) -> None:
        """Ends this process if its step waits for a process that has stopped."""
        reasons, patience = self.stopped(), _GRACE
        if not reasons:
            reasons, patience = self.stopped("ended"), _PATIENCE
        if not reasons or not self._inside:
            return
        now, since = time.monotonic(), self._since
        if self._waiting[0] != since:
            self._waiting = (since, now)
        if now - self._waiting[1] < patience:
            return  # the step may raise an error of its own, or end
        index, reason = next(iter(reasons.items()))
        text = (
            f"process {index} of {self.processes.count} has stopped: {reason}\n"
            f"  this is process {self.processes.index}, {self.place}, which cannot end\n"
            f"  fix: mend what stopped process {index}, and start all processes again\n"
        )
        self.say_stopped(f"process {index} has stopped")
        sys.stderr.write(text)
        sys.stderr.flush()
        os._exit(1)  # the main thread waits inside of the step and cannot raise

    def _report_hang(self, limit: float) -> None:
        """Writes what every process does if a step has taken too long; again after twice that."""
        records = self._records()
        slow = [record for record in records.values() if record["inside"]]
        longest = max((record["seconds"] for record in slow), default=0.0)
        if longest < limit:
            self._reported = 0.0
            return
        if longest < 2 * self._reported:
            return
        self._reported = longest
        lines = [f"a step has taken {longest:.0f} s, more than hang_seconds={limit:g}"]
        for index in range(min(self.processes.count, _MOST_SHOWN)):
            record = records.get(index)
            lines.append(f"  process {index}: {_describe(record) if record else 'no record'}")
        if self.processes.count > _MOST_SHOWN:
            lines.append(f"  and {self.processes.count - _MOST_SHOWN} more")
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()

    def _records(self) -> dict[int, Record]:
        """The latest records of all processes."""
        return {int(name): json.loads(text) for name, text in read_texts("life").items()}


def _describe(record: Record) -> str:
    """A record in words."""
    if not record["program"]:
        return f"before its first step, at {record['at'] or 'an unknown line'}"
    step = f"step {record['step']} of {record['program']}"
    if not record["inside"]:
        return f"{record['seconds']:.0f} s after {step}, at {record['at'] or 'an unknown line'}"
    where = f", in {record['at']}" if record["at"] else ""
    return f"in {step} for {record['seconds']:.0f} s{where}"
