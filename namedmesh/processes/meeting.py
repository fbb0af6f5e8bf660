"""The meeting of processes before jax connects them: who comes, and whether they fit together.

jax.distributed ends a process without an exception when others do not come, come twice or count
differently. Here process 0 listens at the coordinator's address, hears one line from each of the
others, and answers all of them: what is wrong, or that nothing is. Then jax takes the address over.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from namedmesh.errors.errors import NamedMeshError, name_all
from namedmesh.processes.arguments import ProcessArguments, split_address
from namedmesh.processes.connections import Connections

_LONGEST_LINE = 2**16  # bytes; an answer names processes
_PATIENCE = 5.0  # seconds for a line of someone who has connected
_LATE = 10.0  # seconds to wait for the rest once something is wrong
Message = dict[str, Any]
Outcome = tuple[Message, dict[int, socket.socket]]  # what process 0 found, and the connections
_MOST = 256  # connections that are kept: a process may have a thousand files open
_SAME = "start every process with the same code, packages, settings and data"


def meet(arguments: ProcessArguments, versions: str) -> Connections:
    """Wait until all processes have come to the coordinator's address."""
    hello = {"index": arguments.index, "count": arguments.count, "versions": versions}
    meeting = _receive if arguments.index == 0 else _visit
    answer, sockets = meeting(arguments, hello)
    if answer["problem"]:
        for one in sockets.values():
            one.close()
        raise NamedMeshError(
            answer["problem"],
            *answer["details"],
            f"this is process {arguments.index} of {arguments.count}",
            fix=answer["fix"],
        )
    kept = {index: one for index, one in sockets.items() if one.fileno() >= 0}
    if len(kept) > _MOST:
        for one in kept.values():
            one.close()
        kept = {}
    return Connections(kept, split_address(str(arguments.coordinator), "coordinator"))


def _receive(arguments: ProcessArguments, own: Message) -> Outcome:
    """Process 0: hears all others, and tells them what it found."""
    assert arguments.count is not None
    present, guests = {0: own}, []
    answer = _answer("")
    deadline = time.monotonic() + arguments.timeout
    with _listen(arguments) as door:
        while len(guests) < arguments.count - 1 and time.monotonic() < deadline:
            guest, hello = _admit(door, deadline)
            if guest is None:
                continue
            guests.append((guest, hello["index"]))
            if not answer["problem"]:
                answer = _compare(hello, present, arguments.count)
                present.setdefault(hello["index"], hello)
                if answer["problem"]:  # the rest shall hear of it too
                    deadline = min(deadline, time.monotonic() + _LATE)
    if not answer["problem"]:
        answer = _name_missing(present, arguments)
    for guest, _ in guests:
        _say(guest, answer)
    return answer, {index: guest for guest, index in guests}


def _listen(arguments: ProcessArguments) -> socket.socket:
    """A socket on the one interface that is given."""
    bind = arguments.bind or arguments.coordinator
    host, port = split_address(str(bind), "bind")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        door = socket.socket(family, kind, protocol)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(address)
        door.listen(128)
    except OSError as error:
        raise NamedMeshError(
            f"process 0 cannot listen at {bind}: {error.strerror or error}",
            fix="use a free port and an address of the machine of process 0; if others know it by "
            "another address, give bind= its own",
        ) from None
    return door


def _admit(door: socket.socket, deadline: float) -> tuple[socket.socket | None, Message]:
    """The next one who comes in time and says who it is; others are sent away."""
    door.settimeout(max(0.01, deadline - time.monotonic()))
    try:
        guest, _ = door.accept()
    except TimeoutError:
        return None, {}
    guest.settimeout(_PATIENCE)
    hello = _hear(guest)
    numbers = [hello.get("index"), hello.get("count")]
    if all(type(one) is int for one in numbers) and isinstance(hello.get("versions"), str):
        return guest, hello
    guest.close()
    return None, {}


def _compare(hello: Message, present: dict[int, Message], count: int) -> Any:
    """What is wrong with one who came, if anything."""
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
    """What is wrong if not all came in time."""
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


def _visit(arguments: ProcessArguments, hello: Message) -> Outcome:
    """Another process: says who it is, and hears what process 0 found."""
    address = split_address(str(arguments.coordinator), "coordinator")
    deadline = time.monotonic() + arguments.timeout
    reason = "nobody listens there"
    while (left := deadline - time.monotonic()) > 0:
        try:
            host = socket.create_connection(address, timeout=left)
            _say(host, hello)
            host.settimeout(left + _PATIENCE)
            answer = _hear(host)
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
    """What process 0 tells the others; no problem means that jax may connect."""
    return {"problem": problem, "details": details, "fix": fix}


def _say(peer: socket.socket, message: Message) -> None:
    """Send one line; whoever has gone meanwhile does not matter here."""
    try:
        peer.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        peer.close()


def _hear(peer: socket.socket) -> Message:
    """One line of someone; empty if it is too long, not JSON or does not come."""
    data = b""
    try:
        while not data.endswith(b"\n") and len(data) <= _LONGEST_LINE:
            shard = peer.recv(4096)
            if not shard:
                break
            data += shard
        message = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}
