"""The estimate of a plan's time and memory, as data for a page."""

from __future__ import annotations

from typing import Any

from namedmesh.cost.estimate import Cost
from namedmesh.report.plan_data import PlanData, make_columns


def describe_cost(cost: Cost, data: PlanData) -> dict[str, Any]:
    """Describe an estimate by the numbers that a page has for ops, texts and lines."""
    hardware = cost.hardware.divide(cost.plan.mesh.devices)
    fastest = sorted(hardware.flops.items(), key=lambda one: -one[1])
    names = ("op", "times", "flops", "bytes", "seconds", "bound")
    ops = [
        (data.ops[one.op], one.times, one.flops, one.bytes, one.seconds, int(one.bound == "memory"))
        for one in cost.ops
    ]
    return {
        "target": str(cost.hardware.name),
        "rates": [[dtype, rate] for dtype, rate in fastest],
        "bandwidth": hardware.memory_bandwidth,
        "capacity": hardware.memory_bytes,
        "seconds": cost.seconds,
        "least": cost.least_seconds,
        "ops": make_columns(names, ops),
        "collectives": [one.seconds for one in cost.collectives],
        "memory": _describe_memory(cost, data),
    }


def _describe_memory(cost: Cost, data: PlanData) -> dict[str, Any]:
    """What a device keeps while each op runs, and what it is made of at the peak."""
    memory = cost.memory
    return {
        "peak": memory.peak_bytes,
        "at": memory.at,
        "kept": memory.kept_bytes,
        "timeline": {
            "op": [data.texts.add(name) for name, _ in memory.timeline],
            "bytes": [size for _, size in memory.timeline],
        },
        "alive": [
            {
                "label": one.label,
                "bytes": one.bytes,
                "place": one.place,
                "line": data.line(one.source),
                "tensor": data.find_tensor(one.label, one.place),
            }
            for one in memory.alive
        ],
    }
