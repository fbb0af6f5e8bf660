"""Live ranges: the buffers that a device holds while each op runs, and the most at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from namedmesh.cost.fusion import Buffer, FusedBody, Run
from namedmesh.display.text import human
from namedmesh.errors.source import Source
from namedmesh.ir.tensor import Tensor


@dataclass(frozen=True)
class Alive:
    """A tensor that takes memory at the peak."""

    label: str  # its name
    bytes: int  # its bytes on one device
    source: Source  # the user's line that made it
    place: str  # its dtype and dimensions with their axes


@dataclass(frozen=True, repr=False)
class PeakMemory:
    """The most memory that one device needs, and when."""

    peak_bytes: int  # the most that is held at once
    at: str  # the plan's name of the op during which it is
    kept_bytes: int  # inputs and state, which are held throughout
    alive: tuple[Alive, ...]  # the tensors held at the peak, the largest first
    # For each op in order its name and the bytes that are held while it runs.
    timeline: tuple[tuple[str, int], ...]
    # False where all of this is about the plan's tensors alone, as for CPUs: their compiler takes
    # another order, copies operands of products and collectives, and reserves more, or less.
    estimated: bool = True

    def __repr__(self) -> str:
        kept = f"{human(self.kept_bytes)} of inputs and state"
        if not self.estimated:
            return f"PeakMemory(not estimated; tensors of {human(self.peak_bytes)}, {kept})"
        return f"PeakMemory({human(self.peak_bytes)} during {self.at or 'nothing'}, {kept})"


@dataclass
class _Range:
    """One buffer: its bytes, and the first and the last run that it is held for."""

    buffer: Buffer
    bytes: int
    first: int
    last: int


@dataclass
class Occupancy:
    """The memory that a body's runs hold beyond the body's inputs."""

    body: FusedBody
    ranges: list[_Range] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)  # while each run runs, without inner bodies
    inner: dict[int, Occupancy] = field(default_factory=dict)  # the largest body inside a run
    peak: int = -1  # the run at which most is held; -1 if nothing runs
    peak_bytes: int = 0  # with inner bodies

    def find_alive(self) -> list[tuple[Buffer, int]]:
        """Return the buffers at the peak, those inside loops included."""
        held = [
            (one.buffer, one.bytes) for one in self.ranges if one.first <= self.peak <= one.last
        ]
        if self.peak >= 0:
            held += self.body.runs[self.peak].beside.items()
        inside = self.inner.get(self.peak)
        return held + (inside.find_alive() if inside else [])

    def find_peak(self) -> Run | None:
        """Return the run during which the peak is reached, the innermost one."""
        if self.peak < 0:
            return None
        inside = self.inner.get(self.peak)
        return (inside.find_peak() if inside else None) or self.body.runs[self.peak]

    def walk(self, below: int) -> list[tuple[Run, int]]:
        """Return every run with the bytes that are held while it runs, iterations once."""
        steps = []
        for i, (run, held) in enumerate(zip(self.body.runs, self.totals, strict=True)):
            if i in self.inner:
                steps += self.inner[i].walk(below + held)
            steps.append((run, below + held))
        return steps


def measure_body(
    body: FusedBody,
    homes: Mapping[Tensor, Tensor | None],
    inner: Mapping[int, Occupancy],
    shared: Mapping[Tensor, Tensor],
) -> Occupancy:
    """Find the live ranges of a body's buffers."""
    # A buffer lives from the run that writes it to the last that reads it. Elementwise ops write
    # over an operand of the same size that nothing reads later; new state takes the memory of old
    # state, a loop's carry that of the iteration before, and what a loop stacks has its place in
    # the stack.
    runs, end = body.runs, len(body.runs)
    last: dict[Buffer, int] = {}
    for i, run in enumerate(runs):
        last.update(dict.fromkeys(run.reads, i))
    wanted = {body.resolve(tensor) for tensor in body.outputs}
    ranges: dict[Buffer, _Range] = {}

    def reuse_operand(run: Run, i: int, buffer: Buffer, size: int) -> None:
        """End the range of an operand whose memory a result reuses: nothing reads it later."""
        operands: Sequence[Buffer] = list(run.reads) if run.op.elementwise else []
        if isinstance(buffer, Tensor) and buffer in shared:
            operands = [body.resolve(shared[buffer])]
        for other in operands:
            one = ranges.get(other)
            if one is None or other in wanted or one.bytes != size:
                continue
            if one.first < i == one.last == last.get(other):
                one.last = i - 1
                return

    for i, run in enumerate(runs):
        for buffer, size in run.reads.items():
            if not isinstance(buffer, Tensor) and buffer not in ranges:
                ranges[buffer] = _Range(buffer, size, i, last[buffer])
        for buffer, size in run.writes.items():
            until = end if buffer in wanted else last.get(buffer, i)
            if isinstance(buffer, Tensor) and buffer in homes:
                home = homes[buffer]
                if buffer not in last or (home is not None and last.get(home, -1) <= i):
                    continue  # it is written where it stays
            if buffer in body.plan.program.on_host:
                continue
            reuse_operand(run, i, buffer, size)
            ranges[buffer] = _Range(buffer, size, i, until)
    changes = [0] * (end + 2)
    for one in ranges.values():
        if one.last >= one.first:
            changes[one.first] += one.bytes
            changes[one.last + 1] -= one.bytes
    totals = list(accumulate(changes))[:end]
    totals = [total + sum(run.beside.values()) for total, run in zip(totals, runs, strict=True)]
    held = [total + (inner[i].peak_bytes if i in inner else 0) for i, total in enumerate(totals)]
    peak = max(range(end), key=held.__getitem__, default=-1)
    return Occupancy(
        body, list(ranges.values()), totals, dict(inner), peak, held[peak] if held else 0
    )
