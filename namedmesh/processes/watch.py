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

from namedmesh.errors.source import describe_thread
from namedmesh.jax_internals import is_one_of_several
from namedmesh.processes.collective_trace import current_trace
from namedmesh.processes.connections import Connections
from namedmesh.processes.coordination import read_texts, store_text
from namedmesh.processes.processes import Processes
from namedmesh.processes.silence import Silence

_SECONDS = 1.0  # between two records
_SILENCE = 2.5  # seconds without a new record after which a process is silent
_GRACE = 3.0  # seconds for a step to end by itself once another process has stopped with an error
_FAILURES = 5  # in a row, after which the watch ends
_WARNING = 0.5  # of the heartbeat, after which silence is reported
_PATIENCE = 15.0  # the same if it has ended in good order: the step may be about to end too
SECOND_HAND = ("process ", "LostProcess")  # how reasons begin that are another process's
_MOST_SHOWN = 32  # processes in a report
Record = dict[str, Any]

_watch: Watch | None = None


def current_watch() -> Watch | None:
    """The watch of this process; None if it runs by itself."""
    return _watch


def start_watch(watch: Watch) -> Watch:
    """Start the watch of this process."""
    global _watch
    _watch = watch
    watch.start()
    return watch


class Watch:
    """What this process is doing, and what the others say that they are doing.

    Attributes:
        processes: Which process this is.
        hang_seconds: How long a step may take.
        failure: Why this process cannot go on, once that is known; empty before.
    """

    def __init__(
        self,
        processes: Processes,
        hang_seconds: float | None,
        connections: Connections | None = None,
        heartbeat: float = 15.0,
    ):
        self.processes, self.hang_seconds, self.failure = processes, hang_seconds, ""
        self._trace = current_trace()
        self._main = threading.main_thread().ident
        self._calls: Counter[str] = Counter()
        self._program, self._since, self._inside = "", time.monotonic(), False
        self._pending: Any = None
        self._beat, self._reported = 0, 0.0
        self._gone: set[int] = set()  # processes that were found silent
        self._connections, self._silence = connections, Silence(processes, connections)
        self._heartbeat, self._quiet = heartbeat, set[int]()  # those that were reported as silent
        self._reasons: dict[int, str] = {}  # why others have stopped
        self._waiting = (0.0, 0.0)  # the step that waits for one that has stopped, and since when
        self._raising = False  # whether the main thread is about to say who is gone
        self._ended = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._tell()
        threading.Thread(target=self._run, name="watch", daemon=True).start()
        if self._connections is not None and not self.processes.first:
            threading.Thread(target=self._follow_first, name="link", daemon=True).start()

    def say_ended(self) -> None:
        """Tell the others that this process ends in good order."""
        self._ended.set()
        store_text(f"ended/{self.processes.index}", "it has come to its end")

    @contextlib.contextmanager
    def step(self, program: str) -> Iterator[None]:
        """Note that a step runs within."""
        if self._trace is not None:
            self._trace.begin()
        self._calls[program] += 1
        self._program, self._since, self._inside = program, time.monotonic(), True
        self._raising = False
        try:
            yield
        finally:
            self._since, self._inside = time.monotonic(), False

    def expect(self, result: Any) -> None:
        """Note a result of a step that may still be running."""
        self._pending = result

    @property
    def place(self) -> str:
        """What this process is doing, in words."""
        return _describe(self._record())

    @property
    def _waits(self) -> bool:
        """Whether a step runs, or has not given its result yet."""
        return self._record()["inside"]

    def silent(self) -> dict[int, Record]:
        """The other processes that give no sign of life now, with their last records.

        It takes some seconds to find out.
        """
        self._raising = True
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
        """The other processes that stopped with an error, and the errors."""
        reasons = {int(name): reason for name, reason in read_texts(kind).items()}
        reasons.pop(self.processes.index, None)
        return dict(sorted(reasons.items()))

    def say_stopped(self, reason: str) -> None:
        """Tell the others that this process stops with an error."""
        self._ended.set()
        store_text(f"stopped/{self.processes.index}", reason[:300])

    def wait_for_others(self, seconds: float) -> None:
        """Wait until the others have stopped too: their coordinator is in this process."""
        start, before = time.monotonic(), self._records()
        while time.monotonic() < start + seconds:
            left = self._gone | set(self.stopped()) | {self.processes.index}
            if len(left) == self.processes.count:
                return
            time.sleep(0.2)
            if time.monotonic() > start + _SILENCE:
                self._gone.update(self._unchanged(before))

    def _run(self) -> None:
        """Tell the others what this process does, and looks what they do."""
        failures = 0
        while not self._ended.wait(_SECONDS) and is_one_of_several():
            try:
                self._tell()
                if self._trace is not None:
                    self._trace.pass_on()
                self._find_silent()
                self._stop_with_others()
                if self.processes.first and self.hang_seconds is not None:
                    self._report_hang(self.hang_seconds)
                failures = 0
            except (jax.errors.JaxRuntimeError, AttributeError, OSError, ValueError):
                failures += 1  # the coordinator, or who reads what is reported, may be gone
                if failures == _FAILURES:
                    return

    def _tell(self) -> None:
        """Store this process's record."""
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

    def _find_silent(self) -> None:
        """In process 0, tells the others who is gone; leaves if that is said of this process."""
        said = read_texts("stopped")
        if str(self.processes.index) in said and not self._ended.is_set():
            self._leave(
                f"the others have given up {self.processes}: {said[str(self.processes.index)]}",
                "start all processes again",
            )
        if not self.processes.first:
            return  # as many records as processes, read by one of them
        self._silence.listen(self._records())
        for index in self._silence.gone - set(map(int, said)) - set(self.stopped("ended")):
            store_text(f"stopped/{index}", "it was killed, or its machine is gone")
        quiet = self._silence.longer_than(max(_SILENCE + 1, _WARNING * self._heartbeat))
        for index in set(quiet) - self._quiet - set(map(int, said)) - set(self.stopped("ended")):
            sys.stderr.write(
                f"process {index} of {self.processes.count} has given no sign of life for "
                f"{quiet[index]:.0f} s; if it stands still, jax ends all processes after "
                f"{self._heartbeat:g} to {2 * self._heartbeat:g} s\n"
            )
            sys.stderr.flush()
        self._quiet = set(quiet)

    def _follow_first(self) -> None:
        """Leave when process 0 is gone: jax would abort without a word of what this was doing."""
        assert self._connections is not None
        self._connections.wait_for_end(0)
        if self._ended.is_set() or not is_one_of_several():
            return  # the end of the program, or of its connection with the others
        if self._connections.coordinator_answers():
            return
        reason = self._reasons.get(0)
        self._leave(
            f"process 0 of {self.processes.count} "
            + (f"has stopped: {reason}" if reason else "is gone, and the coordinator with it"),
            "look at the output of process 0, and start all processes again",
        )

    def _leave(self, problem: str, fix: str) -> None:
        """End this process, whose main thread may wait inside of a step and cannot raise."""
        alarm = threading.Timer(_GRACE, os._exit, (1,))  # should nobody read what is written
        alarm.daemon = True
        alarm.start()
        try:
            place = f"this is process {self.processes.index}, {self.place}"
            sys.stderr.write(f"{problem}\n  {place}\n  fix: {fix}\n")
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _stop_with_others(self) -> None:
        """End this process if its step waits for a process that has stopped."""
        reasons, patience = self.stopped(), _GRACE
        if not reasons:
            reasons, patience = self.stopped("ended"), _PATIENCE
        self._reasons = reasons
        if not reasons or self._raising or not self._waits:
            return
        now, since = time.monotonic(), self._since
        if self._waiting[0] != since:
            self._waiting = (since, now)
        if now - self._waiting[1] < patience:
            return  # the step may raise an error of its own, or end
        # Those that stopped because of another come last.
        index = min(reasons, key=lambda one: (reasons[one].startswith(SECOND_HAND), one))
        self.say_stopped(f"{SECOND_HAND[0]}{index} has stopped")
        self._leave(
            f"process {index} of {self.processes.count} has stopped: {reasons[index]}",
            f"fix what stopped process {index}, and start all processes again",
        )

    def _report_hang(self, limit: float) -> None:
        """Write what every process does if a step has taken too long; again after twice that."""
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
