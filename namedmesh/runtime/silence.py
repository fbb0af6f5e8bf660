"""How long the other processes have been silent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from namedmesh.runtime.connections import Connections
from namedmesh.runtime.processes import Processes

_CLOSED = 2.5  # seconds of silence, if the connection is closed too
_LONGEST = 2.0  # seconds between two looks that count: in more, this process itself stood still


class Silence:
    """Seconds since the records of other processes have changed.

    Args:
        processes: Which process this is.
        connections: Connections that end with the processes.
        heartbeat: Seconds without a new record after which a process counts as gone.

    Example:
        >>> from namedmesh.runtime import Processes
        >>> silence = Silence(Processes(2, 0), None, heartbeat=15)
        >>> silence.find({0: {"beat": 7}, 1: {"beat": 7}})
        {}
    """

    def __init__(self, processes: Processes, connections: Connections | None, heartbeat: float):
        self._own, self._connections, self._heartbeat = processes.index, connections, heartbeat
        self._beats: dict[int, int] = {}
        self._seconds: dict[int, float] = {}
        self._last = time.monotonic()

    def find(self, records: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
        """Finds processes that are gone.

        Args:
            records: The latest record of each process.

        Returns:
            What is known of each.
        """
        now = time.monotonic()
        passed, self._last = min(now - self._last, _LONGEST), now
        closed = self._connections.closed() if self._connections is not None else set()
        gone: dict[int, str] = {}
        for index, record in records.items():
            if index == self._own:
                continue
            same = self._beats.get(index) == record["beat"]
            self._beats[index] = record["beat"]
            self._seconds[index] = self._seconds.get(index, 0.0) + passed if same else 0.0
            if self._seconds[index] >= (_CLOSED if index in closed else self._heartbeat):
                gone[index] = f"it has given no sign of life for {self._seconds[index]:.0f} s"
                if index in closed:
                    gone[index] = "it was killed, or its machine is gone"
        return gone
