"""Bounds: lower bounds of a layout's time and memory, and an estimate, before it is planned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import or_

import numpy as np
from numpy.typing import NDArray

from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.source import Source
from namedmesh.hardware.hardware import Hardware
from namedmesh.records.collective import Collective
from namedmesh.records.crossing import count_crossing_bytes
from namedmesh.search.facts import ProgramFacts, Role, Roles

Array = NDArray[np.float64]
GATHERS = 2.0  # collectives that gather parameters of the same dimensions, at least
PROBE = 10**9  # bytes, of which the time of one byte is taken


@dataclass(frozen=True)
class Bound:
    """For every choice of sizes: lower bounds of a layout's time and memory."""

    least_seconds: Array
    least_bytes: Array
    seconds: Array  # an estimate rather than a bound


class Bounds:
    """The bounds of one program's layouts."""

    def __init__(
        self,
        facts: ProgramFacts,
        hardware: Hardware,
        devices: int,
        blocks: Mapping[str, int] | None = None,
    ):
        self._facts, self._hardware, self._devices = facts, hardware, devices
        self._blocks = tuple((blocks or {}).items())
        work = [one.seconds for one in facts.work]
        self._seconds = np.array(work) * (devices if hardware.shared else 1)
        self._state_bytes = _row(one.bytes for one in facts.state if not one.at_rest)
        self._resting_bytes = _row(one.bytes for one in facts.state if one.at_rest)
        self._history_bytes = _row(one.bytes for one in facts.histories)
        self._hits: dict[tuple[str, Role], Array] = {}

    def of(self, use: Sequence[Roles], rest: Sequence[Roles], sizes: Array) -> Bound:
        """Bound layouts of as many axes each."""
        logs = np.log2(sizes).T
        # An op is split by no more devices than the axes of its dimensions have, in use or at rest.
        both = [tuple(map(or_, *layouts)) for layouts in zip(use, rest, strict=True)]
        seconds = self._seconds @ self._shares("work", both, logs)
        least = self._seconds @ self._shares("any work", both, logs)
        state = self._state_bytes @ self._shares("state", use, logs)
        state += self._resting_bytes @ self._shares("resting", rest, logs)
        kept = self._history_bytes @ self._shares("histories", use, logs)
        gradients, sums = self._sum_seconds(use, logs)
        gathered = self._gather_seconds(use, rest, logs) * (1 - self._hardware.overlap)
        moved = self._move_seconds(use, logs) + gathered
        return Bound(least + gradients, state + kept, seconds + sums + moved)

    def _split(self, table: str, layouts: Sequence[Roles]) -> Array:
        """Return which rows of a table each axis of each layout splits."""
        hits = [[self._hit(table, role) for role in roles] for roles in layouts]
        return np.array(hits).swapaxes(1, 2)

    def _shares(self, table: str, layouts: Sequence[Roles], logs: Array) -> Array:
        """Return one device's share of each row, for every layout and choice of sizes."""
        return np.exp2(-(self._split(table, layouts) @ logs))

    def _hit(self, table: str, role: Role) -> Array:
        """Return which rows of a table an axis of a role splits."""
        if (table, role) not in self._hits:
            self._hits[table, role] = _row(bool(dims & role) for dims in self._dims[table])
        return self._hits[table, role]

    @cached_property
    def _dims(self) -> dict[str, list[frozenset[str]]]:
        """The dimensions of each row of each table."""
        facts = self._facts
        return {
            "work": [one.dims for one in facts.work],
            "any work": [one.dims | one.renamed for one in facts.work],
            "state": [one.dims for one in facts.state if not one.at_rest],
            "resting": [one.dims for one in facts.state if one.at_rest],
            "parameters": [one.dims for one in facts.parameters],
            "histories": [one.dims for one in facts.histories],
            "summed": [one.summed for one in facts.sums],
            "kept": [one.kept for one in facts.sums],
            "firm": [one.firm for one in facts.sums],
            "moved": [one.dims for one in facts.moves],
            "taken": [one.taken for one in facts.moves],
            "left": [one.dims - one.taken for one in facts.moves],
        }

    def _sum_seconds(self, use: Sequence[Roles], logs: Array) -> tuple[Array, Array]:
        """Bound the exposed time of reducing gradients, and estimate that of all sums."""
        summed, kept = self._split("summed", use), self._split("kept", use)
        size = _column(one.bytes for one in self._facts.sums)
        count = _column(one.count for one in self._facts.sums)
        gradient = np.array([one.gradient for one in self._facts.sums], bool)
        behind, beside = self._hardware.overlap, self._hardware.product_overlap
        exposed = 1 - np.where(gradient, behind, beside)[:, None]
        parts = summed * (1 - kept)  # along these axes devices have parts for certain
        sent = size * np.exp2(-(kept @ logs))
        least = self._time("ReduceScatter", parts @ logs, sent)[:, gradient].sum(1)
        # Along those that a kept dimension wants too, parts are scattered.
        scattered = summed * kept * (1 - self._split("firm", use))
        sent = size * np.exp2(-((kept - scattered) @ logs))
        about = self._time("AllReduce", parts @ logs, sent, count)
        about += self._time("ReduceScatter", scattered @ logs, sent, count)
        return least * (1 - max(behind, beside)), (about * exposed).sum(1)

    def _gather_seconds(self, use: Sequence[Roles], rest: Sequence[Roles], logs: Array) -> Array:
        """Estimate the time of gathering parameters that rest in smaller shards."""
        used, resting = self._split("parameters", use), self._split("parameters", rest)
        size = _column(one.bytes for one in self._facts.parameters) * np.exp2(-(used @ logs))
        return self._time("AllGather", (resting * (1 - used)) @ logs, size, GATHERS).sum(1)

    def _move_seconds(self, use: Sequence[Roles], logs: Array) -> Array:
        """Estimate the time of moving axes from one dimension to another."""
        group = (self._split("taken", use) * self._split("left", use)) @ logs
        size = _column(one.bytes for one in self._facts.moves) * self._shares("moved", use, logs)
        count = _column(one.count for one in self._facts.moves)
        return self._time("AllToAll", group, size, count).sum(1)

    def _time(self, kind: str, group: Array, size: Array, count: Array | float = 0.0) -> Array:
        """Return the seconds of collectives by the logarithm of the devices, bytes and count."""
        devices = np.rint(np.exp2(group)).astype(np.int64)
        # A table by the number of devices: there are few of them, and millions of groups.
        present = np.zeros(self._devices + 1, bool)
        present[devices] = True
        of_byte, of_none = np.zeros(len(present)), np.zeros(len(present))
        args = (self._hardware, self._devices, kind, self._blocks)
        for n in np.flatnonzero(present).tolist():
            of_byte[n], of_none[n] = _rate(*args, n)
        seconds = of_byte[devices] * size
        return seconds + of_none[devices] * count if np.any(count) else seconds


