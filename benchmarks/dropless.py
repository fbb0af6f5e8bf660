"""The mixture that drops no token against buffers of a capacity, under an uneven load.

Run as `python -m benchmarks.dropless --json OUT`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import jax
import numpy as np
from absl import app

import namedmesh as nm
from benchmarks.moe import Sizes
from benchmarks.result import publish
from namedmesh.layers import Routing, dropless_moe, expert_capacity, moe, top_k_gating
from namedmesh.runtime import use_cpu_devices

SIZES = Sizes(group=2, seq=2048, model=128, hidden=512, expert=16)
# Logits of the experts differ by as much as two: the most popular gets four times its share.
SKEW = 2.0

Layer = Callable[[nm.Tensor], tuple[nm.Tensor, nm.Tensor]]


def layers(sizes: Sizes) -> dict[str, Layer]:
    """Make the layer with buffers of three capacities, and the one without a capacity."""
    G, S, E, M, H = nm.dims(
        f"group={sizes.group} seq={sizes.seq} expert={sizes.expert} model={sizes.model} "
        f"hidden={sizes.hidden}"
    )

    def gate(C: nm.Dimension) -> Callable[[nm.Tensor], Routing]:
        skew = nm.constant(np.linspace(0, SKEW, sizes.expert, dtype=np.float32), [E])
        return lambda logits: top_k_gating(logits + skew, S, E, C, second="all")

    def buffers(x: nm.Tensor, factor: float) -> tuple[nm.Tensor, nm.Tensor]:
        C = expert_capacity(S, E, factor * 2)  # every token has two choices
        y, routing = moe(x, gate(C), (G, S, E, C, M, H))
        return y, nm.mean(routing.dropped)

    def blocks(x: nm.Tensor) -> tuple[nm.Tensor, nm.Tensor]:
        y, routing = dropless_moe(x, gate(nm.Dimension("capacity", S.size)), (G, S, E, M, H))
        return y, nm.mean(routing.dropped)

    made: dict[str, Layer] = {
        f"capacity_{factor:g}": lambda x, factor=factor: buffers(x, factor)
        for factor in (1.0, 2.0, 4.0)
    }
    return {**made, "dropless": blocks}


def trace(layer: Layer, sizes: Sizes) -> nm.Program:
    """Trace a layer, forward and backward."""
    G, S, M = nm.dims(f"group={sizes.group} seq={sizes.seq} model={sizes.model}")

    def step(x: nm.Tensor, dy: nm.Tensor) -> dict[str, object]:
        y, dropped = layer(x)
        grads = nm.grad(nm.sum(y * dy), {"x": x, **nm.parameters()})
        return {"y": y, "dropped": dropped, **grads}

    return nm.trace(step, nm.spec([G, S, M]), nm.spec([G, S, M]))


def measure(sizes: Sizes = SIZES, steps: int = 15) -> dict[str, object]:
    """Return median step times, interleaved, FLOPs and shares of choices that were dropped."""
    use_cpu_devices(2)
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(2, sizes.group, sizes.seq, sizes.model)).astype(np.float32)
    runs, times, rows = {}, {}, {}
    for name, layer in layers(sizes).items():
        program = trace(layer, sizes)
        step = nm.compile(program, mesh=nm.Mesh(data=2), layout="group:data", strict=True)
        state, inputs = step.init(0), step.put(x=x, dy=dy)
        dropped = float(jax.device_get(step(state, **inputs)[1]["dropped"]))
        runs[name], times[name] = (step, state, inputs), []
        rows[name] = {"dropped": dropped, "gflops": program.flops() / 1e9}
    names = list(runs)
    for i in range(steps + 2):
        for name in names if i % 2 else reversed(names):
            step, state, inputs = runs[name]
            start = time.perf_counter()
            jax.block_until_ready(step(state, **inputs)[1])
            if i >= 2:
                times[name].append(time.perf_counter() - start)
    for name, row in rows.items():
        row["ms"] = statistics.median(times[name]) * 1e3
    without_drops = [row for name, row in rows.items() if name != "dropless" and not row["dropped"]]
    return {
        "rows": rows,
        "against_capacity_2": rows["dropless"]["ms"] / rows["capacity_2"]["ms"],
        "against_the_capacity_that_drops_none": rows["dropless"]["ms"] / without_drops[0]["ms"]
        if without_drops
        else None,
        "steps": steps,
        "sizes": vars(sizes),
    }


def main(_: list[str]) -> None:
    """Measure and publish."""
    publish(measure())


if __name__ == "__main__":
    app.run(main)
