"""The watch: every process publishes what it is doing, and checks the others, once a second.

A thread of each process stores a short record with the coordinator. From the records, process 0
reports steps that do not end, and a process that loses a connection learns which one is gone."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax

from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.errors.source import describe_thread
from namedmesh.jax_internals import before_service_ends, drop_connection, is_one_of_several
from namedmesh.processes.arguments import SERVICE
from namedmesh.processes.collective_trace import current_trace
from namedmesh.processes.launched import abandoned
from namedmesh.processes.meeting import Connections
from namedmesh.processes.processes import Processes, read_texts, store_text

_SECONDS = 1.0  # between two records
_SILENCE = 2.5  # seconds without a new record after which a process is silent
_GRACE = 3.0  # seconds for a step to end by itself once another process has stopped with an error
_PATIENCE = 15.0  # the same if it has ended in good order: the step may be about to end too
_FAILURES = 5  # in a row, after which the watch ends
_WARNING = 0.5  # of the heartbeat, after which silence is reported
_LAST_SECONDS = 8.0  # for process 0 to stay at its end, until the others have noticed
_CLOSED = 2.5  # seconds of silence after which a process whose connection is closed is gone
_PROOF = 3  # records after the end of a connection that prove that its process still runs
_LONGEST = 2.0  # seconds between two checks that count: in more, this process itself was suspended
_MOST_SHOWN = 32  # processes in a report
_SECOND_HAND = ("process ", "LostProcess")  # how reasons begin that come from another process
# Words in jax's errors when another process, or the network to it, is gone.
_SIGNS = ("gloo", "nccl", "connection", "socket closed", "unavailable", "heartbeat", "coordinat")
Record = dict[str, Any]

_watch: Watch | None = None


def current_watch() -> Watch | None:
    """Return the watch of this process; None if it is the only one."""
    return _watch


def watch_step(program: str) -> AbstractContextManager[None]:
    """Note that something runs within for which processes wait for each other."""
    return contextlib.nullcontext() if _watch is None else _watch.step(program)


def end_watch() -> None:
    """Forget the watch of processes that are left."""
    global _watch
    if _watch is not None:
        atexit.unregister(_leave)
        _watch.abandon()
        _watch = None


def start_watch(processes: Processes, *options: Any) -> None:
    """Start the watch of this process, unless it runs; it tells the others of the process's end."""
    global _watch
    if _watch is None:
        _watch = Watch(processes, *options)
        _watch.start()
        # By itself jax would wait at exit for all processes to end, and abort after a while.
        atexit.register(_leave, _watch)


