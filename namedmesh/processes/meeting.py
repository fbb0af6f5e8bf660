"""The handshake of processes before jax connects them, over connections that stay open.

jax.distributed ends a process without an exception when others do not come, come twice or count
differently. So process 0 first hears a line from each of the others, and answers what is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Mapping
from typing import Any

from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.processes.arguments import ProcessArguments, split_address

_LONGEST_LINE = 2**16  # bytes; an answer names processes
_PATIENCE = 5.0  # seconds for a line of a peer that has connected
_LATE = 10.0  # seconds to wait for the rest once something is wrong
_MOST = 256  # connections that stay open: a process may have a thousand files open
_ANSWER_SECONDS = 2.0  # for the coordinator to answer
_ASKED, _PAUSE = 3, 0.3  # times and seconds: a process that ends closes one thing after another
# Networks drop connections on which nothing is sent.
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
Message = dict[str, Any]
Outcome = tuple[Message, dict[int, socket.socket]]  # the answer of process 0, and the connections
_SAME = "start every process with the same code, packages, settings and data"


def meet(arguments: ProcessArguments, versions: str) -> Connections:
    """Wait until all processes have come to the coordinator's address."""
    hello = {"index": arguments.index, "count": arguments.count, "versions": versions}
    meeting = _answer_all if arguments.index == 0 else _introduce
    answer, sockets = meeting(arguments, hello)
    peers = {index: one for index, one in sockets.items() if one.fileno() >= 0}
    if answer["problem"] or len(peers) > _MOST:
        for one in peers.values():
            one.close()
        peers = {}
    if answer["problem"]:
        place = f"this is process {arguments.index} of {arguments.count}"
        raise NamedMeshError(answer["problem"], *answer["details"], place, fix=answer["fix"])
    return Connections(peers, split_address(str(arguments.coordinator), "coordinator"))


def _answer_all(arguments: ProcessArguments, own: Message) -> Outcome:
    """Hear all other processes and answer them; on process 0."""
    assert arguments.count is not None
    present, peers = {0: own}, []
    answer = _answer("")
    deadline = time.monotonic() + arguments.timeout
    with _listen(arguments) as listener:
        while len(peers) < arguments.count - 1 and time.monotonic() < deadline:
            peer, hello = _accept(listener, deadline)
            if peer is None:
                continue
            peers.append((peer, hello["index"]))
            if not answer["problem"]:
                answer = _compare(hello, present, arguments.count)
                present.setdefault(hello["index"], hello)
                if answer["problem"]:  # those that come soon get the answer too
                    deadline = min(deadline, time.monotonic() + _LATE)
    if not answer["problem"]:
        answer = _name_missing(present, arguments)
    for peer, _ in peers:
        _send(peer, answer)
    return answer, {index: peer for peer, index in peers}


