"""Copies of the state in the memory of this process and of the next one, to go on without a disk.

Each process copies the shards that it would write to a checkpoint, and sends them to the next one,
while the steps go on. The copies outlive the program where the launcher runs it again in the same
Python: who was lost gets its shards, and whatever else it needs, from those that live."""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import math
import secrets
import socket
import socketserver
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from namedmesh.errors.errors import NamedMeshError
from namedmesh.processes.arguments import split_address
from namedmesh.processes.launched import tell_launcher
from namedmesh.processes.processes import Processes, current_run, next_round
from namedmesh.runtime import Executable, State
from namedmesh.training.checkpoint_files import Record, decode_record, encode_record, shorten_error
from namedmesh.training.chunks import (
    ArrayTarget,
    Bounds,
    StoredArray,
    describe_arrays,
    shard_bounds,
    shards_to_write,
)
from namedmesh.training.guards import UnsoundState
from namedmesh.training.restoring import Checkpoint, restore_record, restore_together
from namedmesh.training.saved_variables import describe_state
from namedmesh.training.saving import (
    PEER_SECONDS,
    DeviceShard,
    HostMemory,
    HostShard,
)

_CONNECT = 30.0
_WHAT = "copies of the state"


@dataclass(frozen=True)
class _Shard:
    """A copied shard: its place in the whole array, the checksum of its bytes, and these."""

    name: str
    bounds: Bounds
    checksum: int
    values: np.ndarray


@dataclass(frozen=True)
class _Part:
    """The shards that one of so many processes has copied."""

    record: bytes
    count: int
    shards: list[_Shard]

    def describe(self) -> dict[str, Any]:
        """Describe the part to another process."""
        rows = [(one.name, one.bounds, one.checksum, one.values.nbytes) for one in self.shards]
        return {"record": self.record.decode(), "count": self.count, "shards": rows}


@dataclass
class _Memory:
    """The parts that this process holds, by step and process; they outlive a run of the program."""

    run: int
    parts: dict[int, dict[int, _Part]] = field(default_factory=dict)
    _free: list[np.ndarray] = field(
        default_factory=list
    )  # taken again: to touch fresh memory is slow
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, count: int) -> np.ndarray:
        """Take memory for so many bytes."""
        with self._lock:
            sizes = [one.nbytes for one in self._free]
            if count in sizes:
                return self._free.pop(sizes.index(count))
        return np.empty(count, np.uint8)

    def forget(self, steps: Iterable[int]) -> None:
        """Take back the memory of copies."""
        for part in [part for step in steps for part in self.parts.pop(step).values()]:
            with self._lock:
                self._free += [shard.values for shard in part.shards]


_memories: dict[int, _Memory] = {}  # by the number of the run of steps in its program


