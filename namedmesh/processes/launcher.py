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
from namedmesh.processes.screen import Screen, describe_status
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
_IMPORTS = 120.0  # seconds for one that has just started to import what it needs
_SERVICE = 60.0  # seconds for jax's service to start
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
                few = " (fewer than there are processes)" if name == "least" else ""
                raise NamedMeshError(f"{name}={value!r}", fix=f"give {least} to {most}{few}")
        if self.replaces and not split_command(list(self.command)):
            fix = f"write the command as {USAGE}, or leave --spares and --least out"
            raise NamedMeshError("only Python programs can go on without those gone", fix=fix)
        if self.spares and self.least:
            fix = "give --spares, or --least to go on with those that are left"
            raise NamedMeshError("who is gone is either replaced or missing", fix=fix)
        if self.replaces and not self.restarts:
            fix = "add how many faults they are for, e.g. --restarts 100"
            raise NamedMeshError("--spares and --least do nothing without --restarts", fix=fix)

    @property
    def replaces(self) -> bool:
        """True if those that live go on when one is gone."""
        return self.spares or bool(self.least)

    def place(self, index: int, count: int, port: int, token: str, service: str) -> dict[str, str]:
        """Return what the environment of a process says of its place, for start_processes."""
        own = {TOKEN: os.environ.get(TOKEN) or token, SERVICE: service}
        own |= {COORDINATOR: f"127.0.0.1:{port}", COUNT: str(count), INDEX: str(index)}
        return own if self.devices is None else {**own, DEVICES: str(self.devices)}


def launch_processes(launch: Launch) -> int:
    """Run processes until they have ended, restart them when one fails, and return the status."""
    # Lines are passed on with the process before them, e.g. `[2] step 100`. Signals are passed on
    # to all processes, after which nothing is restarted; a second SIGINT kills them.
    received: list[int] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(note_signals(FORWARDED, received.append))
        guard, left = stack.enter_context(_start_guard()), launch.restarts
        services = stack.enter_context(_Services()) if launch.replaces else None
        screen = stack.enter_context(Screen(sys.stderr)) if sys.stderr.isatty() else None
        while True:
            attempt = _Attempt(launch, received, guard, left, services, screen)
            status, left = attempt.run(), attempt.left
            if status == 0 or received or not left:
                return status
            left -= 1
            attempt.tell(f"starting again, {launch.restarts - left} of {launch.restarts}")


class _Services(contextlib.ExitStack):
    """A process that starts jax's service for each round: no worker's end takes it away."""

    _process: subprocess.Popen[bytes] | None = None

    def _spawn(self) -> subprocess.Popen[bytes]:
        """Start the process, which ends with this context."""
        code = "from namedmesh.processes.standby import keep_services; keep_services()"
        command, pipe = [sys.executable, "-c", code], subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        self.callback(self.enter_context(process).kill)
        return process

    def start(self, count: int) -> str:
        """Start a service for so many processes, and return its address."""
        with _reserve_port() as port:
            for _ in range(2):
                # If it was killed, those that were connected with it end too.
                if self._process is None or self._process.poll() is not None:
                    self._process = self._spawn()
                into, out = self._process.stdin, self._process.stdout
                assert into is not None and out is not None
                with contextlib.suppress(BrokenPipeError):
                    into.write(f"127.0.0.1:{port} {count}\n".encode())
                    into.flush()
                with selectors.DefaultSelector() as selector:
                    selector.register(out, selectors.EVENT_READ)
                    if selector.select(_SERVICE) and out.readline():
                        return f"127.0.0.1:{port}"
                self._process.kill()
                self._process.wait()
        fix = "look at what is printed above, and launch them again"
        raise NamedMeshError("the service at which the processes meet does not start", fix=fix)


