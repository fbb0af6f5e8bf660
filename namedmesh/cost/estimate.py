"""nm.cost: the seconds and the memory that a plan takes on some hardware."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from namedmesh.cost.estimator import Estimator
from namedmesh.cost.live_ranges import PeakMemory
from namedmesh.cost.op_cost import CollectiveCost, OpCost
from namedmesh.cost.table import format_cost, format_seconds
from namedmesh.display.text import human
from namedmesh.errors.errors import NamedMeshError, check_word
from namedmesh.hardware.hardware import Hardware
from namedmesh.ir.format import format_value
from namedmesh.planning.plan import Plan

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