class _Server(socketserver.ThreadingTCPServer):
    """Takes parts from the process before, and gives shards to those that ask."""

    daemon_threads, allow_reuse_address = True, True

    def __init__(self, host: str, secret: str, memory: _Memory):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.secret, self.memory = secret, memory
        super().__init__((host, 0), _Answers)
        threading.Thread(target=self.serve_forever, name="copies", daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a peer that is gone."""


class _Answers(socketserver.StreamRequestHandler):
    """One connection with another process."""

    server: _Server
    timeout = _CONNECT  # of whoever has not told the secret

    def handle(self) -> None:
        """Answer requests, a line each, if the secret comes first."""
        if not hmac.compare_digest(self.rfile.readline(100).strip(), self.server.secret.encode()):
            return
        self.connection.settimeout(PEER_SECONDS)
        held = self.server.memory
        while line := self.rfile.readline():
            request = json.loads(line)
            step, part = request["step"], request["part"]
            if request["kind"] == "put":
                received = []
                for name, bounds, checksum, count in request["shards"]:
                    values = held.take(count)
                    _fill(self.rfile, values)
                    received.append(_Shard(name, bounds, checksum, values))
                kept = _Part(request["record"].encode(), request["count"], received)
                held.parts.setdefault(step, {})[part] = kept
                self.wfile.write(b"kept\n")
            elif request["kind"] == "describe":
                text = json.dumps(held.parts[step][part].describe())
                self.wfile.write(text.encode() + b"\n")
            else:
                self.wfile.write(held.parts[step][part].shards[request["shard"]].values.data)


def _fill(file: Any, values: np.ndarray) -> None:
    """Read bytes until an array is full."""
    view = values.data
    while view:
        count = file.readinto(view)
        if not count:
            raise ConnectionError("the process is gone")
        view = view[count:]


class _Peer:
    """A connection with the server of another process."""

    def __init__(self, address: Sequence[Any]):
        host, port, secret = address
        self._socket = socket.create_connection((host, port), _CONNECT)
        self._socket.settimeout(PEER_SECONDS)
        self._file = self._socket.makefile("rb")
        self._socket.sendall(f"{secret}\n".encode())

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()

    def ask(self, kind: str, step: int, part: int, **more: Any) -> None:
        """Send a request."""
        text = json.dumps({"kind": kind, "step": step, "part": part, **more})
        self._socket.sendall(text.encode() + b"\n")

    def describe(self, step: int, part: int) -> dict[str, Any]:
        """Ask what a part consists of."""
        self.ask("describe", step, part)
        return json.loads(self._file.readline())

    def fetch(self, step: int, part: int, shard: int, count: int) -> np.ndarray:
        """Ask for the bytes of a shard."""
        self.ask("get", step, part, shard=shard)
        values = np.empty(count, np.uint8)
        _fill(self._file, values)
        return values

    def put(self, step: int, number: int, part: _Part) -> None:
        """Send a part, and wait until it is kept."""
        self.ask("put", step, number, **part.describe())
        for shard in part.shards:
            self._socket.sendall(shard.values.data)
        if self._file.readline() != b"kept\n":
            raise ConnectionError("the process is gone")


class StateCopies:
    """The copies of the states of one run of steps, in all processes, which make it together."""

    def __init__(self, processes: Processes):
        self._processes, self._number = processes, next_round(_WHAT)
        self._held = _memories.setdefault(self._number, _Memory(current_run()))
        if self._held.run == current_run():  # of this run of the program: nothing was lost
            self._held.parts.clear()
        self._held.run = current_run()
        self._thread, self._error = threading.Thread(), ""
        self._reading = HostMemory(None)
        self._server: _Server | None = None
        self._holders: dict[int, int] = {}
        own: list[Any] = []
        if processes.count > 1:
            host, secret = _own_host(str(processes.coordinator)), secrets.token_hex(16)
            self._server = _Server(host, secret, self._held)
            own = [host, self._server.server_address[1], secret]
        texts = processes.exchange(_WHAT, json.dumps(own), timeout=PEER_SECONDS)
        self._addresses = [json.loads(text) for text in texts]

    def newest(self) -> int | None:
        """Return the newest step of which all parts are held by those that live."""
        held = [
            [step, i, one.count]
            for step, each in self._held.parts.items()
            for i, one in each.items()
        ]
        holders: dict[int, dict[int, int]] = {}
        counts: dict[int, int] = {}
        texts = self._processes.exchange(f"held {_WHAT}", json.dumps(held), timeout=PEER_SECONDS)
        for index, text in enumerate(texts):
            for step, number, counts[step] in json.loads(text):
                parts = holders.setdefault(step, {})
                if index == self._processes.index or number not in parts:
                    parts[number] = index
        whole = [step for step, parts in holders.items() if len(parts) == counts[step]]
        newest = max(whole, default=None)
        self._holders = {} if newest is None else holders[newest]
        # What is incomplete must not pass for parts of a later copy of that step.
        self._held.forget([step for step in self._held.parts if step != newest])
        return newest

    def restore(self, step: int, executable: Executable) -> Checkpoint:
        """Restore a state on the mesh of a program, each device its own shard."""
        where = f"the copy of step {step} in memory"
        read = functools.partial(self._restore_here, step, executable, where)
        try:
            return restore_together(self._processes, where, read)
        except NamedMeshError:
            self._held.forget([*self._held.parts])
            raise

    def _restore_here(self, step: int, executable: Executable, where: str) -> Checkpoint:
        """Restore this process's part of a state."""
        try:
            with contextlib.ExitStack() as stack:
                reader = _Reader(self._held, step, stack)
                for number, holder in self._holders.items():
                    mine = holder == self._processes.index
                    reader.add(number, None if mine else self._addresses[holder])
                record = decode_record(reader.record)
                return restore_record(record, where, executable, reader.read_arrays)
        except (OSError, ValueError, KeyError) as error:
            fix = "the last checkpoint is restored instead"
            raise NamedMeshError(
                f"{where} cannot be read: {shorten_error(error)}", fix=fix
            ) from None

    def memory_bytes(self, state: State) -> int:
        """Return the bytes of this process's copies and of its neighbour's, at most."""
        own = sum(data.nbytes for _, _, data in shards_to_write(state.arrays))
        return 2 * own * min(2, self._processes.count)

    def copy(self, step: int, state: State, extra: Mapping[str, Any]) -> None:
        """Copy a state; the next step may take it at once. Every process must call it."""
        self.wait()
        described = describe_arrays(state.arrays, describe_state(state))
        record = encode_record(Record(step, described, {}, extra))
        shards = list(shards_to_write(state.arrays))
        late = self._reading.copy_on_devices(shards)
        views: list[HostShard] = []
        if late is None:
            self._reading.read_all(shards, views.append)
        self._thread = threading.Thread(
            target=self._send, args=(step, record, views, late or []), name="copy", daemon=True
        )
        self._thread.start()

    def _send(
        self, step: int, record: bytes, views: list[HostShard], late: list[DeviceShard]
    ) -> None:
        """Keep this process's part, send it to the next one, and forget older copies."""
        own, count = self._processes.index, self._processes.count
        shards: list[_Shard] = []

        def keep(shard: HostShard) -> None:
            # In memory of our own: a view would keep the devices of a run that has ended.
            name, bounds, array = shard
            values = self._held.take(array.nbytes)
            np.copyto(values.view(array.dtype).reshape(array.shape), array)
            shards.append(_Shard(name, bounds, zlib.crc32(values.data), values))

        try:
            self._reading.read_late(late, keep)
            while views:
                keep(views.pop())
            part = _Part(record, count, shards)
            self._held.parts.setdefault(step, {})[own] = part
            if count > 1:
                with contextlib.closing(_Peer(self._addresses[(own + 1) % count])) as peer:
                    peer.put(step, own, part)
            self._processes.exchange(f"kept {_WHAT}", str(step), timeout=PEER_SECONDS)
            self._held.forget([one for one in self._held.parts if one < step])
            tell_launcher(copied=step)
        except (OSError, MemoryError, NamedMeshError, jax.errors.JaxRuntimeError) as error:
            self._error = shorten_error(error)

    def wait(self) -> None:
        """Wait until the copy under way is with the neighbour; raise if it did not get there."""
        if self._thread.ident is not None:
            self._thread.join()
        if self._error:
            raise NamedMeshError(
                f"the state could not be copied to the next process: {self._error}",
                fix="look at the output of that process, and whether this one can reach it",
            )

    def __exit__(self, kind: object, error: object, *_: object) -> None:
        """Close; what was copied stays if the run did not come to its end, and is sound."""
        self.close(forget=kind is None or isinstance(error, UnsoundState))

    def close(self, *, forget: bool = False) -> None:
        """Take no more copies; forget those that are there if the run has come to its end."""
        if self._thread.ident is not None:
            self._thread.join()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if forget:
            _memories.pop(self._number, None)


class _Reader:
    """The shards of a copied state, here and in other processes."""

    def __init__(self, held: _Memory, step: int, stack: contextlib.ExitStack):
        self._held, self._step, self._stack = held, step, stack
        self._peers: dict[str, _Peer] = {}
        self._rows: dict[str, list[tuple[Bounds, int, Callable[[], np.ndarray]]]] = {}
        self.record = b""

    def add(self, number: int, address: Sequence[Any] | None) -> None:
        """Add the part of a process, from here or from who is at an address."""
        if address is None:
            part = self._held.parts[self._step][number]
            text = part.describe()
            fetch = [lambda one=one: one.values for one in part.shards]
        else:
            key = str(address)
            if key not in self._peers:
                peer = self._stack.enter_context(contextlib.closing(_Peer(address)))
                self._peers[key] = peer
            peer = self._peers[key]
            text = peer.describe(self._step, number)
            fetch = [
                lambda i=i, row=row: peer.fetch(self._step, number, i, row[3])
                for i, row in enumerate(text["shards"])
            ]
        self.record = text["record"].encode()
        for (name, bounds, checksum, _), get in zip(text["shards"], fetch, strict=True):
            self._rows.setdefault(name, []).append((bounds, checksum, get))

    def read_arrays(self, targets: Mapping[str, ArrayTarget]) -> dict[str, jax.Array]:
        """Read arrays, each device its own shard."""
        return {name: self._read_array(name, target) for name, target in targets.items()}

    def _read_array(self, name: str, target: ArrayTarget) -> jax.Array:
        """Read an array, each device its own shard."""
        read = functools.cache(functools.partial(self._read_box, name, target.stored))
        return jax.make_array_from_callback(
            target.shape,
            target.sharding,
            lambda index: read(shard_bounds(index or (), target.shape)),
        )

    def _read_box(self, name: str, stored: StoredArray, bounds: Bounds) -> np.ndarray:
        """Read a box of an array; padding that the copied array does not have is zero."""
        dtype = jnp.dtype(stored.dtype)
        values = np.zeros([stop - start for start, stop in bounds], dtype)
        ends = zip(bounds, stored.shape, strict=True)
        missing = math.prod(min(stop, size) - min(start, size) for (start, stop), size in ends)
        for own, checksum, get in self._rows.get(name, ()):
            pairs = zip(bounds, own, strict=True)
            both = [(max(a, c), min(b, d)) for (a, b), (c, d) in pairs]
            if any(start >= stop for start, stop in both):
                continue
            data = get()
            if zlib.crc32(data.data) != checksum:
                raise ValueError(f"the bytes of {name} have changed")
            shard = data.view(dtype).reshape([stop - start for start, stop in own])
            values[_slices(both, bounds)] = shard[_slices(both, own)]
            missing -= math.prod(stop - start for start, stop in both)
        if missing:
            raise ValueError(f"a part of {name} is not there")
        return values


def _slices(box: Sequence[tuple[int, int]], outer: Bounds) -> tuple[Any, ...]:
    """Return where a box is in an array with other bounds."""
    pairs = zip(box, outer, strict=True)
    return (*(slice(a - c, b - c) for (a, b), (c, _) in pairs), ...)


def _own_host(coordinator: str) -> str:
    """Return the address of this machine on the network of the coordinator."""
    host, port = split_address(coordinator, "coordinator")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        one.connect((host, port))  # sends nothing
        return one.getsockname()[0]
