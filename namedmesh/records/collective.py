"""Collective: one communication of a planned program, the same in files, diffs, reports, audits."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from namedmesh.dims.hop import Hop
from namedmesh.errors.mistakes import Explained
from namedmesh.errors.source import Source

PHASES = ("forward", "backward", "update")
ALL_PHASES: tuple[str, ...] = (*PHASES, "init")
KINDS = ("AllGather", "AllReduce", "AllToAll", "CollectivePermute", "ReduceScatter")
REDUCING = ("AllReduce", "ReduceScatter")
REDUCTIONS = ("add", "and", "max", "min", "mul", "or")
ORDERED = ("AllGather", "AllToAll", "ReduceScatter")  # a shard's place is that of its device

# How often each byte of a buffer passes through a device's link, by the usual algorithms: a ring
# for gathers and reductions, pairs of devices for AllToAll. An AllReduce is a ReduceScatter and an
# AllGather.
_PASSES = {"AllGather": 1, "AllReduce": 2, "AllToAll": 1, "ReduceScatter": 1}


def count_passes(kind: str) -> int:
    """Return how often the bytes of a buffer pass through a device's link."""
    return _PASSES.get(kind, 1)


def count_wire_bytes(kind: str, bytes: int, devices: int) -> int:
    """Count what one device sends, by the usual algorithm of a collective."""
    if kind not in _PASSES or not devices:
        return bytes
    return _PASSES[kind] * bytes * (devices - 1) // devices


@dataclass(frozen=True)
class Collective(Explained, methods=False):
    """One communication of a step or of initialisation."""

    kind: str  # one of KINDS
    axes: tuple[str, ...]  # the mesh axes along which devices communicate
    elements: int  # of the buffer: what one device sends or receives each time, whichever is more
    dtype: str
    bytes: int  # of the same buffer
    times: int  # it runs in one step; a loop of unknown length counts as one iteration
    tensor: str  # the name of the tensor that is communicated
    op: str  # the name that the plan has for the op it belongs to
    phase: str  # one of ALL_PHASES; `unplanned` for what only a compiler has
    source: Source  # the user's line that asks for it
    devices: int  # that communicate with each other
    open_ended: bool = False  # whether a loop of unknown length runs it
    scope: str = ""  # the scopes that the op was made in, such as `encoder/attention`
    producer: str = ""  # the name that the plan has for the op that makes the tensor
    # How often it would run outside the loop in which its tensor never changes, if there is one.
    times_outside: int = 0
    hop: Hop | None = None  # who sends to whom, where an op sends to its neighbours
    reduction: str = ""  # one of REDUCTIONS; "" if it is not known, or nothing is reduced
    # The axes that number the devices of a group, the slowest first; () where any order will do.
    # Of a CollectivePermute, those that number the senders of its shards, and the receivers.
    order: tuple[str, ...] = ()
    receivers: tuple[str, ...] = ()
    host_bytes: int = 0  # what all devices of one host send to other hosts, each time
    slice_bytes: int = 0  # what all devices of one slice send to other slices, each time
    # Of each of its copies, where iterations of a loop are written out beside it: their times.
    copies: tuple[int, ...] = ()
    measured_wire_bytes: int | None = None  # where a compiler's report counted them

    @property
    def total_bytes(self) -> int:
        """Bytes per device over all its runs in one step."""
        return self.bytes * self.times

    @property
    def wire_bytes(self) -> int:
        """Bytes that one device sends each time, by the usual algorithm unless they are counted."""
        if self.measured_wire_bytes is not None:
            return self.measured_wire_bytes
        return count_wire_bytes(self.kind, self.bytes, self.devices)

    @property
    def total_wire_bytes(self) -> int:
        """Bytes that one device sends over all its runs in one step."""
        return self.wire_bytes * self.times

    @property
    def total_host_bytes(self) -> int:
        """Bytes that one host sends to others over all its runs in one step."""
        return self.host_bytes * self.times

    @property
    def total_slice_bytes(self) -> int:
        """Bytes that one slice sends to others over all its runs in one step."""
        return self.slice_bytes * self.times

    @property
    def function(self) -> str:
        """The function that its line is in."""
        return function_of(self.source)

    def split(self) -> list[Collective]:
        """Return a collective for each of its copies in the code."""
        return [replace(self, times=times, copies=()) for times in self.copies] or [self]

    def without_folder(self) -> Collective:
        """Return the collective with the name of its source's file alone, as Artifacts have it."""
        return replace(self, source=without_folder(self.source))


def without_folder(source: Source) -> Source:
    """Return a source line by the name of its file alone."""
    return Source(os.path.basename(source.file), source.line)


def function_of(source: Source) -> str:
    """Return the name of the function that a line is in, as a person writes it."""
    return source.function.replace("<locals>.", "")


def format_times(times: int, open_ended: bool) -> str:
    """Format how often a collective runs."""
    return f"{times} per iteration" if open_ended else str(times)
