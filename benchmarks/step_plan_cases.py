"""Whole training steps that everybody writes, each with the least bytes that a device has to send.

Networks are small, so that every collective can be counted by hand: what Megatron-LM, FSDP and
GShard send, in the dtype that it is used in, and one number for the loss and for each norm.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import namedmesh as nm
from benchmarks.llama_plan_cases import BFLOAT, FLOAT, Case, gather, reduce
from namedmesh.layers import Adam, clip_by_global_norm, cross_entropy, dropout, rms_norm

SIZES = "batch=16 seq=16 row=16 model=64 hidden=128 vocab=256 rank=4 micro=4 ensemble=8 layer=2"
B, S, ROW, M, H, V, R, MICRO, ENSEMBLE, L = nm.dims(SIZES)
TOKENS = B.size * S.size
WEIGHTS = 2 * M.size * H.size  # of one network
ROWS = TOKENS * M.size  # of activations
TWO = "data=2, tensor=4"
BOTH = "batch:data, hidden:tensor"

STEPS: dict[str, Case] = {}


def add_step(
    name: str, mesh: str, layout: str, minimum: float, why: str, params: str | None = None,
    dtype: str = "float32",
) -> Callable[[Callable[[], nm.Program]], Callable[[], nm.Program]]:  # fmt: skip
    """List a step under a name."""

    def add(step: Callable[[], nm.Program]) -> Callable[[], nm.Program]:
        STEPS[name] = Case(mesh, layout, minimum, why, params, dtype, step=step)
        return step

    return add


def network(x: nm.Tensor, name: str = "", trainable: bool = True) -> nm.Tensor:
    """Return x and what two layers make of it, in the dtype of x."""
    w1 = nm.param(f"{name}w1", [M, H], nm.fan_in_init(M), trainable=trainable)
    w2 = nm.param(f"{name}w2", [H, M], nm.fan_in_init(H), trainable=trainable)
    inner = nm.tanh(nm.einsum([x, nm.cast(w1, x.dtype)], [B, S, H]))
    return x + nm.einsum([inner, nm.cast(w2, x.dtype)], [B, S, M])


def mean_square(y: nm.Tensor) -> nm.Tensor:
    """Return a loss."""
    return nm.mean(nm.square(nm.cast(y, "float32")))


def trace_rows(step: Callable[..., Any]) -> nm.Program:
    """Trace a step on activations."""
    return nm.trace(step, x=nm.spec([B, S, M]))


def apply_by_hand(gradients: dict[str, nm.Tensor]) -> None:
    """Subtract gradients from the parameters."""
    for name, gradient in gradients.items():
        weight = nm.parameters()[name]
        nm.assign(weight, weight - gradient * 0.1)


def norm_of_all() -> nm.Program:
    """Clip by the norm of all gradients."""

    def step(x: nm.Tensor) -> Any:
        loss = mean_square(network(x))
        gradients, norm = clip_by_global_norm(nm.grad(loss), 1.0)
        Adam(1e-3).apply(gradients)
        return loss, norm

    return trace_rows(step)


add_step(
    "clipping fsdp+tp", TWO, BOTH,
    2 * gather(FLOAT * WEIGHTS / 4, 2) + reduce(FLOAT * ROWS / 2, 4) + reduce(FLOAT, 2)
    + reduce(FLOAT, 8),
    "a quarter of the weights is gathered and scattered, a sum of activations, loss and norm",
    "model:data",
)(norm_of_all)  # fmt: skip


@add_step(
    "loss scale, skipped on nan, average of weights", "data=8", "batch:data",
    2 * gather(BFLOAT * WEIGHTS, 8) + reduce(FLOAT, 8) + 2,
    "weights and gradients in bfloat16, as fsdp; the loss, and one bool for each weight",
    "model:data", "bfloat16",
)  # fmt: skip
def scaled_step() -> nm.Program:
    """Scale the loss, apply what is finite, and average the weights."""

    def step(x: nm.Tensor) -> Any:
        scale = nm.state("scale", [], init=nm.constant_init(1024.0))
        loss = mean_square(network(nm.cast(x, "bfloat16")))
        gradients = {name: one / scale for name, one in nm.grad(loss * scale).items()}
        finite = functools.reduce(
            operator.and_, (nm.all(nm.is_finite(one)) for one in gradients.values())
        )
        for name, weight in [*nm.parameters().items()]:
            average = nm.param(f"average_{name}", weight.shape, trainable=False)
            following = nm.cond(
                finite, lambda w=weight, g=gradients[name]: w - g * 0.1, lambda w=weight: w
            )
            nm.assign(weight, following)
            nm.assign(average, average * 0.99 + following * 0.01)
        nm.assign(scale, nm.where(finite, scale, scale * 0.5))
        return loss

    return trace_rows(step)


def adapted_step(frozen_dtype: str = "float32") -> nm.Program:
    """Train two thin matrices beside frozen ones (LoRA)."""

    def adapt(name: str, x: nm.Tensor, one: nm.Dimension, two: nm.Dimension) -> nm.Tensor:
        down = nm.param(f"{name}_down", [one, R], nm.fan_in_init(one))
        up = nm.param(f"{name}_up", [R, two], nm.fan_in_init(R))
        frozen = nm.param(name, [one, two], nm.fan_in_init(one), trainable=False)
        thin = nm.einsum([x, down], [B, S, R])
        return nm.einsum([x, frozen], [B, S, two]) + nm.einsum([thin, up], [B, S, two]) * 2.0

    def step(x: nm.Tensor) -> Any:
        y = x + adapt("w2", nm.tanh(adapt("w1", x, M, H)), H, M)
        loss = mean_square(y)
        apply_by_hand(nm.grad(loss))
        return loss

    return trace_rows(step)


THIN = 2 * R.size * (M.size + H.size)
add_step("adapters dp", "data=8", "batch:data", reduce(FLOAT * THIN, 8) + reduce(FLOAT, 8),
         "gradients of the thin matrices alone, and the loss")(adapted_step)  # fmt: skip


@add_step(
    "preferences fsdp", "data=8", "batch:data",
    gather(FLOAT * 2 * WEIGHTS, 8) + gather(FLOAT * WEIGHTS, 8) + reduce(FLOAT, 8),
    "weights and those of the reference are gathered, gradients scattered, and the loss (DPO)",
    "model:data",
)  # fmt: skip
def preference_step() -> nm.Program:
    """Prefer chosen rows to rejected ones, relative to a frozen reference (DPO)."""

    def step(x: nm.Tensor, rejected: nm.Tensor) -> Any:
        def score(rows: nm.Tensor) -> nm.Tensor:
            frozen = nm.stop_gradient(network(rows, "reference_", trainable=False))
            return nm.mean(nm.square(network(rows)) - nm.square(frozen), over=[S, M])

        loss = -nm.mean(nm.log(nm.sigmoid(0.1 * (score(x) - score(rejected)))))
        Adam(1e-3).apply(nm.grad(loss))
        return loss

    rows = nm.spec([B, S, M])
    return nm.trace(step, x=rows, rejected=rows)


@add_step(
    "vocabulary split, smoothing, z-loss", "tensor=4", "hidden:tensor, vocab:tensor",
    2 * reduce(FLOAT * TOKENS, 4) + 2 * reduce(FLOAT * ROWS, 4) + reduce(FLOAT, 4),
    "activations forward and backward; largest logits, normalizers, and the sum of the others",
)  # fmt: skip
def vocabulary_step() -> nm.Program:
    """Predict tokens of a split vocabulary."""

    def step(x: nm.Tensor, targets: nm.Tensor) -> Any:
        h = rms_norm(network(x), M)
        logits = nm.einsum([h, nm.param("out", [M, V], nm.fan_in_init(M))], [B, S, V])
        loss, z_loss = cross_entropy(logits, targets, V, smoothing=0.1, z_loss=1e-4)
        loss = nm.mean(loss + z_loss)
        apply_by_hand(nm.grad(loss))
        return loss

    return nm.trace(step, x=nm.spec([B, S, M]), targets=nm.spec([B, S], "int32"))


@add_step(
    "validation, dropout fsdp", "data=8", "batch:data",
    2 * gather(FLOAT * WEIGHTS, 8) + 2 * reduce(FLOAT, 8),
    "weights are gathered once for both, gradients scattered, and two losses", "model:data",
)  # fmt: skip
def validated_step() -> nm.Program:
    """Train on some rows, and evaluate others with the same weights."""

    def step(x: nm.Tensor, others: nm.Tensor, seed: nm.Tensor) -> Any:
        loss = mean_square(dropout(network(x), 0.1, nm.random.key_from_seed(seed)))
        validation = mean_square(network(others))
        Adam(1e-3).apply(nm.grad(loss))
        return loss, validation

    rows = nm.spec([B, S, M])
    return nm.trace(step, x=rows, others=rows, seed=nm.spec([], "int32"))


@add_step("ensemble", "data=8", "ensemble:data", 0, "each device trains its own networks")
def ensemble_step() -> nm.Program:
    """Train several networks on the same rows."""

    def step(x: nm.Tensor) -> Any:
        weights = {
            "w1": nm.param("w1", [ENSEMBLE, M, H]), "w2": nm.param("w2", [ENSEMBLE, H, M])
        }  # fmt: skip

        def one(weights: dict[str, nm.Tensor]) -> dict[str, nm.Tensor]:
            inner = nm.tanh(nm.einsum([x, weights["w1"]], [B, S, H]))
            loss = mean_square(x + nm.einsum([inner, weights["w2"]], [B, S, M]))
            gradients = nm.grad(loss, weights)
            return {name: weights[name] - gradients[name] * 0.1 for name in weights}

        for name, value in nm.vmap(one, ENSEMBLE)(weights).items():
            nm.assign(weights[name], value)

    return trace_rows(step)
