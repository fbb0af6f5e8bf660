"""Parameters, gradients and traced steps for optimizers."""

import numpy as np

import namedmesh as nm

STEPS = 10
SHAPES = {
    "scalar": [],
    "vector": nm.dims("a=300"),
    "small": nm.dims("a=24 b=40"),
    "matrix": nm.dims("a=160 b=128"),
    "square": nm.dims("a=128 b=128"),
    "cube": nm.dims("a=130 b=3 c=128"),
    # The second factor is not the last dimension of the row means.
    "kernel": nm.dims("a=128 b=130 c=3"),
}
FEW = {name: SHAPES[name] for name in ("scalar", "vector", "matrix")}


def start_values(shapes):
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=[dim.size for dim in dims], scale=0.5).astype(np.float32) + 0.1
        for name, dims in shapes.items()
    }


def gradients(values, steps=STEPS):
    """Make gradients whose size changes between steps and rows, so that clipping has an effect."""
    rng = np.random.default_rng(1)
    for _ in range(steps):
        sizes = {
            name: np.exp(rng.normal(size=value.shape[:1] + (1,) * (value.ndim - 1)))
            for name, value in values.items()
        }
        yield {
            name: (sizes[name] * rng.normal(size=value.shape)).astype(np.float32)
            for name, value in values.items()
        }


def traced(optimizer, shapes):
    """A step in which the gradient of each parameter is the input d_ and its name."""

    def step(**given):
        parameters = {
            name: nm.param(name, dims, nm.constant_init(0.0)) for name, dims in shapes.items()
        }
        total = nm.full([], 0.0)
        for name, weight in parameters.items():
            total = total + nm.sum(weight * given[f"d_{name}"])
        return optimizer.apply(nm.grad(total))

    return nm.trace(step, **{f"d_{name}": nm.spec(dims) for name, dims in shapes.items()})
