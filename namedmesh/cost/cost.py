"""nm.cost: the seconds and the memory that a plan takes on some hardware."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import shorten
from typing import Any

from namedmesh.cost.estimator import Estimator, OpCost
from namedmesh.cost.live_ranges import PeakMemory
from namedmesh.display.text import columns, human
from namedmesh.errors.errors import NamedMeshError, check_word
from namedmesh.errors.source import Source
from namedmesh.hardware.hardware import Hardware
from namedmesh.ir.format import format_value
from namedmesh.planning.plan import Plan
from namedmesh.records.collective import Collective, format_times


@dataclass(frozen=True, eq=False)
class CollectiveCost:
    """How long a collective takes.

    Attributes:
        collective: The collective, as planned.
        seconds: How long it takes, each time.
    """

    collective: Collective
    seconds: float

    @property
    def total_seconds(self) -> float:
        """How long it takes in one step."""
        return self.seconds * self.collective.times


MOST = 10  # rows of a table
LONGEST_LINE = 48  # letters of a line of code


def format_seconds(seconds: float) -> str:
    """Format a time in the largest unit that keeps it above one."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def format_cost(
    title: str,
    totals: Mapping[str, str],
    ops: Sequence[OpCost],
    collectives: Sequence[CollectiveCost],
    memory: PeakMemory,
) -> str:
    """Format totals, the ops and collectives that take longest, and what memory holds."""
    parts = [title, "\n".join(columns([*totals.items()]))]
    if ops:
        parts.append(_format_ops(ops))
    if collectives:
        parts.append(_format_collectives(collectives))
    return "\n\n".join([*parts, _format_memory(memory)])


def _format_ops(ops: Sequence[OpCost]) -> str:
    """The ops that take longest."""
    rows = [("op", "in one step", "times", "bound by", "FLOPs", "bytes", "line")]
    for one in sorted(ops, key=lambda one: -one.total_seconds)[:MOST]:
        line = _format_line(one.source)
        sizes = (f"{one.flops:.3g}", human(one.bytes))
        time = format_seconds(one.total_seconds)
        rows.append((one.name, time, str(one.times), one.bound, *sizes, line))
    return "\n".join([*columns(rows), *_count_rest(len(ops), "ops")])


def _format_collectives(collectives: Sequence[CollectiveCost]) -> str:
    """The collectives that take longest."""
    rows = [("collective", "in one step", "times", "axes", "tensor", "bytes", "line")]
    for cost in sorted(collectives, key=lambda one: -one.total_seconds)[:MOST]:
        one = cost.collective
        line = _format_line(one.source)
        times = format_times(one.times, one.open_ended)
        sizes = ("+".join(one.axes), one.tensor, human(one.bytes))
        rows.append((one.kind, format_seconds(cost.total_seconds), times, *sizes, line))
    return "\n".join([*columns(rows), *_count_rest(len(collectives), "collectives")])


def _format_memory(memory: PeakMemory) -> str:
    """What memory holds at the peak."""
    at = f" (during {memory.at})" if memory.at else ""
    rows = [(f"at the peak{at}", "bytes", "dims with the axes they hold", "line")]
    for one in memory.alive[:MOST]:
        rows.append((one.label, human(one.bytes), one.place, str(one.source)))
    return "\n".join([*columns(rows), *_count_rest(len(memory.alive), "tensors")])


def _format_line(source: Source) -> str:
    """A line of the user's, shortened to fit beside the other cells."""
    return f"{source}: {shorten(source.code, LONGEST_LINE, placeholder=' ...')}"


def _count_rest(count: int, what: str) -> list[str]:
    """A line that says how many rows a table leaves out."""
    return [f"  and {count - MOST} more {what}"] if count > MOST else []


PRECISIONS = ("default", "high", "highest")


