"""Train steps of two small models in several layouts, estimated and measured on CPU devices.

Eight virtual devices share the cores of one host, so what differs between layouts is what is
computed or kept twice, and what collectives copy.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import namedmesh as nm
from namedmesh.layers import Sgd, moe, rms_norm, top_k_gating

B, S, T, M, H = nm.dims("batch=16 seq=64 key_seq=64 model=128 hidden=512")
N, D = nm.dims("head=8 depth=16")
E, C, L = nm.dims("expert=8 capacity=16 layer=2")


def attend(x: nm.Tensor) -> nm.Tensor:
    """Attention of every token to all of its row."""
    q, k, v = (nm.einsum([x, nm.param(f"w{name}", [M, N, D])], [B, S, N, D]) for name in "qkv")
    k, v = (nm.rename(one, S, T) for one in (k, v))
    weights = nm.softmax(nm.einsum([q, k], [B, N, S, T]) * D.size**-0.5, over=T)
    mixed = nm.einsum([weights, v], [B, S, N, D])
    return nm.einsum([mixed, nm.param("wo", [N, D, M])], [B, S, M])


def feed_forward(x: nm.Tensor) -> nm.Tensor:
    """Return two products with a ReLU between them."""
    inner = nm.relu(nm.einsum([x, nm.param("wi", [M, H])], [B, S, H]))
    return nm.einsum([inner, nm.param("wd", [H, M])], [B, S, M])


def mix_experts(x: nm.Tensor) -> nm.Tensor:
    """Return a mixture of experts, two for each token; the rows of a batch are its groups."""
    gate = lambda logits: top_k_gating(logits, S, E, C, second="all")
    return moe(x, gate, (B, S, E, C, M, H))[0]


def trace(second: Callable[[nm.Tensor], nm.Tensor]) -> nm.Program:
    """Trace the train step of a stack of layers."""

    def layer(x: nm.Tensor, _: Any) -> tuple[nm.Tensor, None]:
        for name, part in (("attention", attend), ("second", second)):
            with nm.scope(name):
                x = x + part(rms_norm(x, M))
        return x, None

    def train(x: nm.Tensor) -> nm.Tensor:
        y, _ = nm.scan(layer, x, over=L, stack=True)
        loss = nm.mean(y * y)
        Sgd(1e-3).apply(nm.grad(loss))
        return loss

    return nm.trace(train, x=nm.spec([B, S, M]))


MODELS = {"dense": feed_forward, "mixture": mix_experts}
# A mesh, a layout, and a layout of parameters at rest.
LAYOUTS: dict[str, Sequence[tuple[str, str, str | None]]] = {
    "dense": [
        ("data=8", "batch:data", None),
        ("data=8", "batch:data", "model:data"),
        ("data=8", "", None),
        ("data=8", "seq:data", None),
        ("model=8", "hidden:model, head:model", None),
        ("model=8", "hidden:model", None),
        ("data=4 model=2", "batch:data, hidden:model, head:model", None),
        ("data=2 model=4", "batch:data, hidden:model, head:model", None),
        ("data=4 model=2", "batch:data", None),
        ("data=2 model=4", "batch:data, hidden:model", "model:data"),
        ("data=2 model=4", "batch:data, seq:model", None),
        ("data=4 model=2", "batch:data, seq:model", "model:data"),
    ],
    "mixture": [
        ("data=8", "batch:data, expert:data", None),
        ("data=8", "batch:data", None),
        ("data=8", "batch:data", "hidden:data, model:data"),
        ("data=8", "expert:data", None),
        ("data=8", "", None),
        ("data=4 model=2", "batch:data, expert:data, hidden:model, head:model", None),
        ("data=2 model=4", "batch:data, expert:data, hidden:model, head:model", None),
        ("data=4 model=2", "batch:data, expert:data", None),
        ("model=8", "hidden:model, head:model", None),
        ("data=2 model=4", "batch:data+model, expert:model", None),
        ("data=4 model=2", "batch:data+model, expert:data+model", None),
        ("data=4 model=2", "batch:data, expert:data, hidden:model", "model:data"),
    ],
}


def measure(steps: int = 12) -> list[dict[str, Any]]:
    """Measure every layout, by turns, beside its estimate."""
    from namedmesh.processes.devices import use_cpu_devices

    use_cpu_devices(8)
    rows = []
    for name, second in MODELS.items():
        program = trace(second)
        programs, found = [], []
        for mesh, layout, params in LAYOUTS[name]:
            plan = nm.plan(program, nm.Mesh.parse(mesh), layout, params, conflicts="cheapest")
            cost = nm.cost(plan, "cpu")
            programs.append(_make_runner(plan))
            row = {"model": name, "mesh": mesh, "layout": layout, "params": params}
            found.append({**row, "estimate_ms": 1e3 * cost.seconds})
        times: list[list[float]] = [[] for _ in programs]
        for _ in range(steps + 2):
            for run, taken in zip(programs, times, strict=True):
                start = time.perf_counter()
                run()
                taken.append(time.perf_counter() - start)
        for row, taken in zip(found, times, strict=True):
            row["measured_ms"] = 1e3 * statistics.median(taken[2:])
        rows += found
    return rows


def _make_runner(plan: nm.Plan) -> Callable[[], None]:
    """Compile a plan, and return what runs a step of it and wait."""
    import jax

    step = nm.Step(plan)
    held = [step.init(0)]
    x = step.put(x=np.ones([dim.size for dim in (B, S, M)], np.float32))

    def run() -> None:
        held[0], loss = step(held[0], **x)
        jax.block_until_ready(loss)

    return run


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: the correlation of ranks; 1 where both have one order."""
    one, other = (np.argsort(np.argsort(values)) for values in (first, second))
    return float(np.corrcoef(one, other)[0, 1])


def count_cores() -> int:
    """Return the cores of this host that a process may use."""
    return len(os.sched_getaffinity(0))