def _listen(arguments: ProcessArguments) -> socket.socket:
    """Open a socket on the one interface that is given."""
    bind = arguments.bind or arguments.coordinator
    host, port = split_address(str(bind), "bind")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = addresses[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        raise NamedMeshError(
            f"process 0 cannot listen at {bind}: {error.strerror or error}",
            fix="use a free port and an address of the machine of process 0; if others know it by "
            "another address, give bind= its own",
        ) from None
    return listener


def _accept(listener: socket.socket, deadline: float) -> tuple[socket.socket | None, Message]:
    """Accept the next peer that introduces itself in time; close the connections of others."""
    listener.settimeout(max(0.01, deadline - time.monotonic()))
    try:
        peer, _ = listener.accept()
    except TimeoutError:
        return None, {}
    peer.settimeout(_PATIENCE)
    hello = _receive_line(peer)
    if [type(hello.get(name)) for name in ("index", "count", "versions")] == [int, int, str]:
        return peer, hello
    peer.close()
    return None, {}


def _compare(hello: Message, present: dict[int, Message], count: int) -> Any:
    """Answer what is wrong with a process that came, if anything."""
    index, own = hello["index"], present[0]
    if hello["count"] != count:
        return _answer(
            f"the processes do not agree on how many they are: process {index} was told "
            f"{hello['count']}, and process 0 was told {count}",
            fix="give every process the same count",
        )
    if index in present:
        return _answer(
            f"two processes say that they are process {index}",
            fix=f"give each process an index of its own, from 0 to {count - 1}",
        )
    if hello["versions"] != own["versions"]:
        return _answer(
            "the processes do not agree on versions",
            f"process 0: {own['versions']}",
            f"process {index}: {hello['versions'][:200]}",
            fix=_SAME,
        )
    return _answer("")


def _name_missing(present: dict[int, Message], arguments: ProcessArguments) -> Any:
    """Answer which processes have not come in time, if any."""
    missing = [str(one) for one in range(arguments.count or 0) if one not in present]
    if not missing:
        return _answer("")
    verb = "has" if len(missing) == 1 else "have"
    some = missing if len(missing) < 10 else [*missing[:8], f"{len(missing) - 8} more"]
    return _answer(
        f"{name_all('process', some, 'processes')} of {arguments.count} {verb} not come to "
        f"{arguments.coordinator} within {arguments.timeout} seconds",
        fix="look at the output of those processes; start all within the timeout, with the same "
        "coordinator, which must lead to process 0 from their machines",
    )


def _introduce(arguments: ProcessArguments, hello: Message) -> Outcome:
    """Introduce this process to process 0 and return its answer; on the other processes."""
    address = split_address(str(arguments.coordinator), "coordinator")
    deadline = time.monotonic() + arguments.timeout
    reason = "nobody listens there"
    while (left := deadline - time.monotonic()) > 0:
        try:
            host = socket.create_connection(address, timeout=left)
            _send(host, hello)
            host.settimeout(left + _PATIENCE)
            answer = _receive_line(host)
            if isinstance(answer.get("problem"), str):
                return answer, {0: host}
            host.close()
            reason = "whoever listens there is not process 0 of this program, or has gone"
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(min(0.2, max(0.0, left)))
    answer = _answer(
        f"process 0 cannot be reached at {arguments.coordinator} "
        f"within {arguments.timeout} seconds: {reason}",
        fix="start process 0 too, and give an address of its machine that this one can reach",
    )
    return answer, {}


def _answer(problem: str, *details: str, fix: str = "") -> Message:
    """Make an answer to all processes; without a problem, jax may connect."""
    return {"problem": problem, "details": details, "fix": fix}


def _send(peer: socket.socket, message: Message) -> None:
    """Send one line; close the connection if the peer is gone."""
    try:
        peer.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        peer.close()


def _receive_line(peer: socket.socket) -> Message:
    """Receive one line; empty if it is too long, not JSON or does not come."""
    data = b""
    try:
        while not data.endswith(b"\n") and len(data) <= _LONGEST_LINE:
            received = peer.recv(4096)
            if not received:
                break
            data += received
        message = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


class Connections:
    """The connections of this process: those of process 0 with all others, else that with it."""

    # Nothing is sent. The operating system closes them when a process ends, however it ends. That
    # is a hint and not a proof: networks close some too.

    def __init__(self, sockets: Mapping[int, socket.socket], coordinator: tuple[str, int]):
        self._sockets, self._coordinator = dict(sockets), coordinator
        for one in self._sockets.values():
            one.settimeout(None)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):
                    with contextlib.suppress(OSError):  # it may not be a TCP connection
                        one.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        os.register_at_fork(after_in_child=self._close)  # a child would keep them open

    def _close(self) -> None:
        """Close this end of all connections."""
        for one in self._sockets.values():
            one.close()
        self._sockets = {}

    def closed(self) -> set[int]:
        """Return the processes whose connections are closed."""
        waiter = select.poll()
        numbers = {one.fileno(): index for index, one in self._sockets.items()}
        for number in numbers:
            waiter.register(number, select.POLLIN)  # nothing is sent: only an end can be read
        return {numbers[number] for number, _ in waiter.poll(0)}

    def wait_for_end(self, index: int) -> None:
        """Wait until the connection with a process is closed."""
        with contextlib.suppress(OSError):
            self._sockets[index].recv(1)

    def coordinator_answers(self) -> bool:
        """Check that a process listens at the coordinator's address, and continues to."""
        for _ in range(_ASKED):
            try:
                socket.create_connection(self._coordinator, timeout=_ANSWER_SECONDS).close()
            except OSError:
                return False
            time.sleep(_PAUSE)
        return True
