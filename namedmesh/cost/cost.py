"""nm.cost: the seconds and the memory that a plan takes on some hardware."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from textwrap import shorten
from typing import Any, NamedTuple

from namedmesh.cost.estimator import Estimator, OpCost
from namedmesh.cost.live_ranges import PeakMemory
from namedmesh.display.html import html_block, html_table, html_text
from namedmesh.display.text import columns, format_seconds, human
from namedmesh.errors.errors import NamedMeshError, check_word
from namedmesh.errors.mistakes import Explained
from namedmesh.errors.source import Source
from namedmesh.hardware.assignment import traffic_of
from namedmesh.hardware.hardware import Hardware
from namedmesh.hardware.leaving import Link, advise, list_links, tabulate_links
from namedmesh.ir.format import format_value
from namedmesh.planning.plan import Plan
from namedmesh.records.collective import Collective, format_times

MOST = 10  # rows of a table
LONGEST_LINE = 48  # letters of a line of code
_SECONDS = ("seconds", "least_seconds", "compute_seconds", "collective_seconds")
_OVERLAPPED = ("serial_seconds", "exposed_seconds")


@dataclass(frozen=True, eq=False)
class CollectiveCost:
    """A planned collective, and the seconds it takes each time."""

    collective: Collective
    seconds: float

    @property
    def total_seconds(self) -> float:
        """The seconds it takes in one step."""
        return self.seconds * self.collective.times


class _Table(NamedTuple):
    """The largest rows of a table, and how many of what there are in all."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    count: int
    noun: str

    @property
    def rest(self) -> str:
        """Say how many rows are left out."""
        return f"and {self.count - MOST} more {self.noun}" if self.count > MOST else ""


