"""The time to trace and lower 60 layers against 12, since layers are a loop.

Run as `python -m benchmarks.depth --json OUT`.
"""

from __future__ import annotations

import statistics
import time

from absl import app

import namedmesh as nm
from benchmarks.result import publish
from namedmesh.layers import Config, Transformer, batch_of, config
from namedmesh.lowering.export import lower_plan

DEPTHS = (12, 60)


def lower_train_step(config: Config) -> tuple[float, int]:
    """Return the seconds to trace, plan and lower a train step, and the bytes of its StableHLO."""
    start = time.perf_counter()
    model = Transformer(config, group=8, source=16, target=16)

    def step(batch, seed):
        loss, metrics = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        grads = nm.grad(loss)
        for name, weight in nm.parameters().items():
            nm.assign(weight, weight - grads[name] * 0.01)
        return metrics

    program = nm.trace(step, batch=model.specs(), seed=nm.spec([], "int32"))
    module = lower_plan(nm.plan(program, nm.Mesh(all=8), "group:all, expert:all"))
    return time.perf_counter() - start, len(module)


def measure(rounds: int = 3) -> dict[str, object]:
    """Return medians over interleaved rounds after a warm-up."""
    times: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    sizes = {}
    for i in range(rounds + 1):
        for depth in DEPTHS if i % 2 else reversed(DEPTHS):
            deep = config("tiny").but(layers=depth, remat="full")
            seconds, sizes[depth] = lower_train_step(deep)
            if i:
                times[depth].append(seconds)
    medians = {depth: statistics.median(values) for depth, values in times.items()}
    rows = [{"layers": depth, "seconds": medians[depth], "bytes": sizes[depth]} for depth in DEPTHS]
    return {
        "time_ratio": medians[60] / medians[12],
        "size_ratio": sizes[60] / sizes[12],
        "rows": rows,
        "rounds": rounds,
    }


def main(_: list[str]) -> None:
    """Measure and publish."""
    publish(measure())


if __name__ == "__main__":
    app.run(main)
