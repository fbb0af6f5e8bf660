"""The arguments of start_processes, completed from the environment and checked."""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass

from namedmesh.errors.errors import NamedMeshError, whole_number

COORDINATOR, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
BIND, DEVICES = "JAX_COORDINATOR_BIND_ADDRESS", "NAMEDMESH_DEVICES"
NEEDED = ("coordinator", "count", "index")  # to connect
_MOST = 2**20  # processes of one program, and virtual devices of one process


@dataclass(frozen=True)
class ProcessArguments:
    """The arguments of start_processes; None where they are not known yet."""

    coordinator: str | None
    count: int | None
    index: int | None
    devices: int | None
    bind: str | None
    method: str | None
    timeout: int
    heartbeat: int

    @property
    def missing(self) -> list[str]:
        """The arguments of start_processes that are needed and not known."""
        return [name for name in NEEDED if getattr(self, name) is None]

    def checked(self) -> ProcessArguments:
        """Return these arguments, bind= with a port; raise if they contradict each other."""
        if self.count is not None and self.index is not None and self.index >= self.count:
            raise NamedMeshError(
                f"process {self.index} of {self.count}: the index is too large",
                fix=f"number the processes from 0 to {self.count - 1}",
            )
        if self.coordinator is None:
            return self
        _, port = split_address(self.coordinator, "coordinator")
        bind = None if self.bind is None else _with_port(self.bind, port)
        return dataclasses.replace(self, bind=bind)


def read_arguments(
    coordinator: object,
    count: object,
    index: object,
    devices: object,
    bind: object,
    method: object,
    timeout: object,
    heartbeat: object,
) -> ProcessArguments:
    """Check the arguments of start_processes, and read those not given from the environment."""
    return ProcessArguments(
        coordinator=_text("coordinator", coordinator, COORDINATOR),
        count=_number("count", count, COUNT, 1),
        index=_number("index", index, INDEX, 0),
        devices=_number("devices", devices, DEVICES, 1),
        bind=_text("bind", bind, BIND),
        method=_text("method", method, None),
        timeout=math.ceil(check_seconds("timeout", timeout)),
        heartbeat=math.ceil(check_seconds("heartbeat", heartbeat)),
    ).checked()


def split_address(address: str, what: str) -> tuple[str, int]:
    """Split an address into host and port."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if bracketed else host
    right = bool(colon and plain) and port.isascii() and port.isdigit()
    if not right or not 0 < int(port[:6]) < 2**16 or (":" in plain and not bracketed):
        raise NamedMeshError(
            f"{what} {address!r} is not an address with a port",
            fix="write host:port, e.g. 10.0.0.1:8476, with an IPv6 host in brackets",
        )
    return plain, int(port)


def _with_port(interface: str, port: int) -> str:
    """Return an interface as an address, with the coordinator's port if it has none."""
    bare = ":" not in interface or (interface.startswith("[") and interface.endswith("]"))
    address = f"{interface}:{port}" if bare else interface
    split_address(address, "bind")
    return address


def _text(name: str, value: object, variable: str | None) -> str | None:
    """Return a text from an argument or else from the environment."""
    if value is None and variable:
        name, value = variable, os.environ.get(variable) or None
    if value is None:
        return None
    if not isinstance(value, str) or not value or " " in value:
        raise NamedMeshError(
            f"{name}={value!r} is not a word", fix="give a string, e.g. '10.0.0.1:8476'"
        )
    return value


def _number(name: str, value: object, variable: str, least: int) -> int | None:
    """Return a whole number from an argument or else from the environment."""
    if value is None:
        text = os.environ.get(variable)
        if not text:
            return None
        name, value = variable, int(text) if text.isascii() and text.isdigit() else text
    number = whole_number(value)
    if number is None or not least <= number <= _MOST:
        raise NamedMeshError(
            f"{name}={value!r} is not a whole number from {least} to {_MOST}",
            fix=f"set {name} to such a number, or leave it out",
        )
    return number


def check_seconds(name: str, value: object) -> float:
    """Return a time in seconds, or raise."""
    if isinstance(value, int | float) and 0 < value <= 10**6:
        return float(value)
    raise NamedMeshError(
        f"{name}={value!r} is not a time", fix="give seconds as a positive number, e.g. 60"
    )