@dataclass(frozen=True, eq=False, repr=False)
class Cost(Explained):
    """The time and memory of a step of a plan on some hardware, estimated without compiling.

    Attributes:
        plan: The plan.
        hardware: The hardware.
        ops: Every op that takes time, in order; `times` says how often those in loops run.
        collectives: Every collective of a step, in order.
        memory: The most memory that a device needs. Of CPUs it is not estimated
            (`memory.estimated` is False): it is what the plan's tensors take, not the compiler.

    Example:
        >>> import namedmesh as nm
        >>> B = nm.Dimension("batch", 4096)
        >>> program = nm.trace(lambda x: nm.sum(x * x), x=nm.spec([B]))
        >>> cost = nm.cost(nm.plan(program, nm.Mesh(data=4), "batch:data"), "h200")
        >>> [(one.op.kind, one.bytes) for one in cost.ops]  # x is read, the sum written
        [('sum', 4100)]
        >>> cost
        Cost(<lambda> on Mesh(data=4), h200: 13 us a step, 4.0 KiB of 131.3 GiB)
    """

    plan: Plan
    hardware: Hardware
    ops: tuple[OpCost, ...]
    collectives: tuple[CollectiveCost, ...]
    memory: PeakMemory

    @cached_property
    def compute_seconds(self) -> float:
        """The seconds of all ops, one after the other."""
        return sum(one.total_seconds for one in self.ops)

    @cached_property
    def collective_seconds(self) -> float:
        """The seconds of all collectives, one after the other."""
        return sum(one.total_seconds for one in self.collectives)

    @property
    def seconds(self) -> float:
        """The seconds of a step, with the overlap that the hardware's schedulers reach."""
        return self.compute_seconds + self.exposed_seconds

    @property
    def serial_seconds(self) -> float:
        """The seconds of a step if communication does not overlap with compute."""
        return self.compute_seconds + self.collective_seconds

    @property
    def least_seconds(self) -> float:
        """The seconds of a step if all communication overlaps with compute."""
        return max(self.compute_seconds, self.collective_seconds)

    @cached_property
    def exposed_seconds(self) -> float:
        """The seconds of collectives that a scheduler is expected not to hide behind ops."""
        hardware, weights, waiting = self.hardware, 0.0, 0.0
        network, mesh = hardware.network, self.plan.mesh
        for one in self.collectives:
            # Between slices gradients are added up after the loops that could hide it.
            apart = network.block == "slice" and network.leaving_bytes(one.collective, mesh)
            if self._is_of_weights(one.collective) and not apart:
                weights += one.total_seconds
                continue
            beside = one.collective.kind in ("AllGather", "AllReduce", "ReduceScatter")
            hidden = hardware.product_overlap if beside else 0.0
            waiting += one.total_seconds * (1.0 - hidden)
        exposed = waiting + weights - min(weights * hardware.overlap, self.compute_seconds)
        # There is no more to hide behind than ops.
        return max(exposed, self.collective_seconds - self.compute_seconds)

    def _is_of_weights(self, one: Collective) -> bool:
        """Return True for a gather of a parameter, or a sum of its gradient."""
        return one.tensor.removeprefix("d_") in self.plan.program.parameters

    @cached_property
    def flops(self) -> float:
        """The floating point operations of one device in one step."""
        return sum(one.flops * one.times for one in self.ops)

    @property
    def mfu(self) -> float:
        """The share of the device's peak FLOP/s that the step uses, at `seconds`."""
        peak = max(self.hardware.divide(self.plan.mesh.devices).flops.values())
        return self.flops / (self.seconds * peak) if self.seconds else 0.0

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The bytes along each set of axes, and the links they take; () in one node or slice."""
        placed, network = (self.plan.collectives, self.plan.mesh), self.hardware.network
        return list_links(*placed, network) if network.count_blocks(placed[1]) > 1 else ()

    @cached_property
    def advice(self) -> str | None:
        """The order of the mesh's axes in which much less would leave a node, slice or host."""
        return advise(self.plan.collectives, self.plan.mesh, self.hardware.network)

    def summary(self) -> dict[str, Any]:
        """Return the target, seconds and memory, as a saved plan has them."""
        seconds = {name: getattr(self, name) for name in _SECONDS}
        memory = self.memory.peak_bytes if self.memory.estimated else None
        return {"target": str(self.hardware), **seconds, "memory": memory}

    def to_json(self) -> dict[str, Any]:
        """Return the cost as values that JSON has.

        Example:
            >>> import namedmesh as nm
            >>> B = nm.Dimension("batch", 1024)
            >>> program = nm.trace(lambda x: nm.sum(x), x=nm.spec([B]))
            >>> cost = nm.cost(nm.plan(program, nm.Mesh(data=4), "batch:data"), "h200")
            >>> sorted(cost.to_json())[:4]
            ['advice', 'collective_seconds', 'collectives', 'compute_seconds']
        """
        of_op = ("name", "phase", "scope", "times", "flops", "bytes", "seconds", "bound")
        of_collective = ("kind", "tensor", "op", "phase", "times", "bytes")
        memory = self.memory
        return {
            "program": self.plan.program.name,
            "hardware": self.hardware.name,
            "mesh": self.plan.mesh.to_json(),
            "layout": self.plan.layout.text,
            **{name: getattr(self, name) for name in (*_SECONDS, *_OVERLAPPED, "flops", "mfu")},
            "ops": [{"kind": one.op.kind, **_describe(one, of_op)} for one in self.ops],
            "collectives": [
                {
                    "axes": list(one.collective.axes),
                    "seconds": one.seconds,
                    **_describe(one.collective, of_collective),
                }
                for one in self.collectives
            ],
            "links": [{**vars(one), "axes": list(one.axes)} for one in self.links],
            "advice": self.advice,
            "memory": {
                **vars(memory),
                "alive": [_describe(one, vars(one)) for one in memory.alive],
                "timeline": [list(one) for one in memory.timeline],
            },
        }

    def __str__(self) -> str:
        parts = [self._title, "\n".join(columns([*self._totals.items()]))]
        for table in self._tables:
            lines = columns([table.head, *table.rows])
            parts.append("\n".join([*lines, *([f"  {table.rest}"] if table.rest else [])]))
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        times = f"{format_seconds(self.seconds)} a step"
        memory = f"{human(self.memory.peak_bytes)} of {human(self.hardware.memory_bytes)}"
        if not self.memory.estimated:
            memory = "memory not estimated"
        return f"Cost({self._place}: {times}, {memory})"

    def _repr_html_(self) -> str:
        parts = [html_table(("", ""), [*self._totals.items()])]
        for table in self._tables:
            numbers = ("in one step", "times", "FLOPs", "bytes")
            parts += [html_table(table.head, table.rows, numbers), html_text(table.rest)]
        return html_block(self._title, *parts)

    @property
    def _title(self) -> str:
        return f"cost of {self._place}, layout {self.plan.layout.text!r}"

    @property
    def _place(self) -> str:
        return f"{self.plan.program.name} on {self.plan.mesh}, {self.hardware}"

    @property
    def _totals(self) -> dict[str, str]:
        memory = self.memory
        size = human(memory.peak_bytes)
        if memory.estimated:
            size = f"{size} of {human(self.hardware.memory_bytes)}"
        else:
            size = f"not estimated, step.report has it; the plan's tensors take {size}"
        totals = {
            "step": f"{format_seconds(self.seconds)}: {format_seconds(self.least_seconds)} if "
            "all communication overlaps with compute, "
            f"{format_seconds(self.serial_seconds)} if none does",
            "compute": f"{format_seconds(self.compute_seconds)}, "
            f"{self.flops / 1e12:,.3g} TFLOPs on each device",
            "collectives": f"{format_seconds(self.collective_seconds)}, "
            f"{format_seconds(self.exposed_seconds)} of them exposed",
            "MFU": f"{self.mfu:.1%}",
            "memory": f"{size}, of which {human(memory.kept_bytes)} are inputs and state",
        }
        return {**totals, **({"warning": self.advice} if self.advice else {})}

    @property
    def _tables(self) -> list[_Table]:
        """The ops and collectives that take longest, and the largest tensors at the peak."""
        ops, collectives, memory = [], [], self.memory
        for one in sorted(self.ops, key=lambda one: -one.total_seconds)[:MOST]:
            time, size = format_seconds(one.total_seconds), human(one.bytes)
            cells = (one.name, time, str(one.times), one.bound, f"{one.flops:.3g}", size)
            ops.append((*cells, _format_line(one.source)))
        for cost in sorted(self.collectives, key=lambda one: -one.total_seconds)[:MOST]:
            one, time = cost.collective, format_seconds(cost.total_seconds)
            cells = (one.kind, time, format_times(one.times, one.open_ended), "+".join(one.axes))
            collectives.append((*cells, one.tensor, human(one.bytes), _format_line(one.source)))
        held = memory.alive[:MOST]
        alive = [(one.label, human(one.bytes), one.place, str(one.source)) for one in held]
        of_op = ("op", "in one step", "times", "bound by", "FLOPs", "bytes", "line")
        of_collective = ("collective", "in one step", "times", "axes", "tensor", "bytes", "line")
        at = f" (during {memory.at})" if memory.at else ""
        of_tensor = (f"at the peak{at}", "bytes", "sharding", "line")
        sent, *links = tabulate_links(self.links, self.hardware.network.block)
        tables = [
            _Table(of_op, ops, len(self.ops), "ops"),
            _Table(of_collective, collectives, len(self.collectives), "collectives"),
            _Table(sent, links[:MOST], len(links), "sets of axes"),
            _Table(of_tensor, alive, len(memory.alive), "tensors"),
        ]
        return [table for table in tables if table.rows or table.head is of_tensor]


