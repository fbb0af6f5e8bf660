"""The launcher: processes of one machine, started, stopped and restarted together."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import describe_os_error
from namedmesh.processes.arguments import COORDINATOR, COUNT, DEVICES, INDEX, SERVICE, TOKEN
from namedmesh.processes.launched import CHANNEL
from namedmesh.processes.screen import Screen
from namedmesh.processes.standby import USAGE, WAIT, split_command

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MOST_PROCESSES = 1024
_TICK = 0.1  # seconds between two checks of the processes
_LONGEST_LINE = 2**16  # bytes; a longer one is cut
_DRAIN = 2.0  # seconds for the last lines of processes that have ended
_SETTLED = 5.0  # seconds after which processes have come to work
_STANDSTILL = 15.0  # seconds that a process may be suspended while others run
_HURRY = 1.0  # seconds for the others to end when one was killed and all will start again
_ANSWER = 15.0  # seconds for a process that goes on to leave its program
_GUARD = pathlib.Path(__file__).with_name("launch_guard.py")


@dataclass(frozen=True)
class Launch:
    """A command for several processes, and what to do when one fails."""

    command: Sequence[str]
    processes: int
    devices: int | None = None
    restarts: int = 0
    grace: float = 30.0
    spares: bool = False
    least: int = 0  # processes that go on without those that are gone; 0 for none

    def __post_init__(self) -> None:
        if isinstance(self.command, str) or not self.command:
            raise NamedMeshError(
                "there is no command to launch",
                fix="write it at the end: namedmesh launch -n 4 -- python train.py",
            )
        bounds = {"processes": (1, MOST_PROCESSES), "restarts": (0, 2**31), "devices": (1, 2**20)}
        bounds["least"] = (0, max(0, self.processes - 1))
        for name, (least, most) in (bounds | {"grace": (0, 2**31)}).items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise NamedMeshError(f"{name}={value!r}", fix=f"give {least} to {most}")
        if self.replaces and not split_command(list(self.command)):
            fix = f"write the command as {USAGE}, or leave --spares and --least out"
            raise NamedMeshError("only Python programs can go on without those gone", fix=fix)
        if self.spares and self.least:
            fix = "give --spares, or --least to go on with those that are left"
            raise NamedMeshError("who is gone is either replaced or missing", fix=fix)

    @property
    def replaces(self) -> bool:
        """True if those that live go on when one is gone."""
        return self.spares or bool(self.least)

    def place(self, index: int, count: int, port: int, token: str, service: str) -> dict[str, str]:
        """Return what the environment of a process says of its place, for start_processes."""
        own = {TOKEN: os.environ.get(TOKEN) or token, SERVICE: service}
        own |= {COORDINATOR: f"127.0.0.1:{port}", COUNT: str(count), INDEX: str(index)}
        if self.devices is not None:
            own[DEVICES] = str(self.devices)
        return own


def launch_processes(launch: Launch) -> int:
    """Run processes until they have ended, restart them when one fails, and return the status."""
    # Lines are passed on with the process before them, e.g. `[2] step 100`. Signals are passed on
    # to all processes, after which nothing is restarted; a second SIGINT kills them.
    received: list[int] = []
    with note_signals(FORWARDED, received.append), _start_guard() as guard:
        spares: list[subprocess.Popen[bytes]] = []
        left = launch.restarts
        with contextlib.ExitStack() as stack:
            stack.callback(_kill_all, spares)
            services = stack.enter_context(_Services()) if launch.replaces else None
            screen = stack.enter_context(Screen(sys.stderr)) if sys.stderr.isatty() else None
            while True:
                attempt = _Attempt(launch, received, guard, spares, left, services, screen)
                status, left = attempt.run(), attempt.left
                if status == 0 or received or not left:
                    return status
                left -= 1
                attempt.tell(f"starting again, {launch.restarts - left} of {launch.restarts}")


def _kill_all(processes: list[subprocess.Popen[bytes]]) -> None:
    """Kill processes that wait."""
    for one in processes:
        one.kill()
        one.wait()


class _Services:
    """A process that starts jax's service for each round: no worker's end takes it away."""

    def __enter__(self) -> _Services:
        code = "from namedmesh.processes.standby import keep_services; keep_services()"
        command, pipe = [sys.executable, "-c", code], subprocess.PIPE
        self._process = subprocess.Popen(
            command, text=True, stdin=pipe, stdout=pipe, start_new_session=True
        )
        self._ports = contextlib.ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        self._ports.close()
        self._process.kill()
        self._process.wait()

    def start(self, count: int) -> str:
        """Start a service for so many processes, and return its address."""
        address = f"127.0.0.1:{self._ports.enter_context(_reserve_port())}"
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{address} {count}\n")
        self._process.stdin.flush()
        if not self._process.stdout.readline():
            raise NamedMeshError("the service of the processes has ended", fix="launch them again")
        return address


class _Attempt:
    """The processes between a start and the end of the last one."""

    def __init__(
        self,
        launch: Launch,
        received: list[int],
        guard: int,
        spares: list[subprocess.Popen[bytes]],
        left: int,
        services: _Services | None,
        screen: Screen | None,
    ):
        self.launch, self._received, self._guard = launch, received, guard
        self._spares, self.left = spares, left  # processes that wait, and restarts that are left
        self._services, self._screen = services, screen
        self._ports = contextlib.ExitStack()
        self._numbers: dict[int, int] = {}  # by process id: those of before too
        self._deaf: dict[int, float] = {}  # until when a process that goes on has to answer
        self._begun, self._ended = time.monotonic(), dict[int, float]()
        self._stood: dict[int, float] = {}  # since when one stands still
        self._forwarded = len(received)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._selector = selectors.DefaultSelector()
        self._rest: dict[int, bytes] = {}  # of each pipe, the line that has not ended
        self._failed: int | None = None  # the status of the first failure
        self._deadlines: dict[int, float] = {}  # when to send SIGTERM and SIGKILL

    def run(self) -> int:
        """Run the processes and return the status of the first failure."""
        try:
            if not self._received:
                self._start([None] * self.launch.processes)
            while any(process.poll() is None for process in self._processes):
                self._pass_lines(_TICK)
                self._pass_signals()
                if not self._replace():
                    self._note_failure()
                self._stop_others()
                self._kill_stopped()
                self._start_spares()
            self._note_failure()
        finally:
            self._ports.close()
            self._kill_groups(self._processes)
            self._drain()
        interrupted = 128 + self._received[0] if self._received and not self._processes else 0
        return interrupted if self._failed is None else self._failed

    def _start(self, places: Sequence[subprocess.Popen[bytes] | None]) -> None:
        """Give each process its place: those that go on, spares, and fresh ones."""
        token, count = secrets.token_hex(16), len(places)  # so that nobody else joins
        self._ports.close()
        port = self._ports.enter_context(_reserve_port())
        service = self._services.start(count) if self._services is not None else ""
        self._processes = []
        for index, process in enumerate(places):
            place = self.launch.place(index, count, port, token, service)
            if process is not None:
                self._deaf[process.pid] = time.monotonic() + _ANSWER
            elif self._spares or self.launch.replaces:
                process = self._spares.pop(0) if self._spares else self._spawn_waiting()
            else:
                process = self._spawn(list(self.launch.command), {**os.environ, **place})
            if process.stdin is not None:
                with contextlib.suppress(OSError):  # it was killed: noted as it is of others
                    process.stdin.write(json.dumps(place).encode() + b"\n")
                    process.stdin.flush()
            self._processes.append(process)
            if process.pid not in self._numbers:
                for pipe, out in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                    assert pipe is not None
                    os.set_blocking(pipe.fileno(), False)
                    self._selector.register(pipe, selectors.EVENT_READ, (process.pid, out))
            self._numbers[process.pid] = index
        if self._screen is not None:
            self._screen.show({one.pid: index for index, one in enumerate(self._processes)})

    def _replace(self) -> bool:
        """Replace processes that are gone, or leave them out; return whether the others go on."""
        now = time.monotonic()
        alive = [one for one in self._processes if one.poll() is None]
        for one in alive:
            if self._deaf.get(one.pid, now) < now:
                self.tell(f"process {self._numbers[one.pid]} does not go on; SIGKILL sent")
                one.kill()
                del self._deaf[one.pid]
        ended = [one.pid for one in self._processes if one.poll() == 0 and one.pid in self._deaf]
        if ended and self._failed is None:  # it came to its end while another one was lost
            self._failed, self._deadlines = 1, {signal.SIGKILL: now}
        gone = {i: one for i, one in enumerate(self._processes) if one.poll() is not None}
        usable = gone and all(one.returncode for one in gone.values()) and alive
        if not usable or not self._services or not self.left or self._received or self._failed:
            return False
        if self.launch.least and len(alive) < self.launch.least:
            return False
        for one in gone.values():  # who ends by itself may be the first of all
            if one.returncode > 0 and now < self._ended.setdefault(one.pid, now) + _HURRY:
                return True
        self.left -= 1
        self._kill_groups([*gone.values()])
        names = ", ".join(f"{i} ({_describe_status(one.returncode)})" for i, one in gone.items())
        way = "a spare takes its place" if self.launch.spares else f"going on with {len(alive)}"
        self.tell(f"lost process {names}; {way}, {self.left} more times")
        places = (
            alive
            if self.launch.least
            else [None if one in gone.values() else one for one in self._processes]
        )
        self._start(places)
        return True

    def _spawn_waiting(self) -> subprocess.Popen[bytes]:
        """Start a process that waits for its place."""
        words = [self.launch.command[0], "-u", "-c", WAIT, *self.launch.command[1:]]
        return self._spawn(words, dict(os.environ), subprocess.PIPE)

    def tell(self, text: str) -> None:
        """Write a line about the processes to standard error."""
        if self._screen is not None:
            self._screen.note(text)
        else:
            print(f"[launch] {text}", file=sys.stderr, flush=True)

    def _spawn(
        self, command: list[str], environment: dict[str, str], stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own."""
        # It tells how far it is through a pipe of its own.
        reader, writer = os.pipe()
        try:
            process = subprocess.Popen(
                command,
                env={**environment, CHANNEL: str(writer)},
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=[writer],
                # In the child, before its program starts, so that no moment is without a guard.
                preexec_fn=lambda: self._tell_guard("+", os.getpid()),
            )
        except (OSError, ValueError) as error:
            raise NamedMeshError(
                f"cannot run {self.launch.command[0]!r}: {describe_os_error(error)}",
                fix="name a program that can be run, e.g. -- python train.py",
            ) from None
        finally:
            os.close(writer)
        channel = os.fdopen(reader, "rb", 0)
        os.set_blocking(reader, False)
        self._selector.register(channel, selectors.EVENT_READ, (process.pid, None))
        return process

    def _start_spares(self) -> None:
        """Keep a process that waits, once those that work have begun."""
        settled = self._begun + _SETTLED < time.monotonic()
        wanted = self.launch.spares and self.left and not self._spares
        if wanted and settled and self._failed is None:
            self._spares.append(self._spawn_waiting())

    def _kill_stopped(self) -> None:
        """Kill processes that were suspended, once that holds up others, or the end of all."""
        running = [one for one in self._processes if one.poll() is None]
        stopped = {one.pid for one in running if _is_suspended(one.pid)}
        now = time.monotonic()
        self._stood = {pid: self._stood.get(pid, now) for pid in stopped}
        for index, one in enumerate(self._processes):
            seconds = now - self._stood.get(one.pid, now)
            if one.pid not in stopped or (len(stopped) == len(running) and self._failed is None):
                continue
            if self._failed is not None or seconds > _STANDSTILL:
                one.send_signal(signal.SIGKILL)
                self.tell(f"process {index} was suspended for {seconds:.0f} s; SIGKILL sent")

    def _tell_guard(self, sign: str, group: int) -> None:
        """Tell the guard that a group begins or ends."""
        with contextlib.suppress(OSError):
            os.write(self._guard, f"{sign}{group}\n".encode())

    def _pass_lines(self, seconds: float) -> None:
        """Pass on what the processes write within some seconds."""
        if not self._selector.get_map():
            time.sleep(seconds)
        for key, _ in self._selector.select(seconds):
            pipe, (pid, out) = key.fileobj, key.data
            assert not isinstance(pipe, int)
            data = pipe.read(2**16)  # type: ignore[attr-defined]
            *lines, rest = (self._rest.pop(key.fd, b"") + (data or b"")).split(b"\n")
            if data == b"":
                self._selector.unregister(pipe)
                pipe.close()  # type: ignore[attr-defined]
            if rest and (data == b"" or len(rest) > _LONGEST_LINE):
                lines.append(rest)
            else:
                self._rest[key.fd] = rest
            if out is None:
                self._note_status(pid, lines)
                continue
            index = self._numbers[pid]
            self._write(out, b"".join(b"[%d] %s\n" % (index, line) for line in lines))

    def _note_status(self, pid: int, lines: Iterable[bytes]) -> None:
        """Note how far a process is."""
        for line in lines:
            with contextlib.suppress(ValueError):
                status = json.loads(line)
                if status.pop("again", False):
                    self._deaf.pop(pid, None)
                if self._screen is not None:
                    self._screen.update(pid, status)

    def _write(self, out: TextIO, text: bytes) -> None:
        """Write lines; ask the processes to stop if the reader is gone."""
        try:
            if self._screen is not None and out.isatty():
                self._screen.print(text.decode(errors="replace"))
                return
            out.buffer.write(text)
            out.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
            self._received.append(signal.SIGTERM)

    def _pass_signals(self) -> None:
        """Pass on the signals that this process got since the last call."""
        recent, self._forwarded = self._received[self._forwarded :], len(self._received)
        for number in recent:
            kills = self._received.count(signal.SIGINT) > 1
            self._send(signal.SIGKILL if kills else number)

    def _send(self, number: int) -> None:
        """Send a signal to the processes that still run."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def _note_failure(self) -> None:
        """Note the first process that ended with a status other than 0."""
        failed = [index for index, one in enumerate(self._processes) if one.poll()]
        if self._failed is not None or not failed:
            return
        code = self._processes[failed[0]].returncode
        self._failed = code if code > 0 else 128 - code
        now, grace = time.monotonic(), self.launch.grace
        self._deadlines = {signal.SIGTERM: now + grace, signal.SIGKILL: now + 2 * grace}
        if code < 0 and self.left:  # it was killed: the others wait for it in vain
            self._deadlines = {signal.SIGKILL: now + min(grace, _HURRY)}
        self.tell(f"process {failed[0]} ended with {_describe_status(code)}")

    def _stop_others(self) -> None:
        """Stop processes that have not ended by themselves after one has failed."""
        for number, moment in list(self._deadlines.items()):
            if time.monotonic() < moment:
                continue
            running = [index for index, one in enumerate(self._processes) if one.poll() is None]
            self._send(number)
            del self._deadlines[number]
            if running:
                these = ", ".join(map(str, running))
                self.tell(f"processes still running: {these}; {signal.Signals(number).name} sent")

    def _kill_groups(self, processes: Iterable[subprocess.Popen[bytes]]) -> None:
        """Kill processes, and whatever they have started and left behind."""
        for process in processes:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._tell_guard("-", process.pid)

    def _drain(self) -> None:
        """Pass on the last lines, without waiting for a pipe that another process keeps open."""
        end = time.monotonic() + _DRAIN
        while self._selector.get_map() and time.monotonic() < end:
            self._pass_lines(_TICK)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()


def _describe_status(code: int) -> str:
    """Describe how a process ended."""
    return f"status {code}" if code >= 0 else f"status {128 - code} ({signal.Signals(-code).name})"


def _is_suspended(pid: int) -> bool:
    """Return whether a process was stopped by a signal; False where that is not known."""
    with contextlib.suppress(OSError, IndexError):
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0] == "T"
    return False


@contextlib.contextmanager
def note_signals(signals: Iterable[int], note: Callable[[int], None]) -> Iterator[None]:
    """Note the numbers of signals instead of being stopped by them."""
    handlers = {one: signal.signal(one, lambda number, _frame: note(number)) for one in signals}
    try:
        yield
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)


@contextlib.contextmanager
def _start_guard() -> Iterator[int]:
    """Yield the input of a guard, which kills the groups it knows if this process is killed."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_GUARD)], stdin=subprocess.PIPE, start_new_session=True
    )
    assert guard.stdin is not None
    try:
        yield guard.stdin.fileno()
    finally:
        guard.stdin.close()
        guard.wait()


@contextlib.contextmanager
def _reserve_port() -> Iterator[int]:
    """Yield a port of this machine that no other program gets while the context lasts."""
    # The coordinator's server allows others on its port, and so does this socket, which never
    # listens: it only keeps the port from being given to another program.
    with socket.socket() as reserved:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            reserved.setsockopt(socket.SOL_SOCKET, option, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]