@dataclass(frozen=True, eq=False)
class Cost:
    """What a step of a plan takes on some hardware, estimated before anything is compiled.

    Attributes:
        plan: The plan.
        hardware: The hardware.
        ops: Every op that takes time, in order; those in loops say how often they run.
        collectives: Every collective of a step, in order.
        memory: The most memory that a device needs.

    Example:
        >>> import namedmesh as nm
        >>> B = nm.Dimension("batch", 4096)
        >>> program = nm.trace(lambda x: nm.sum(x * x), x=nm.spec([B]))
        >>> cost = nm.cost(nm.plan(program, nm.Mesh(data=4), "batch:data"), "h200")
        >>> [(one.op.kind, one.bytes) for one in cost.ops]  # x is read, the sum written
        [('sum', 4100)]
        >>> cost.least_seconds <= cost.seconds
        True
    """

    plan: Plan
    hardware: Hardware
    ops: tuple[OpCost, ...]
    collectives: tuple[CollectiveCost, ...]
    memory: PeakMemory

    @cached_property
    def compute_seconds(self) -> float:
        """What all ops take, one after the other."""
        return sum(one.total_seconds for one in self.ops)

    @cached_property
    def collective_seconds(self) -> float:
        """What all collectives take, one after the other."""
        return sum(one.total_seconds for one in self.collectives)

    @property
    def seconds(self) -> float:
        """The step, if nothing is sent while something is computed."""
        return self.compute_seconds + self.collective_seconds

    @property
    def least_seconds(self) -> float:
        """The step, if all that can be sent while something is computed is."""
        return max(self.compute_seconds, self.collective_seconds)

    @cached_property
    def flops(self) -> float:
        """The floating point operations of one device in one step."""
        return sum(one.flops * one.times for one in self.ops)

    @property
    def mfu(self) -> float:
        """The share of the device's fastest products that the step makes use of, at `seconds`."""
        peak = max(self.hardware.divide(self.plan.mesh.devices).flops.values())
        return self.flops / (self.seconds * peak) if self.seconds else 0.0

    def summary(self) -> dict[str, Any]:
        """Return the target, seconds and memory, as a saved plan has them."""
        return {
            "target": str(self.hardware),
            "seconds": self.seconds,
            "least_seconds": self.least_seconds,
            "compute_seconds": self.compute_seconds,
            "collective_seconds": self.collective_seconds,
            "memory": self.memory.peak_bytes,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the cost as values that JSON has.

        Example:
            >>> import namedmesh as nm
            >>> B = nm.Dimension("batch", 1024)
            >>> program = nm.trace(lambda x: nm.sum(x), x=nm.spec([B]))
            >>> cost = nm.cost(nm.plan(program, nm.Mesh(data=4), "batch:data"), "h200")
            >>> sorted(cost.to_json())[:4]
            ['collective_seconds', 'collectives', 'compute_seconds', 'flops']
        """
        return {
            "program": self.plan.program.name,
            "hardware": self.hardware.name,
            "mesh": self.plan.mesh.to_json(),
            "layout": self.plan.layout.text,
            "seconds": self.seconds,
            "least_seconds": self.least_seconds,
            "compute_seconds": self.compute_seconds,
            "collective_seconds": self.collective_seconds,
            "flops": self.flops,
            "mfu": self.mfu,
            "ops": [
                {
                    "name": one.name,
                    "kind": one.op.kind,
                    "phase": one.phase,
                    "scope": one.scope,
                    "source": str(one.source),
                    "times": one.times,
                    "flops": one.flops,
                    "bytes": one.bytes,
                    "seconds": one.seconds,
                    "bound": one.bound,
                }
                for one in self.ops
            ],
            "collectives": [
                {
                    "kind": one.collective.kind,
                    "axes": list(one.collective.axes),
                    "tensor": one.collective.tensor,
                    "op": one.collective.op,
                    "phase": one.collective.phase,
                    "source": str(one.collective.source),
                    "times": one.collective.times,
                    "bytes": one.collective.bytes,
                    "seconds": one.seconds,
                }
                for one in self.collectives
            ],
            "memory": {
                "peak_bytes": self.memory.peak_bytes,
                "at": self.memory.at,
                "kept_bytes": self.memory.kept_bytes,
                "alive": [{**vars(one), "source": str(one.source)} for one in self.memory.alive],
                "timeline": [list(one) for one in self.memory.timeline],
            },
        }

    def __str__(self) -> str:
        plan, hardware = self.plan, self.hardware
        totals = {
            "step": f"{format_seconds(self.least_seconds)} if all communication overlaps with "
            f"compute, {format_seconds(self.seconds)} if none does",
            "compute": f"{format_seconds(self.compute_seconds)}, "
            f"{self.flops / 1e12:,.3g} TFLOPs on each device",
            "collectives": format_seconds(self.collective_seconds),
            "MFU": f"{self.mfu:.1%} without overlap",
            "memory": f"{human(self.memory.peak_bytes)} of {human(hardware.memory_bytes)}, "
            f"of which {human(self.memory.kept_bytes)} are inputs and state",
        }
        title = f"cost of {plan.program.name} on {plan.mesh}, {hardware}, "
        title += f"layout {plan.layout.text!r}"
        return format_cost(title, totals, self.ops, self.collectives, self.memory)


def cost(plan: Plan, target: str | os.PathLike | Hardware, *, precision: str = "default") -> Cost:
    """Estimate how long a step of a plan takes on some hardware, and how much memory.

    Every op takes as long as its arithmetic or its memory traffic, whichever is more, and every
    collective as long as the busiest link carries data, plus latency. What runs within another op
    is not written to memory. Nothing is compiled and no device is needed.

    Args:
        plan: The plan.
        target: `tpu-v2` to `tpu-v6e`, a slice such as `tpu-v3:4x4`, `h100`, `h200`, `a100`, `cpu`,
            the path of a YAML file, or a Hardware.
        precision: That of matrix products, as `nm.export` has it.

    Returns:
        The cost; prints as a table.

    Raises:
        NamedMeshError: There is no such hardware, or it does not have the mesh's devices.

    Example:
        >>> import namedmesh as nm
        >>> B, M, H = nm.dims("batch=1024 model=4096 hidden=4096")
        >>> def step(x):
        ...     return nm.einsum([x, nm.param("w", [M, H], dtype="bfloat16")], [B, H])
        >>> program = nm.trace(step, x=nm.spec([B, M], "bfloat16"))
        >>> cost = nm.cost(nm.plan(program, nm.Mesh(data=8), "batch:data"), "h200")
        >>> cost.ops[0].bound
        'memory'
    """
    if not isinstance(plan, Plan):
        raise NamedMeshError(
            f"nm.cost: {format_value(plan)} is not a plan", fix="give what nm.plan returns"
        )
    check_word("precision", precision, PRECISIONS)
    hardware = target if isinstance(target, Hardware) else Hardware.parse(target)
    estimator = Estimator(plan, hardware.divide(plan.mesh.devices), precision)
    program = plan.program
    donated = {tensor: program.variables[name].tensor for name, tensor in program.updates.items()}
    outputs = (*program.outputs, *program.updates.values())
    occupancy = estimator.walk(program, program.ops, outputs, 1, donated)
    traffic: Counter[tuple[str, ...]] = Counter()
    for one in plan.collectives:
        traffic[one.axes] += one.total_bytes
    collectives = tuple(
        CollectiveCost(one, hardware.network.seconds(one, plan.mesh, traffic))
        for one in plan.collectives
    )
    memory = estimator.describe_memory(occupancy)
    return Cost(plan, hardware, tuple(estimator.ops), collectives, memory)