@dataclass
class _Attempt:
    """The processes between a start and the end of the last one."""

    launch: Launch
    received: list[int]  # signals
    guard: int
    left: int  # restarts
    services: _Services | None
    screen: Screen | None

    def __post_init__(self) -> None:
        self._spares: list[subprocess.Popen[bytes]] = []  # processes that wait
        self._ports = contextlib.ExitStack()
        self._numbers: dict[int, int] = {}  # by process id: those of before too
        self._deaf: dict[int, float] = {}  # until when a process has to take its place
        self._placed: set[int] = set()  # those that have taken one, now or before
        self._service = ""  # of the places that are given
        self._begun, self._ended = time.monotonic(), dict[int, float]()
        self._stood: dict[int, float] = {}  # since when one stands still
        self._forwarded = len(self.received)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._selector = selectors.DefaultSelector()
        self._rest: dict[int, bytes] = {}  # of each pipe, the line that has not ended
        self._failed: int | None = None  # the status of the first failure
        self._deadlines: dict[int, float] = {}  # when to send SIGTERM and SIGKILL

    def run(self) -> int:
        """Run the processes and return the status of the first failure."""
        try:
            if not self.received:
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
            self._kill_groups([*self._processes, *self._spares])
            self._spares.clear()
            self._drain()
            self._show()
        interrupted = 128 + self.received[0] if self.received and not self._processes else 0
        return interrupted if self._failed is None else self._failed

    def _start(self, places: Sequence[subprocess.Popen[bytes] | None]) -> None:
        """Give each process its place: those that go on, spares, and fresh ones."""
        token, count = secrets.token_hex(16), len(places)  # so that nobody else joins
        self._ports.close()
        port = self._ports.enter_context(_reserve_port())
        if self.services is not None:
            self._service = self.services.start(count)
        self._processes = []
        for index, process in enumerate(places):
            place = self.launch.place(index, count, port, token, self._service)
            if process is None and self.launch.replaces:
                process = self._spares.pop(0) if self._spares else self._spawn_waiting()
            elif process is None:
                process = self._spawn(list(self.launch.command), {**os.environ, **place})
            if process.stdin is not None:
                answer = _ANSWER if process.pid in self._placed else _IMPORTS
                self._deaf[process.pid] = time.monotonic() + answer
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
        self._show()

    def _replace(self) -> bool:
        """Replace processes that are gone, or leave them out; return whether the others go on."""
        now = time.monotonic()
        alive = [one for one in self._processes if one.poll() is None]
        for one in alive:
            if self._deaf.get(one.pid, now) < now:
                self.tell(f"process {self._numbers[one.pid]} does not go on; SIGKILL sent")
                one.kill()
                del self._deaf[one.pid]
        ended = [one for one in self._processes if one.poll() == 0 and one.pid in self._deaf]
        if ended:
            self._pass_lines(0.0)  # perhaps it has just taken its place
        if self._failed is None and any(one.pid in self._deaf for one in ended):
            # It came to its end while another one was lost.
            self._failed, self._deadlines = 1, {signal.SIGKILL: now}
        gone = {i: one for i, one in enumerate(self._processes) if one.poll() is not None}
        usable = gone and all(one.returncode for one in gone.values())
        usable = usable and len(alive) >= max(1, self.launch.least)
        if not usable or not self.services or not self.left or self.received or self._failed:
            return False
        for one in gone.values():  # who ends by itself may be the first of all
            if one.returncode > 0 and now < self._ended.setdefault(one.pid, now) + _HURRY:
                return True
        self.left -= 1
        self._kill_groups([*gone.values()])
        names = ", ".join(f"{i} ({describe_status(one.returncode)})" for i, one in gone.items())
        way = "a spare takes its place" if self.launch.spares else f"going on with {len(alive)}"
        self.tell(f"lost process {names}; {way}, {self.left} more times")
        kept = [None if i in gone else one for i, one in enumerate(self._processes)]
        self._start([*filter(None, kept)] if self.launch.least else kept)
        return True

    def _spawn_waiting(self) -> subprocess.Popen[bytes]:
        """Start a process that waits for its place."""
        words = [self.launch.command[0], "-u", "-c", WAIT, *self.launch.command[1:]]
        return self._spawn(words, dict(os.environ), subprocess.PIPE)

    def _show(self) -> None:
        """Show the processes on the screen."""
        if self.screen is not None:
            names = [*map(str, range(len(self._processes))), *["spare"] * len(self._spares)]
            self.screen.show(names, [*self._processes, *self._spares])

    def tell(self, text: str) -> None:
        """Write a line about the processes to standard error."""
        if self.screen is not None:
            self.screen.note(text)
        else:
            print(f"[launch] {text}", file=sys.stderr, flush=True)

    def _spawn(
        self, command: list[str], environment: dict[str, str], stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own."""
        # It tells how far it is through a pipe of its own.
        reader, writer = os.pipe()
        os.set_blocking(writer, False)  # should this process be suspended, what is said is lost
        channel = f"{writer}:{os.fstat(writer).st_ino}"
        try:
            process = subprocess.Popen(
                command,
                env={**environment, CHANNEL: channel},
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
        os.set_blocking(reader, False)
        pipe = os.fdopen(reader, "rb", 0)
        self._selector.register(pipe, selectors.EVENT_READ, (process.pid, None))
        return process

    def _start_spares(self) -> None:
        """Keep a process that waits, once those that work have begun."""
        settled = self._begun + _SETTLED < time.monotonic()
        self._spares = [one for one in self._spares if one.poll() is None]
        wanted = self.launch.spares and self.left and not self._spares
        if wanted and settled and self._failed is None:
            self._spares.append(self._spawn_waiting())
            self._show()

    def _kill_stopped(self) -> None:
        """Kill processes that were suspended, once that holds up others, or the end of all."""
        running = [one for one in self._processes if one.poll() is None]
        stopped = {one.pid for one in running if _is_suspended(one.pid)}
        now = time.monotonic()
        self._stood = {pid: self._stood.get(pid, now) for pid in stopped}
        for pid, since in self._stood.items():
            holds = now - since > _STANDSTILL and len(stopped) < len(running)
            if holds or self._failed is not None:
                os.kill(pid, signal.SIGKILL)
                name = f"process {self._numbers[pid]}"
                self.tell(f"{name} was suspended for {now - since:.0f} s; SIGKILL sent")

    def _tell_guard(self, sign: str, group: int) -> None:
        """Tell the guard that a group begins or ends."""
        with contextlib.suppress(OSError):
            os.write(self.guard, f"{sign}{group}\n".encode())

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
            self._write(out, b"".join(b"[%d] %s\n" % (self._numbers[pid], line) for line in lines))

    def _note_status(self, pid: int, lines: Iterable[bytes]) -> None:
        """Note how far a process is."""
        for line in lines:
            with contextlib.suppress(ValueError):
                status = json.loads(line)
                if status.pop("place", "") == self._service:
                    self._deaf.pop(pid, None)
                    self._placed.add(pid)
                if self.screen is not None:
                    self.screen.update(pid, status)

    def _write(self, out: TextIO, text: bytes) -> None:
        """Write lines; ask the processes to stop if the reader is gone."""
        try:
            if self.screen is not None and out.isatty():
                self.screen.print(text.decode(errors="replace"))
                return
            out.buffer.write(text)
            out.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
            self.received.append(signal.SIGTERM)

    def _pass_signals(self) -> None:
        """Pass on the signals that this process got since the last call."""
        recent, self._forwarded = self.received[self._forwarded :], len(self.received)
        for number in recent:
            kills = self.received.count(signal.SIGINT) > 1
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
        self.tell(f"process {failed[0]} ended with {describe_status(code)}")

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
