"""Collectives of a Llama-style layer under ten layouts, beside the least that each needs.

For every layout: what the plan has and what the compiler made for one layer, forward and backward
(half of the difference between stacks of four and of two layers), on 8 virtual CPU devices or
fewer, by GSPMD and by Shardy; the bytes that one device sends; and the minimum, by the counts of
Megatron-LM and FSDP.

python -m benchmarks.llama_plans --json OUT
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from absl import app

import namedmesh as nm
from benchmarks.llama import Llama
from benchmarks.result import publish
from namedmesh.lowering.export import export_planned
from namedmesh.runtime import Executable

LLAMA = Llama.of()
B, ROW, S, M, H, N = LLAMA.B, LLAMA.ROW, LLAMA.S, LLAMA.M, LLAMA.H, LLAMA.N
R, D, E, C = LLAMA.R, LLAMA.D, LLAMA.E, LLAMA.C
PARTITIONERS = ("gspmd", "shardy")
MICRO = nm.Dimension("micro", 4)
FLOAT = 4
ATTENTION = FLOAT * (2 * M.size * N.size * R.size * D.size + 2 * M.size * N.size * D.size)
FEED_FORWARD = FLOAT * 3 * M.size * H.size
NORMS = FLOAT * 2 * M.size
WEIGHTS = ATTENTION + FEED_FORWARD + NORMS
ACTIVATIONS = FLOAT * B.size * S.size * M.size
KEYS = FLOAT * B.size * S.size * N.size * D.size
ROUTER = FLOAT * M.size * E.size
EXPERT_BUFFERS = FLOAT * E.size * B.size * C.size * M.size


def gather(size: float, devices: int) -> float:
    """Return the bytes that one device sends in an AllGather, a ReduceScatter or an AllToAll."""
    return size * (devices - 1) / devices


def reduce(size: float, devices: int) -> float:
    """Return the bytes that one device sends in an AllReduce."""
    return 2 * gather(size, devices)


@dataclass(frozen=True)
class Case:
    """A layout, and the least bytes that one device has to send for a layer under it."""

    mesh: str
    layout: str
    minimum: float
    why: str
    params: str | None = None
    micro: bool = False
    second: Callable[[nm.Tensor], nm.Tensor] = field(default=LLAMA.feed_forward)


CASES = {
    "dp": Case(
        "data=8", "batch:data", reduce(WEIGHTS, 8), "every gradient is added up over the batch"
    ),
    "tp": Case(
        "tensor=4",
        "head:tensor, hidden:tensor",
        4 * reduce(ACTIVATIONS, 4),
        "two sums of activations forward, two backward (Megatron-LM)",
    ),
    "tp+sp": Case(
        "tensor=4",
        "head:tensor, hidden:tensor, row:tensor",
        8 * gather(ACTIVATIONS, 4) + reduce(NORMS, 4),
        "each of those as ReduceScatter and AllGather; scales of norms see a part of the rows",
    ),
    "fsdp": Case(
        "data=8",
        "batch:data",
        3 * gather(WEIGHTS, 8),
        "weights gathered forward and backward, gradients scattered (ZeRO-3)",
        params="model:data",
    ),
    "fsdp+tp": Case(
        "data=2, tensor=4",
        "batch:data, head:tensor, hidden:tensor",
        3 * gather((WEIGHTS - NORMS) / 4 + NORMS, 2) + 4 * reduce(ACTIVATIONS / 2, 4),
        "a quarter of the weights as under fsdp, half of the rows as under tp",
        params="head:tensor, hidden:tensor, model:data",
    ),
    "cp": Case(
        "context=4",
        "row:context, seq:context",
        4 * gather(KEYS, 4) + reduce(WEIGHTS, 4),
        "keys and values gathered, their gradients scattered; gradients of weights added up",
    ),
    "dp+cp": Case(
        "data=2, context=4",
        "batch:data, row:context, seq:context",
        4 * gather(KEYS / 2, 4) + reduce(WEIGHTS, 8),
        "as cp for half of the batch; gradients of weights added up once over both axes",
    ),
    "accumulation dp": Case(
        "data=8",
        "batch:data",
        reduce(WEIGHTS, 8),
        "parts of gradients are added up over four microbatches, then over the devices, once",
        micro=True,
    ),
    "accumulation fsdp": Case(
        "data=8",
        "batch:data",
        MICRO.size * 3 * gather(WEIGHTS, 8),
        "no device ever has all of a stack, so that every microbatch is as fsdp",
        params="model:data",
        micro=True,
    ),
    "ep": Case(
        "data=8",
        "batch:data, expert:data",
        4 * gather(EXPERT_BUFFERS / 8, 8) + reduce(ATTENTION + NORMS + ROUTER, 8),
        "to the experts and back, forward and backward; what is not an expert is as dp",
        second=LLAMA.mix_experts,
    ),
}


def trace_stack(case: Case, layers: int) -> nm.Program:
    """Trace loss and gradients of a stack, of one batch or added up over microbatches."""
    L = nm.Dimension("layer", layers)

    def loss_and_gradients(x: nm.Tensor) -> tuple[nm.Tensor, dict[str, nm.Tensor]]:
        def iteration(x: nm.Tensor, _: None) -> tuple[nm.Tensor, None]:
            return LLAMA.layer(x, case.second), None

        y, _ = nm.scan(iteration, x, over=L, stack=True)
        loss = nm.sum(y * y) * (1 / y.shape.elements)
        return loss, nm.grad(loss)

    program = nm.trace(loss_and_gradients, x=nm.spec([B, ROW, M]))
    if not case.micro:
        return program
    shapes = {name: variable.shape for name, variable in program.parameters.items()}

    def accumulate(x: nm.Tensor) -> Any:
        def iteration(sums: Any, x: nm.Tensor) -> tuple[Any, None]:
            total, gradients = sums
            loss, more = loss_and_gradients(x)
            return (total + loss, {name: gradients[name] + more[name] for name in more}), None

        zeros = {name: nm.zeros(shape) for name, shape in shapes.items()}
        return nm.scan(iteration, (0.0, zeros), x, over=MICRO)[0]

    return nm.trace(accumulate, x=nm.spec([MICRO, B, ROW, M]))


def measure_layer(case: Case) -> dict[str, Any]:
    """Plan and compile stacks of two and of four layers, and take half of the difference."""
    planned: Counter[str] = Counter()
    made: dict[str, Counter[str]] = {name: Counter() for name in PARTITIONERS}
    wire, exact = 0.0, True
    rules: set[str] = set()
    for layers, sign in ((4, 0.5), (2, -0.5)):
        program = trace_stack(case, layers)
        plan = nm.plan(program, nm.Mesh.parse(case.mesh), case.layout, params=case.params)
        wire += sign * plan.total_wire_bytes()
        for one in plan.collectives:
            planned[one.kind] += sign * one.times  # type: ignore[assignment]
        artifact = export_planned(plan)
        for partitioner in PARTITIONERS:
            audit = Executable(artifact, partitioner=partitioner).audit
            exact = exact and audit.exact
            rules |= {*audit.rules}
            for one, compiled in audit.matched:
                made[partitioner][one.kind] += sign * compiled.times  # type: ignore[assignment]
    return {
        "layout": case.layout,
        "params": case.params,
        "mesh": case.mesh,
        "planned": _by_kind(planned),
        "made": _by_kind(made["gspmd"]),
        "made_by_shardy": _by_kind(made["shardy"]),
        "as_planned": exact and all(one == planned for one in made.values()),
        "rules": sorted(rules),
        "wire_bytes": wire,
        "minimum": case.minimum,
        "wire_bytes_to_minimum": wire / case.minimum,
        "why": case.why,
    }


def _by_kind(counts: Counter[str]) -> dict[str, float]:
    """Group values by kind."""
    return {kind: count for kind, count in sorted(counts.items()) if count}


def main(_: list[str]) -> None:
    """Measure every layout."""
    publish({name: measure_layer(case) for name, case in CASES.items()})


if __name__ == "__main__":
    app.run(main)
