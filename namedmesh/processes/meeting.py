"""The handshake of processes before jax connects them, over connections that stay open.

jax.distributed ends a process without an exception when others do not come, come twice or count
differently. So process 0 first hears a line from each of the others, and answers what is wrong.
With NAMEDMESH_TOKEN, both prove that they know it: the line of a stranger counts for nothing."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import select
import selectors
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.processes.arguments import TOKEN, ProcessArguments, split_address

_LONGEST_LINE = 2**16  # bytes; an answer names processes
_PATIENCE = 5.0  # seconds for a line of a peer that has connected
_MOMENT = 0.2  # seconds between two looks at who is late
_HELLO = ("index", "count", "versions", "nonce")
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


@dataclass
class _Guest:
    """A connection that has not introduced itself: until when it may, and what it has sent."""

    deadline: float
    nonce: str
    data: bytes = b""


def _answer_all(arguments: ProcessArguments, own: Message) -> Outcome:
    """Hear all other processes, side by side, and answer them; on process 0."""
    assert arguments.count is not None
    present, peers = {0: own}, []
    answer, strangers = _answer(""), 0
    deadline = time.monotonic() + arguments.timeout
    with _listen(arguments) as listener, _Guests(listener) as guests:
        while len(peers) < arguments.count - 1 and time.monotonic() < deadline:
            for peer, nonce, hello in guests.hear(deadline):
                if hello.get("proof") != _prove(nonce, f"process {hello['index']}"):
                    strangers += 1  # whatever it says counts for nothing
                    _send(peer, _refuse_stranger(str(arguments.coordinator)))
                    peer.close()
                    continue
                peers.append((peer, hello["index"], hello["nonce"]))
                if not answer["problem"]:
                    answer = _compare(hello, present, arguments.count)
                    present.setdefault(hello["index"], hello)
                    if answer["problem"]:  # those that come soon get the answer too
                        deadline = min(deadline, time.monotonic() + _LATE)
    if not answer["problem"]:
        answer = _name_missing(present, arguments, strangers)
    for peer, _, nonce in peers:
        _send(peer, answer | {"proof": _prove(nonce, answer["problem"])})
    return answer, {index: peer for peer, index, _ in peers}


def _prove(nonce: str, text: str) -> str:
    """Prove that this process knows the secret of its program, without telling it."""
    secret = os.environ.get(TOKEN, "")
    return hmac.new(secret.encode(), f"{nonce} {text}".encode(), "sha256").hexdigest()


def _refuse_stranger(where: str) -> Message:
    """Answer a process that does not know the secret, or whose process 0 does not."""
    return _answer(
        f"this process and the one that listens at {where} have other secrets",
        fix=f"give {TOKEN} the same value in all processes, or leave it out in all; start them "
        "with namedmesh launch on one machine",
    )


class _Guests:
    """Connections that are heard side by side: one that is silent holds up nobody."""

    def __init__(self, listener: socket.socket):
        self._listener, self._guests = listener, dict[socket.socket, _Guest]()
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> _Guests:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        for guest in list(self._guests):
            self._forget(guest).close()
        self._selector.close()

    def _forget(self, guest: socket.socket) -> socket.socket:
        self._selector.unregister(guest)
        del self._guests[guest]
        return guest

    def hear(self, deadline: float) -> Iterator[tuple[socket.socket, str, Message]]:
        """Wait a moment; yield those that have introduced themselves, with what they were asked."""
        left = max(0.0, deadline - time.monotonic())
        for key, _ in self._selector.select(min(left, _MOMENT)):
            peer = key.fileobj
            assert isinstance(peer, socket.socket)
            if peer is self._listener:
                self._accept()
                continue
            guest = self._guests.get(peer)
            if guest is None:
                continue  # it was closed in favour of one that has just come
            try:
                received = peer.recv(4096)
            except OSError:
                received = b""
            guest.data += received
            if received and len(guest.data) <= _LONGEST_LINE and guest.data[-1:] != b"\n":
                continue
            self._forget(peer)
            hello = _parse_line(guest.data)
            if [type(hello.get(name)) for name in _HELLO] == [int, int, str, str]:
                peer.settimeout(_PATIENCE)
                yield peer, guest.nonce, hello
            else:
                peer.close()
        for peer, guest in list(self._guests.items()):
            if guest.deadline < time.monotonic():
                self._forget(peer).close()

    def _accept(self) -> None:
        """Take a connection and ask it; in the place of the oldest if there are too many."""
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        if len(self._guests) >= _MOST:
            self._forget(next(iter(self._guests))).close()
        peer.setblocking(False)
        guest = _Guest(time.monotonic() + _PATIENCE, secrets.token_hex(16))
        self._guests[peer] = guest
        self._selector.register(peer, selectors.EVENT_READ)
        _send(peer, {"nonce": guest.nonce}, close=False)


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


def _name_missing(present: dict[int, Message], arguments: ProcessArguments, strangers: int) -> Any:
    """Answer which processes have not come in time, if any."""
    missing = [str(one) for one in range(arguments.count or 0) if one not in present]
    if not missing:
        return _answer("")
    verb = "has" if len(missing) == 1 else "have"
    some = missing if len(missing) < 10 else [*missing[:8], f"{len(missing) - 8} more"]
    return _answer(
        f"{name_all('process', some, 'processes')} of {arguments.count} {verb} not come to "
        f"{arguments.coordinator} within {arguments.timeout} seconds",
        *[f"{strangers} came with another {TOKEN}"] * (strangers > 0),
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
            asked = _receive_line(host, min(deadline, time.monotonic() + _PATIENCE))
            nonce = secrets.token_hex(16)
            proof = _prove(str(asked.get("nonce")), f"process {arguments.index}")
            _send(host, hello | {"nonce": nonce, "proof": proof})
            answer = _receive_line(host, deadline + _PATIENCE)
            if isinstance(answer.get("problem"), str):
                if answer.get("proof") != _prove(nonce, answer["problem"]):
                    answer = _refuse_stranger(str(arguments.coordinator))
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


def _send(peer: socket.socket, message: Message, close: bool = True) -> None:
    """Send one line; close the connection if the peer is gone."""
    try:
        peer.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        if close:
            peer.close()


def _receive_line(peer: socket.socket, deadline: float) -> Message:
    """Receive one line; empty if it is too long, not JSON or does not come in time."""
    data = b""
    with contextlib.suppress(OSError):
        while not data.endswith(b"\n") and len(data) <= _LONGEST_LINE:
            peer.settimeout(max(0.01, deadline - time.monotonic()))
            received = peer.recv(4096)
            if not received:
                break
            data += received
    return _parse_line(data)


def _parse_line(data: bytes) -> Message:
    """Return the message of a line; empty if it is not one."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
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
        os.register_at_fork(after_in_child=self.close)  # a child would keep them open

    def close(self) -> None:
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
