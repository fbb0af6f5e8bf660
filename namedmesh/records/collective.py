"""Collective: one communication of a planned program."""

from __future__ import annotations

from dataclasses import dataclass

from namedmesh.dims.hop import Hop
from namedmesh.errors.source import Source

# How often each byte of a buffer passes through a device's link, by the usual algorithms: a ring
# for gathers and reductions, pairs of devices for AllToAll. An AllReduce is a ReduceScatter and an
# AllGather.
_PASSES = {"AllGather": 1, "AllReduce": 2, "AllToAll": 1, "ReduceScatter": 1}


def count_passes(kind: str) -> int:
    """Return how often the bytes of a buffer pass through a device's link."""
    return _PASSES.get(kind, 1)


def count_wire_bytes(kind: str, bytes: int, devices: int) -> int:
    """Count what one device sends, by the usual algorithm of a collective."""
    if kind not in _PASSES:
        return bytes
    return _PASSES[kind] * bytes * (devices - 1) // devices


@dataclass(frozen=True)
class Collective:
    """One communication that a plan has, and that an Artifact's manifest records.

    Attributes:
        kind: `AllReduce`, `AllGather`, `ReduceScatter`, `AllToAll` or `CollectivePermute`.
        axes: The mesh axes along which devices communicate.
        elements: What one device sends or receives each time, whichever is more.
        dtype: The dtype of the elements.
        bytes: The same in bytes.
        times: How often it runs in one step; a loop of unknown length counts as one iteration.
        tensor: The name of the tensor that is communicated.
        op: The name that the plan has for the op it belongs to.
        phase: `forward`, `backward` or `update`.
        source: The user's line that asks for it.
        devices: How many devices communicate with each other.
        open_ended: Whether a loop of unknown length runs it, so that `times` is per iteration of
        it.
        scope: The scopes that the op was made in, such as `encoder/attention`.
        producer: The name that the plan has for the op that makes the tensor.
        times_outside: How often it would run outside the loop in which its tensor never changes; 0
            where that is not so.
        hop: Who sends to whom, where an op sends to its neighbours by a CollectivePermute.
        host_bytes: What all devices of one host send to other hosts, each time.
        slice_bytes: What all devices of one slice send to other slices, each time.
    """

    kind: str
    axes: tuple[str, ...]
    elements: int
    dtype: str
    bytes: int
    times: int
    tensor: str
    op: str
    phase: str
    source: Source
    devices: int
    open_ended: bool = False
    scope: str = ""
    producer: str = ""
    times_outside: int = 0
    hop: Hop | None = None
    host_bytes: int = 0
    slice_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes per device over all its executions in one step."""
        return self.bytes * self.times

    @property
    def wire_bytes(self) -> int:
        """What one device sends each time, by the usual algorithm."""
        return count_wire_bytes(self.kind, self.bytes, self.devices)

    @property
    def total_wire_bytes(self) -> int:
        """What one device sends over all its executions in one step."""
        return self.wire_bytes * self.times

    @property
    def total_host_bytes(self) -> int:
        """What one host sends to others over all its executions in one step."""
        return self.host_bytes * self.times

    @property
    def total_slice_bytes(self) -> int:
        """What one slice sends to others over all its executions in one step."""
        return self.slice_bytes * self.times


def format_times(times: int, open_ended: bool) -> str:
    """Format how often a collective runs."""
    return f"{times} per iteration" if open_ended else str(times)