@dataclass(eq=False)
class Watch:
    """The record of what this process is doing, and the records of the others."""

    processes: Processes
    hang_seconds: float | None
    connections: Connections | None
    heartbeat: float

    def __post_init__(self) -> None:
        self.failure = ""  # why this process cannot go on, once that is known
        self._trace = current_trace()
        self._main = threading.main_thread().ident
        self._calls: Counter[str] = Counter()
        self._program, self._since, self._inside = "", time.monotonic(), False
        self._pending: Any = None
        self._beat, self._reported = 0, 0.0
        self._silence = Silence(self.processes, self.connections)
        self._quiet = set[int]()  # processes reported as silent
        self._reasons: dict[int, str] = {}  # why others have stopped
        self._waiting = (0.0, 0.0)  # the step that waits for one that has stopped, and since when
        self._raising = False  # True while the main thread is about to raise LostProcess
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._publish()
        self._thread.start()
        if self.connections is not None and not self.processes.first:
            threading.Thread(target=self._follow_first, name="link", daemon=True).start()

    def abandon(self) -> None:
        """Leave the others: this process goes on with other ones."""
        self._ended.set()
        if self.connections is not None:
            self.connections.close()

    def tell_ended(self) -> None:
        """Tell the others that this process ends in good order."""
        self._ended.set()
        self._thread.join(_SECONDS)  # Python must not end while it is in jax's code
        store_text(f"ended/{self.processes.index}", "it has come to its end")
        # jax ends the service as soon as all have taken leave. Who has not yet read the answer to
        # that would abort, with status 134 after a run that was good.
        before_service_ends(self._wait_for_ends)

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
        """Describe what this process is doing."""
        return _describe_record(self._record())

    def silent(self) -> dict[int, Record]:
        """Return the other processes that are silent, with their last records; it takes seconds."""
        self._raising = True
        before = self._records()
        time.sleep(_SILENCE)
        return {
            index: record
            for index, record in self._records().items()
            if index != self.processes.index and before.get(index, {}).get("beat") == record["beat"]
        }

    def stopped(self, kind: str = "stopped") -> dict[int, str]:
        """Return the other processes that stopped with an error, and their errors."""
        reasons = {int(name): reason for name, reason in read_texts(kind).items()}
        reasons.pop(self.processes.index, None)
        return dict(sorted(reasons.items()))

    def tell_stopped(self, reason: str) -> None:
        """Tell the others that this process stops with an error."""
        self._ended.set()
        store_text(f"stopped/{self.processes.index}", reason[:300])

    def wait_for_others(self, seconds: float) -> None:
        """Wait until the others have stopped too: their coordinator is in this process."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if (
                len(self._silence.closed() | {*self.stopped(), self.processes.index})
                == self.processes.count
            ):
                return
            time.sleep(0.2)

    def _wait_for_ends(self) -> None:
        """Wait a while until the other processes have ended."""
        end, others = time.monotonic() + _LAST_SECONDS, self.processes.count - 1
        while self.connections is not None and time.monotonic() < end:
            if len(self.connections.closed()) == others:
                return
            time.sleep(0.02)

    def _run(self) -> None:
        """Publish what this process does, and check the others."""
        failures = 0
        while not self._ended.wait(_SECONDS) and is_one_of_several():
            try:
                self._publish()
                if self._trace is not None:
                    self._trace.pass_on()
                self._check_silent()
                self._stop_with_others()
                if self.processes.first and self.hang_seconds is not None:
                    self._report_hang(self.hang_seconds)
                failures = 0
            except (jax.errors.JaxRuntimeError, AttributeError, OSError, ValueError):
                failures += 1  # the coordinator, or the reader of standard error, may be gone
                if failures == _FAILURES:
                    return

    def _publish(self) -> None:
        """Publish this process's record."""
        self._beat += 1
        store_text(f"life/{self.processes.index}", json.dumps(self._record()))

    def _record(self) -> Record:
        """Make the record of what this process is doing."""
        inside = self._inside
        if self._pending is not None and not inside:
            with contextlib.suppress(RuntimeError):  # an array that was donated was ready
                inside = not self._pending.is_ready()
            if not inside:
                self._pending = None
        if inside:
            where = "" if self._trace is None else self._trace.last(self._program)
        else:
            frame = sys._current_frames().get(self._main or 0)
            where = describe_thread(frame) if frame is not None else ""
        return {
            "beat": self._beat,
            "program": self._program,
            "step": self._calls[self._program],
            "seconds": round(time.monotonic() - self._since, 1),
            "inside": inside,
            "at": where,
        }

    def _check_silent(self) -> None:
        """Leave if this process was given up; in process 0, publish which ones are gone."""
        stopped = read_texts("stopped")
        if str(self.processes.index) in stopped and not self._ended.is_set():
            self._leave(
                f"the others have given up {self.processes}: {stopped[str(self.processes.index)]}",
                "start all processes again",
            )
        if not self.processes.first:
            return  # one process reads the records of all
        self._silence.listen(self._records())
        known = set(map(int, stopped)) | set(self.stopped("ended"))
        for index in self._silence.gone - known:
            store_text(f"stopped/{index}", "it was killed, or its machine is gone")
        quiet = self._silence.longer_than(max(_SILENCE + 1, _WARNING * self.heartbeat))
        for index in set(quiet) - self._quiet - known:
            _print_error(
                f"process {index} of {self.processes.count} has given no sign of life for "
                f"{quiet[index]:.0f} s; if it stands still, jax ends all processes after "
                f"{self.heartbeat:g} to {2 * self.heartbeat:g} s"
            )
        self._quiet = set(quiet)

    def _follow_first(self) -> None:
        """Leave when process 0 is gone: jax would abort without saying what this process did."""
        assert self.connections is not None
        self.connections.wait_for_end(0)
        if self._ended.is_set() or not is_one_of_several():
            return  # the program has ended, or has disconnected
        if self.connections.coordinator_answers():
            return
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            if os.environ.get(SERVICE) and 0 in self.stopped("ended"):
                return  # the service is in another process, and goes on
        reason = self._reasons.get(0)
        end = f"has stopped: {reason}" if reason else "is gone, and the coordinator with it"
        self._leave(
            f"process 0 of {self.processes.count} {end}",
            "look at the output of process 0, and start all processes again",
        )

    def _leave(self, problem: str, fix: str) -> None:
        """End this process, whose main thread may wait inside a step and cannot raise."""
        if os.environ.get(SERVICE) and abandoned.wait(_PATIENCE):
            return  # the launcher replaces who is gone, and this process goes on
        alarm = threading.Timer(_GRACE, os._exit, (1,))  # in case writing blocks
        alarm.daemon = True
        alarm.start()
        try:
            place = f"this is process {self.processes.index}, {self.place}"
            _print_error(f"{problem}\n  {place}\n  fix: {fix}")
        finally:
            os._exit(1)

    def _stop_with_others(self) -> None:
        """End this process if its step waits for a process that has stopped."""
        reasons, patience = self.stopped(), _GRACE
        if not reasons:
            reasons, patience = self.stopped("ended"), _PATIENCE
        self._reasons = reasons
        if not reasons or self._raising or not self._record()["inside"]:
            return
        now, since = time.monotonic(), self._since
        if self._waiting[0] != since:
            self._waiting = (since, now)
        if now - self._waiting[1] < patience:
            return  # the step may still raise an error of its own, or end
        # A process that stopped because of another is not the cause.
        index = min(reasons, key=lambda one: (reasons[one].startswith(_SECOND_HAND), one))
        self.tell_stopped(f"{_SECOND_HAND[0]}{index} has stopped")
        self._leave(
            f"process {index} of {self.processes.count} has stopped: {reasons[index]}",
            f"fix what stopped process {index}, and start all processes again",
        )

    def _report_hang(self, limit: float) -> None:
        """Report what all processes do if a step takes too long, and again after twice as long."""
        records = self._records()
        longest = max((one["seconds"] for one in records.values() if one["inside"]), default=0.0)
        if longest < limit:
            self._reported = 0.0
            return
        if longest < 2 * self._reported:
            return
        self._reported = longest
        lines = [f"a step has taken {longest:.0f} s, more than hang_seconds={limit:g}"]
        for index in range(min(self.processes.count, _MOST_SHOWN)):
            doing = _describe_record(records[index]) if index in records else "no record"
            lines.append(f"  process {index}: {doing}")
        more = self.processes.count - _MOST_SHOWN
        lines += [f"  and {more} more"] * (more > 0)
        _print_error("\n".join(lines))

    def _records(self) -> dict[int, Record]:
        """Read the latest records of all processes."""
        return {int(name): json.loads(text) for name, text in read_texts("life").items()}


def _print_error(text: str) -> None:
    """Write lines to standard error at once."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _describe_record(record: Record) -> str:
    """Describe a record in words."""
    step, seconds = f"step {record['step']} of {record['program']}", f"{record['seconds']:.0f} s"
    if record["program"] and record["inside"]:
        where = f", in {record['at']}" if record["at"] else ""
        return f"in {step} for {seconds}{where}"
    when = f"{seconds} after {step}" if record["program"] else "before its first step"
    return f"{when}, at {record['at'] or 'an unknown line'}"


class Silence:
    """Seconds since the records of other processes have changed."""

    # Silence alone is not a proof: a thread that computes for long may hold Python's lock, and the
    # record of its process then waits too. jax's own heartbeat does not need that lock.

    def __init__(self, processes: Processes, connections: Connections | None):
        self._own, self._connections = processes.index, connections
        self._beats: dict[int, int] = {}
        self._alive: dict[int, int] = {}  # records that came after the end of a connection
        self._seconds: dict[int, float] = {}
        self._last = time.monotonic()

    def listen(self, records: Mapping[int, Mapping[str, Any]]) -> None:
        """Note which records have changed."""
        now = time.monotonic()
        passed, self._last = min(now - self._last, _LONGEST), now
        closed = self.closed()
        for index in closed - set(records):
            self._seconds[index] = self._seconds.get(index, 0.0) + passed
        for index, record in records.items():
            same = index != self._own and self._beats.get(index) == record["beat"]
            self._beats[index] = record["beat"]
            self._seconds[index] = self._seconds.get(index, 0.0) + passed if same else 0.0
            if index in closed and not same:
                self._alive[index] = self._alive.get(index, 0) + 1

    def closed(self) -> set[int]:
        """Return the processes whose connection has ended, unless the network closed it."""
        closed = self._connections.closed() if self._connections is not None else set()
        return {index for index in closed if self._alive.get(index, 0) < _PROOF}

    @property
    def gone(self) -> set[int]:
        """The processes that are silent and whose connection is closed."""
        return {index for index in self.closed() if self._seconds.get(index, 0.0) >= _CLOSED}

    def longer_than(self, seconds: float) -> dict[int, float]:
        """Return the processes that have been silent for so long, and their seconds."""
        return {index: time for index, time in self._seconds.items() if time >= seconds}


class LostProcess(NamedMeshError):
    """The error when another process is gone: start all of them again.

    Example:
        >>> import namedmesh as nm
        >>> issubclass(nm.runtime.LostProcess, nm.NamedMeshError)
        True
    """


def find_lost(problem: str, error: Exception) -> LostProcess | None:
    """Return the error for a failure whose cause is that another process is gone, else None."""
    watch = current_watch()
    first_line = str(error).strip().partition("\n")[0][:300]
    if watch is None or not any(sign in str(error).lower() for sign in _SIGNS):
        return None
    count, place = watch.processes.count, watch.place
    try:
        silent, stopped = watch.silent(), watch.stopped()
    except jax.errors.JaxRuntimeError:
        silent, stopped = {}, {0: "it is the coordinator, and does not answer"}
    details = [f"process {index} stopped: {reason}" for index, reason in stopped.items()]
    gone = {index for index, reason in stopped.items() if not reason.startswith(_SECOND_HAND)}
    quiet = [index for index in silent if index not in stopped]
    details += [f"process {index} gives no sign of life" for index in quiet]
    gone.update(quiet)
    watch.failure = f"LostProcess: {problem}"
    names = name_all("process", [str(index) for index in sorted(gone)], "processes")
    who = f"{names} of {count}" if gone else "another process"
    return LostProcess(
        f"{problem}: {who} {'is' if len(gone) < 2 else 'are'} gone",
        *details[:8],
        f"this is {watch.processes}, {place}",
        first_line,
        fix=f"look at the output of {names if gone else 'the others'}; start all processes again: "
        "a Trainer with checkpoints continues from the last one",
    )


def _leave(watch: Watch) -> None:
    """Tell the others how this process ends, before jax disconnects."""
    reason, error = watch.failure, getattr(sys, "last_value", None)
    if error is not None:
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    if not is_one_of_several():
        return  # the program has disconnected
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # the coordinator may be gone already
        if not reason:
            watch.tell_ended()
            return
        watch.tell_stopped(reason)
        if watch.processes.first:
            watch.wait_for_others(_LAST_SECONDS)
    drop_connection()
