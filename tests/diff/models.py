"""Small programs that the tests compare under several layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import namedmesh as nm

B, M, H = nm.dims("batch=16 model=32 hidden=128")


def step(x: Any = nm.spec([B, M]), y: Any = nm.spec([B, M])) -> nm.Tensor:
    """A train step whose inputs have specs."""
    wi, wo = nm.param("wi", [M, H]), nm.param("wo", [H, M])
    with nm.scope("network"):
        h = nm.relu(nm.einsum([x, wi], [B, H]))
        z = nm.einsum([h, wo], [B, M])
    loss = nm.mean(nm.square(z - y))
    grads = nm.grad(loss)
    for name, weight in nm.parameters().items():
        nm.assign(weight, weight - grads[name] * 0.1)
    return loss


def trace_step() -> nm.Program:
    """The same as a program."""
    return nm.trace(step, x=nm.spec([B, M]), y=nm.spec([B, M]))


@dataclass(frozen=True)
class Sizes:
    """What a function can be told to build."""

    rows: int = 8
    layers: int = 2


def trace_stack(sizes: Sizes, scale: float = 1.0) -> nm.Program:
    """A loop of layers."""
    R, L = nm.dims(f"rows={sizes.rows} layer={sizes.layers}")

    def stack(x):
        iteration = lambda x, _: (nm.tanh(nm.einsum([x, nm.param("w", [M, H])], [R, H])), None)
        wide, _ = iteration(x, None)
        deep, _ = nm.scan(
            lambda h, _: (h * nm.sum(h, over=R) * scale, None), wide, over=L, stack=False
        )
        return nm.sum(deep)

    return nm.trace(stack, x=nm.spec([R, M]))


PROGRAM = trace_step()
PLANS = {"data": nm.plan(PROGRAM, nm.Mesh(data=4), "batch:data")}
LAYOUTS = {
    "data": ("batch:data", None),
    "hidden": ("hidden:data", None),
    "fsdp": ("batch:data", "model:data"),
    "whole": ("", None),
}


def plan(name: str, devices: int = 4) -> nm.Plan:
    """The train step under one of the layouts."""
    layout, params = LAYOUTS[name]
    return nm.plan(PROGRAM, nm.Mesh(data=devices), layout, params)


def broken():
    """Raises what is not ours."""
    raise ValueError("no\nluck")


def number() -> int:
    """Returns something else."""
    return 3