def _describe(record: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return some fields of a record as JSON has them, and its line."""
    return {**{name: getattr(record, name) for name in names}, "source": str(record.source)}


def _format_line(source: Source) -> str:
    """Format a line of the user's, shortened to fit beside the other cells."""
    return f"{source}: {shorten(source.code, LONGEST_LINE, placeholder=' ...')}"


def cost(plan: Plan, target: str | os.PathLike | Hardware, *, precision: str = "default") -> Cost:
    """Estimate how long a step of a plan takes on some hardware, and how much memory.

    Every op takes as long as its arithmetic or its memory traffic, whichever is more, and every
    collective as long as the busiest link carries data, plus latency. Nothing is compiled and no
    device is needed. Memory is estimated for TPUs and GPUs; of CPUs the cost has what the plan's
    tensors take, and says so.

    Args:
        plan: The plan.
        target: `tpu-v2` to `tpu-v7x`, a slice such as `tpu-v3:4x4` or two, `tpu-v5e:4x4:2`; `h100`
            or another GPU, nodes of it such as `h100:32x8`, `cpu`, the path of a YAML file, or a
            Hardware.
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
            f"nm.cost: {format_value(plan)} is not a plan",
            fix="give what nm.plan returns, or step.plan",
        )
    check_word("precision", precision, ("default", "high", "highest"))
    hardware = target if isinstance(target, Hardware) else Hardware.parse(target)
    if plan.mesh.devices > 1:
        hardware.network.count_blocks(plan.mesh)  # raises if it has other devices
    estimator = Estimator(plan, hardware.divide(plan.mesh.devices), precision)
    program = plan.program
    donated = {tensor: program.variables[name].tensor for name, tensor in program.updates.items()}
    outputs = (*program.outputs, *program.updates.values())
    occupancy = estimator.walk(program.ops, outputs, 1, donated)
    traffic = traffic_of(plan.collectives)
    collectives = tuple(
        CollectiveCost(one, hardware.network.seconds(one, plan.mesh, traffic))
        for one in plan.collectives
    )
    memory = estimator.describe_memory(occupancy)
    return Cost(plan, hardware, tuple(estimator.ops), collectives, memory)
