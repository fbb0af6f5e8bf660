"""A graceful stop: signals are noted when they arrive, and heeded between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class StopRequest:
    """Whether the process was asked to stop; true once a signal has arrived.

    >>> from namedmesh.training import StopRequest
    >>> request = StopRequest()
    >>> bool(request), request.name
    (False, '')
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
    """Note signals instead of being stopped by them, as long as the context lasts.

    Outside the main thread, where Python allows no signal handlers, nothing is noted.

    Args:
        signals: The signals to note.

    Yields:
        A StopRequest, to be looked at between two steps.

    Example:
        >>> import os, signal
        >>> from namedmesh.training import graceful_stop
        >>> with graceful_stop() as stop:
        ...     for step in range(1000):
        ...         if stop:
        ...             break
        ...         if step == 3:
        ...             os.kill(os.getpid(), signal.SIGTERM)
        >>> step, stop.name
        (4, 'SIGTERM')
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    handlers = {
        one: signal.signal(one, lambda number, _frame: request.note(number)) for one in signals
    }
    try:
        yield request
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)
