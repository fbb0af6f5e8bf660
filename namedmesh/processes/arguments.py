"""The arguments of start_processes, completed from the environment and checked."""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass

from namedmesh.errors.errors import NamedMeshError, whole_number

COORDINATOR, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
BIND, DEVICES = "JAX_COORDINATOR_BIND_ADDRESS", "NAMEDMESH_DEVICES"
TOKEN = "NAMEDMESH_TOKEN"  # a secret of all processes of one program
SERVICE = "NAMEDMESH_SERVICE"  # the address of jax's service, if the launcher has started it
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
    timeout: float
    heartbeat: float

    @property
    def missing(self) -> list[str]:
        """The arguments of start_processes that are needed and not known."""
        return [name for name in NEEDED if getattr(self, name) is None]

    def complete(self) -> ProcessArguments:
        """Return these arguments, checked; those not given come from the environment."""
        return dataclasses.replace(
            self,
            coordinator=_text("coordinator", self.coordinator, COORDINATOR),
            count=_number("count", self.count, COUNT, 1),
            index=_number("index", self.index, INDEX, 0),
            devices=_number("devices", self.devices, DEVICES, 1),
            bind=_text("bind", self.bind, BIND),
            method=_text("method", self.method, None),
            timeout=math.ceil(self.timeout),
            heartbeat=math.ceil(self.heartbeat),
        ).checked()

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
        if self.bind is None:
            return self
        bare = ":" not in self.bind or (self.bind.startswith("[") and self.bind.endswith("]"))
        bind = f"{self.bind}:{port}" if bare else self.bind
        split_address(bind, "bind")
        return dataclasses.replace(self, bind=bind)


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
