"""The collective that a step is in, by the names of the plan; on CPU, if asked for.

With NAMEDMESH_TRACE_COLLECTIVES=1, XLA:CPU logs each collective that a device begins, with its
channel. Standard error goes to a file in memory, and other lines on to where they went before."""

from __future__ import annotations

import fcntl
import os
import re
import sys
from collections.abc import Iterable

from namedmesh.audit.hlo.communication import CompiledCollective
from namedmesh.errors.errors import join_names
from namedmesh.records.collective import Collective

VARIABLE = "NAMEDMESH_TRACE_COLLECTIVES"
_BEGINS = re.compile(r"^I\d{4} \S+ +(\d+) collective_thunk\.cc:\d+\].*\bop_id=(\d+)", re.MULTILINE)
_QUIET = re.compile(r"^[IW]\d{4} \S+ +\d+ \S+\.(cc|h):\d+\]")  # lines that XLA logs at level 0
_CHANNEL = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = .*\bchannel_id=(\d+)", re.MULTILINE)

_trace: CollectiveTrace | None = None


def current_trace() -> CollectiveTrace | None:
    """Return the trace of this process; None if the environment does not ask for one."""
    global _trace
    if _trace is None and os.environ.get(VARIABLE) not in (None, "", "0"):
        _trace = CollectiveTrace()
    return _trace


class CollectiveTrace:
    """The collectives that XLA has logged in the step that runs."""

    def __init__(self) -> None:
        self._names: dict[str, dict[int, str]] = {}
        self._passed = 0  # bytes that were passed on
        sys.stderr.flush()
        self._screen = os.dup(2)
        self._log = os.memfd_create("collectives")
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)
        os.dup2(self._log, 2)
        sys.stderr = os.fdopen(self._screen, "w", buffering=1, closefd=False)

    def learn(
        self, program: str, text: str, pairs: Iterable[tuple[Collective, CompiledCollective]]
    ) -> None:
        """Learn the collectives of a program."""
        planned: dict[str, list[Collective]] = {}
        for collective, compiled in pairs:
            planned.setdefault(compiled.name, []).append(collective)
        self._names[program] = {
            int(channel): _describe(planned[name])
            for name, channel in _CHANNEL.findall(text)
            if name in planned
        }

    def begin(self) -> None:
        """Forget the collectives of the step before."""
        self.pass_on()
        os.ftruncate(self._log, 0)
        self._passed = 0

    def pass_on(self) -> None:
        """Write to the screen the lines that are not about collectives."""
        data = self._read()[self._passed :]
        self._passed += len(data)
        lines = data.decode(errors="replace").splitlines(keepends=True)
        others = [line for line in lines if not _QUIET.match(line)]
        if others:
            os.write(self._screen, "".join(others).encode())

    def last(self, program: str) -> str:
        """Describe the collectives that this process's devices have begun last in this step."""
        latest: dict[str, int] = {}  # by thread: each device runs its step on one
        for thread, channel in _BEGINS.findall(self._read().decode(errors="replace")):
            latest[thread] = int(channel)
        names = self._names.get(program, {})
        texts = (names.get(one, f"a collective of channel {one}") for one in latest.values())
        return "; ".join(dict.fromkeys(texts))

    def _read(self) -> bytes:
        """Read what was logged since the step began."""
        return os.pread(self._log, os.fstat(self._log).st_size, 0)


def _describe(collectives: list[Collective]) -> str:
    """Describe planned collectives compiled into one: AllReduce of d_w and d_v along data."""
    first = collectives[0]
    tensors = list(dict.fromkeys(one.tensor for one in collectives))
    shown = tensors if len(tensors) <= 6 else [*tensors[:5], f"{len(tensors) - 5} more"]
    return f"{first.kind} of {join_names(shown)} along {'+'.join(first.axes)} ({first.source})"