def _row(sizes: Iterable[int]) -> Array:
    """Return sizes as one row."""
    return np.array([*sizes], np.float64)


def _column(sizes: Iterable[int]) -> Array:
    """Return sizes as a column."""
    return _row(sizes)[:, None]


@lru_cache(maxsize=1024)
def _rate(
    hardware: Hardware, devices: int, kind: str, blocks: tuple[tuple[str, int], ...], group: int
) -> tuple[float, float]:
    """Return the seconds of one byte and of none, in groups of neighbouring devices."""
    if group == 1:
        return 0.0, 0.0
    axes = {"outer": max(1, devices // group), "inner": group}
    try:
        mesh = Mesh(None, **axes, **dict(blocks))
    except NamedMeshError:  # such a group is not made of neighbours
        mesh = Mesh(None, **axes)
    probes = (make_probe(kind, size, ("inner",), mesh) for size in (PROBE, 0))
    whole, none = (hardware.network.seconds(probe, mesh, {}) for probe in probes)
    return (whole - none) / PROBE, none


def make_probe(kind: str, size: int, axes: tuple[str, ...], mesh: Mesh) -> Collective:
    """Make a collective of no program, whose time can be asked for."""
    host = count_crossing_bytes(kind, size, axes, mesh, mesh.hosts)
    slice_ = count_crossing_bytes(kind, size, axes, mesh, mesh.slices)
    facts = (kind, axes, size // 4, "float32", size, 1, "", "", "forward", Source("", 0))
    return Collective(*facts, devices=mesh.size(axes), host_bytes=host, slice_bytes=slice_)
