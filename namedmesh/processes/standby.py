"""The runner of a process that the launcher may call again: for the first time, or once more.

It imports what takes seconds and waits for a line of the launcher: the environment of its place.
When another process is gone, the next line comes. The program is then interrupted and runs again in
the same Python, which keeps its imports and the copies of the state; the input ends with the
launcher."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import queue
import runpy
import signal
import socket
import sys
import threading
import time
from collections import deque
from types import FrameType
from typing import Any

from namedmesh.processes.arguments import SERVICE
from namedmesh.processes.launched import abandoned, tell_launcher

WAIT = "from namedmesh.processes.standby import wait_and_run; wait_and_run()"  # of Python -c
USAGE = "python SCRIPT, python -m MODULE or python -c CODE"
_SIGNAL = signal.SIGRTMIN + 3  # programs and schedulers use the first ones
_PATIENCE = 3.0  # seconds for the line that explains a failure: another process is gone
_BETWEEN = 1.0  # seconds after which a program that goes on is interrupted again
_JOIN = 2.0  # seconds for the threads of the run before to end
_SERVICES = 8  # of the last rounds; those that go on have left the ones before


def split_command(command: list[str]) -> list[str]:
    """Return the words of a Python command after `python` and -u; empty for other commands."""
    words = [word for word in command[1:2] if word != "-u"] + command[2:]
    is_python = os.path.basename(command[0]).startswith("python")
    plain = bool(words) and (words[0] in ("-m", "-c") or not words[0].startswith("-"))
    return words if is_python and plain else []


class _Again(BaseException):
    """Another process is gone: the program runs again. No program should catch it."""


class _Places:
    """The lines of the launcher, each of which interrupts the program."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[dict[str, str] | None] = queue.SimpleQueue()
        self._input = os.fdopen(os.dup(0), "rb")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        self.running, self._main = False, threading.main_thread().ident or 0
        signal.signal(_SIGNAL, self._interrupt)
        threading.Thread(target=self._read, name="launcher", daemon=True).start()

    def wait(self, seconds: float | None = None) -> dict[str, str] | None:
        """Wait for the newest line; None if it does not come, or the launcher is gone."""
        with contextlib.suppress(queue.Empty):
            line = self._lines.get(timeout=seconds)
            while not self._lines.empty():
                line = self._lines.get()
            return line
        return None

    def _read(self) -> None:
        """Pass lines on, and interrupt the program until the main thread has left it."""
        for line in self._input:
            self._lines.put(json.loads(line))
            if self.running:
                abandoned.set()
            while self.running and abandoned.is_set():
                _break_connections(os.environ.get(SERVICE, ""))
                signal.pthread_kill(self._main, _SIGNAL)
                time.sleep(_BETWEEN)
        self._lines.put(None)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """Raise in the main thread, wherever it is in Python."""
        if self.running:
            raise _Again


def _break_connections(service: str) -> None:
    """Shut down TCP connections, but those with jax's service: collectives wait on them in vain."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                is_tcp = one.family in (socket.AF_INET, socket.AF_INET6)
                if not is_tcp or one.type != socket.SOCK_STREAM:
                    continue
                if not service.endswith(f":{one.getpeername()[1]}"):
                    one.shutdown(socket.SHUT_RDWR)


def keep_services() -> None:
    """Start a service of jax for each line, an address and a number of processes."""
    from namedmesh.jax_internals import start_service

    services = deque[Any](maxlen=_SERVICES)
    for line in sys.stdin:
        address, count = line.split()
        services.append(start_service(address, int(count), 30))
        print("started", flush=True)


def wait_and_run() -> None:
    """Import what takes seconds, and run the program in each place that the launcher gives."""
    for name in ("namedmesh.runtime", "namedmesh.training"):  # by name: they are above this room
        importlib.import_module(name)
    from namedmesh.processes.starting import leave_processes

    places, words = _Places(), split_command(["python", *sys.argv[1:]])
    place = places.wait()
    while place is not None:
        os.environ.update(place)
        tell_launcher(place=place[SERVICE])
        known = set(threading.enumerate())
        try:
            try:
                places.running = True
                if not (newer := places.wait(0)):
                    _run(words)
                    return
                place = newer
            finally:
                places.running = False
        except _Again:
            place = places.wait(_PATIENCE) or place
        except (Exception, SystemExit) as error:
            done = isinstance(error, SystemExit) and not error.code
            place = None if done else places.wait(_PATIENCE)
            if place is None:
                raise
        gc.collect()  # what the frames of the program held
        leave_processes(known, _JOIN)


def _run(words: list[str]) -> None:
    """Run the program as Python would."""
    kind, *rest = words
    if kind == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [kind, *rest], os.path.dirname(os.path.abspath(kind))
        runpy.run_path(kind, run_name="__main__")
