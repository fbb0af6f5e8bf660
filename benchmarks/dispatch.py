"""The MoE layer with dispatch by index against dispatch by one-hot einsum.

Run as `python -m benchmarks.dispatch --json OUT`.
"""

from __future__ import annotations

import statistics
import time

import jax
import numpy as np
from absl import app

import namedmesh as nm
from benchmarks.moe import Sizes
from benchmarks.result import publish
from namedmesh.layers import moe, top_k_gating
from namedmesh.runtime import use_cpu_devices

SIZES = Sizes(group=8, seq=512, model=128, hidden=1024, expert=8)  # S/H = 0.5


def program(sizes: Sizes, form: str) -> nm.Program:
    """Trace the layer with Algorithm 1's gating, forward and backward.

    The results are y and the gradients of the input and of every weight.
    """
    G, S, E, C, M, H = nm.dims(
        f"group={sizes.group} seq={sizes.seq} expert={sizes.expert} capacity={sizes.capacity} "
        f"model={sizes.model} hidden={sizes.hidden}"
    )

    def step(x, dy, draws):
        y, routing = moe(
            x,
            lambda logits: top_k_gating(logits, S, E, C, draws=[draws]),
            (G, S, E, C, M, H),
            form=form,
        )
        loss = nm.sum(y * dy) + routing.aux_loss
        return {"y": y, **nm.grad(loss, {"x": x, **nm.parameters()})}

    return nm.trace(step, nm.spec([G, S, M]), nm.spec([G, S, M]), nm.spec([G, S]))


def measure(sizes: Sizes = SIZES, steps: int = 50) -> dict[str, object]:
    """Return median step times of both forms, interleaved, after checking equal results."""
    use_cpu_devices(8)
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(2, sizes.group, sizes.seq, sizes.model)).astype(np.float32)
    draws = rng.uniform(size=(sizes.group, sizes.seq)).astype(np.float32)
    runs, times, results = {}, {"einsum": [], "gather": []}, {}
    for form in times:
        traced = program(sizes, form)
        step = nm.compile(traced, mesh=nm.Mesh(all=8), layout="group:all, expert:all", strict=True)
        runs[form] = (step, step.init(0), step.put(x=x, dy=dy, draws=draws), traced.flops())
        results[form] = jax.device_get(step(runs[form][1], **runs[form][2])[1])
    for name, value in results["einsum"].items():
        np.testing.assert_allclose(
            results["gather"][name], value, rtol=1e-3, atol=1e-3 * np.abs(value).max(), err_msg=name
        )
    for i in range(steps + 3):
        for form in ("einsum", "gather") if i % 2 else ("gather", "einsum"):
            step, state, inputs, _ = runs[form]
            start = time.perf_counter()
            jax.block_until_ready(step(state, **inputs)[1])
            if i >= 3:
                times[form].append(time.perf_counter() - start)
    medians = {form: statistics.median(values) * 1e3 for form, values in times.items()}
    return {
        "speedup": medians["einsum"] / medians["gather"],
        "einsum_ms": medians["einsum"],
        "gather_ms": medians["gather"],
        "flops_ratio": runs["einsum"][3] / runs["gather"][3],
        "steps": steps,
        "sizes": vars(sizes),
    }


def main(_: list[str]) -> None:
    """Measure and publish."""
    publish(measure())


if __name__ == "__main__":
    app.run(main)
