"""Small programs whose sizes do not divide well, for several meshes and layouts."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import namedmesh as nm

B, M, H = nm.dims("batch=12 model=5 hidden=7")
PLACES = {
    "one": ("data=1", ""),
    "two": ("data=2", "model:data"),
    "three": ("data=3", "model:data"),
    "four": ("data=4", "hidden:data"),
    "mixed": ("data=2 tensor=4", "model:data, hidden:tensor"),
}


def predict(x: nm.Tensor) -> nm.Tensor:
    """A weight in float32 and one in bfloat16."""
    w = nm.param("layer/w", [M, H], nm.normal_init(1.0))
    scale = nm.param("layer/scale", [M], nm.normal_init(1.0), dtype="bfloat16")
    return nm.einsum([x, w, nm.cast(scale, "float32")], [B, H])


def train(x: nm.Tensor, y: nm.Tensor) -> dict[str, nm.Tensor]:
    """Momentum, whose slots are as large as the weights."""
    loss = nm.mean(nm.square(predict(x) - y))
    grads = nm.grad(loss)
    for name, weight in nm.parameters().items():
        slot = nm.state(f"slots/{name}", weight.shape, of=weight)
        momentum = slot * 0.9 + nm.cast(grads[name], "float32")
        nm.assign(slot, momentum)
        nm.assign(weight, weight - nm.cast(momentum * 0.05, weight.dtype))
    return {"loss": loss}


def decode(x: nm.Tensor) -> nm.Tensor:
    """The forward pass alone: weights without slots."""
    return predict(x)


@functools.cache
def compiled(name: str, place: str) -> nm.Step:
    """One of the programs for one of the places."""
    mesh, layout = PLACES[place]
    specs: dict[str, Any] = {"x": nm.spec([B, M])}
    if name == "train":
        specs["y"] = nm.spec([B, H])
    function = {"train": train, "decode": decode}[name]
    return nm.compile(function, **specs, mesh=nm.Mesh.parse(mesh), layout=layout)


def batch(number: int = 0) -> dict[str, np.ndarray]:
    """Inputs of the train step."""
    random = np.random.default_rng(number)
    x = random.normal(size=(12, 5)).astype(np.float32)
    return {"x": x, "y": np.tanh(x @ np.linspace(-1, 1, 35).reshape(5, 7)).astype(np.float32)}


def values(seed: int = 0) -> dict[str, np.ndarray]:
    """Whole arrays for every variable of the train step."""
    random = np.random.default_rng(seed)
    specs = compiled("train", "one").variables
    return {
        name: random.normal(size=spec.sizes).astype(nm_dtype(spec.dtype))
        for name, spec in specs.items()
    }


def nm_dtype(name: str) -> np.dtype:
    """The numpy dtype of a name, bfloat16 included."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name))


def same(one, other) -> bool:
    """Whether two arrays are the same, bit for bit."""
    one, other = np.asarray(one), np.asarray(other)
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )
