"""Graceful stops: signals take effect between two steps, the same two in all processes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax

from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.processes.launcher import note_signals
from namedmesh.processes.processes import (
    Processes,
    current_processes,
    next_round,
    no_coordinator,
    read_texts,
    store_text,
)

_PAUSE = 0.25  # seconds between two reads of what the others have stored
_PATIENCE = 60.0  # seconds for all processes to say how far they are


class StopRequest:
    """A request to stop this process; true once a signal has arrived.

    >>> from namedmesh.training import StopRequest
    >>> request = StopRequest()
    >>> request.note(15)
    >>> bool(request), request.name, request.exit_status
    (True, 'SIGTERM', 143)
    """

    def __init__(self) -> None:
        self.number = 0

    def note(self, number: int) -> None:
        """Note a signal; the first one counts.

        Args:
            number: The number of the signal.
        """
        self.number = self.number or number

    def __bool__(self) -> bool:
        return self.number != 0

    @property
    def name(self) -> str:
        """The name of the signal, e.g. SIGTERM; empty if there was none."""
        return signal.Signals(self.number).name if self else ""

    @property
    def exit_status(self) -> int:
        """The exit status that shells expect of a process stopped by the signal."""
        return 128 + self.number if self else 0


@contextmanager
def graceful_stop(
    signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT),
) -> Iterator[StopRequest]:
    """Note signals instead of being stopped by them; nothing is noted outside the main thread.

    A second SIGINT raises KeyboardInterrupt.

    Args:
        signals: The signals to note.

    Yields:
        A StopRequest, to check between two steps.

    Example:
        >>> import os, signal
        >>> from namedmesh.training import graceful_stop
        >>> with graceful_stop() as stop:
        ...     os.kill(os.getpid(), signal.SIGTERM)
        >>> stop.name
        'SIGTERM'
    """
    request, received = StopRequest(), list[int]()

    def note(number: int) -> None:
        received.append(number)
        request.note(number)
        if received.count(signal.SIGINT) > 1:  # the step, or the data, may never come
            raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    with note_signals(signals if main else (), note):
        yield request


class SharedStop:
    """The decision after which step all processes stop."""

    # A process that was asked to stop tells the others through the coordinator. Each answers with
    # the step it has begun, and all end after the highest of these. A thread answers, because the
    # main thread may be waiting for the others in a collective.

    def __init__(self, request: StopRequest, processes: Processes | None = None):
        self._request = request
        self._processes = current_processes() if processes is None else processes
        self._interrupted, self._asked = False, False
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._begun = 0  # the last step that this process may have begun
        self._last: int | None = None  # the last step of all processes
        self._signal = 0  # the signal that one of them got
        self._error: NamedMeshError | None = None
        self._key = (
            f"stop/{next_round('stop')}"  # every process makes the same runs in the same order
        )
        self._thread: threading.Thread | None = None
        if self._processes.count > 1:
            self._thread = threading.Thread(target=self._watch, name="stop", daemon=True)
            self._thread.start()

    def ask(self) -> None:
        """Ask all processes to stop, though no signal has arrived."""
        self._asked = True

    def allows(self, step: int) -> bool:
        """Return whether a step may begin; the answer is the same in all processes."""
        if self._thread is None:
            return not (self._request or self._asked)
        with self._lock:  # held by the thread from this process's answer to the decision
            if self._error is not None:
                raise self._error
            if self._last is not None and step > self._last:
                self._interrupted = self._signal != 0
                return False
            self._begun = step
            return True

    @property
    def interrupted(self) -> bool:
        """True if a signal ended the steps; the same in all processes once they have ended."""
        # A signal that came too late to keep a step from beginning does not count: the other
        # processes may not have heard of it.
        return self._interrupted if self._processes.count > 1 else bool(self._request)

    def close(self) -> None:
        """End the thread, with an answer for processes that are asked to stop later."""
        if self._thread is not None:
            self._closed.set()
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        """Pass on a request to stop, and decide with the others when one was made."""
        told = False
        try:
            while not self._closed.wait(_PAUSE):
                if not told and (self._request or self._asked):
                    store_text(f"{self._key}/request", "stop")
                    told = True
                if "request" in read_texts(self._key):
                    self._decide()
                    return
            self._answer()
        except NamedMeshError as error:
            self._error = error
        except jax.errors.JaxRuntimeError as error:
            self._error = no_coordinator(error)

    def _answer(self) -> None:
        """Store which step this process has begun and which signal it got."""
        text = f"{self._begun} {self._request.number}"
        store_text(f"{self._key}/{self._processes.index}", text)

    def _decide(self) -> None:
        """Agree with the others on the last step."""
        with self._lock:
            self._answer()
            answers = [tuple(map(int, text.split())) for text in self._await_answers()]
            self._last = max(begun for begun, _ in answers)
            self._signal = max(signal for _, signal in answers)
            if self._signal:
                self._request.note(self._signal)

    def _await_answers(self) -> list[str]:
        """Wait for the answers of all processes."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            texts, everyone = read_texts(self._key), [*map(str, range(self._processes.count))]
            absent = [one for one in everyone if one not in texts]
            if not absent:
                return [texts[one] for one in everyone]
            if time.monotonic() > deadline:
                break
            time.sleep(_PAUSE / 5)
        raise NamedMeshError(
            f"the processes were asked to stop, and {name_all('process', absent, 'processes')} "
            f"did not answer within {_PATIENCE:g} seconds",
            f"this is {self._processes}",
            fix="look at the output of those processes; start all processes again",
        )
