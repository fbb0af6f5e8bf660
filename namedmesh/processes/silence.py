"""How long the other processes have been silent.

Silence alone is no proof: a thread that computes for long may hold Python's lock, and the record of
its process then waits too. jax's own heartbeat does not need that lock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from namedmesh.processes.connections import Connections
from namedmesh.processes.processes import Processes

_CLOSED = 2.5  # seconds of silence after which a process whose connection is closed is gone
_PROOF = 3  # records after the end of a connection that prove that its process lives on
_LONGEST = 2.0  # seconds between two looks that count: in more, this process itself stood still


class Silence:
    """Seconds since the records of other processes have changed."""

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
        closed = self._closed()
        for index in closed - set(records):
            self._seconds[index] = self._seconds.get(index, 0.0) + passed
        for index, record in records.items():
            same = index != self._own and self._beats.get(index) == record["beat"]
            self._beats[index] = record["beat"]
            self._seconds[index] = self._seconds.get(index, 0.0) + passed if same else 0.0
            if index in closed and not same:
                self._alive[index] = self._alive.get(index, 0) + 1

    def _closed(self) -> set[int]:
        """The processes whose connection has ended, unless that was the network's doing."""
        closed = self._connections.closed() if self._connections is not None else set()
        return {index for index in closed if self._alive.get(index, 0) < _PROOF}

    @property
    def gone(self) -> set[int]:
        """The processes that are silent and whose connection is closed."""
        return {index for index in self._closed() if self._seconds.get(index, 0.0) >= _CLOSED}

    def longer_than(self, seconds: float) -> dict[int, float]:
        """The processes that have been silent for long, and how long."""
        return {index: time for index, time in self._seconds.items() if time >= seconds}
