"""Weights and FLOPs per token of the paper's models, without allocating any.

Run as `python -m benchmarks.family --json OUT`.
"""

from __future__ import annotations

from absl import app

import namedmesh as nm
from benchmarks.result import publish
from namedmesh.layers import CONFIGS, Config, Transformer, batch_of

LENGTH = 1024  # tokens of source and of target in a group


def describe_model(name: str, config: Config) -> dict[str, object]:
    """Count a model's weights, and the FLOPs of forward and backward pass per target token."""
    model = Transformer(config, group=2, source=LENGTH, target=LENGTH)

    def step(batch, seed):
        loss, _ = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        return nm.grad(loss)

    program = nm.trace(step, batch=model.specs(), seed=nm.spec([], "int32"))
    weights = sum(variable.shape.elements for variable in program.parameters.values())
    return {"model": name, "weights": weights, "flops_per_token": program.flops() / (2 * LENGTH)}


def main(_: list[str]) -> None:
    """Count and publish."""
    publish([describe_model(name, config) for name, config in CONFIGS.items()])


if __name__ == "__main__":
    app.run(main)
