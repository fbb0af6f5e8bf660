"""Decoder-only models by hand in JAX, as fast as we could make them: Llama's and Mixtral's.

They have the arithmetic of examples/llm. Layers are written out one after the other, attention is
cuDNN's or XLA's, tokens reach experts by gathers, and what XLA could store for the backward pass in
float32 is computed again from bfloat16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.gpu.jax_adam import init_adam, update_adam
from benchmarks.gpu.jax_experts import mix_experts
from benchmarks.gpu.jax_layers import cross_entropy, multiply_gated
from benchmarks.gpu.llama import Llama, LlamaWeight, describe_weights, rotary_angles

IMPLEMENTATIONS: dict[str, Any] = {"plain": "xla", "cudnn": "cudnn"}


def init_weights(model: Llama, seed: int = 0) -> dict[str, Any]:
    """Make the first weights, one after the other, so that a program is compiled for each shape."""
    descriptions, structure = jax.tree.flatten(describe_weights(model))
    keys = jax.random.split(jax.random.key(seed), len(descriptions))
    arrays = [_draw(*pair) for pair in zip(descriptions, keys, strict=True)]
    return jax.tree.unflatten(structure, arrays)


@functools.partial(jax.jit, static_argnums=0)
def _draw(weight: LlamaWeight, key: jax.Array) -> jax.Array:
    if weight.deviation is None:
        return jnp.ones(weight.shape, jnp.float32)
    return jax.random.normal(key, weight.shape, jnp.float32) * weight.deviation


def compute_loss(
    weights: dict[str, Any], batch: dict[str, jax.Array], model: Llama, kind: str = "plain"
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Compute the training loss and metrics; kind as in make_step."""
    angles, dtype = rotary_angles(model), jnp.dtype(model.dtype)
    rotations = (np.cos(angles)[:, None], np.sin(angles)[:, None])  # S1K of either half
    # Rows are cast after the lookup, so that their gradients add up in float32.
    h, aux = weights["embedding"][batch["inputs"]].astype(dtype), jnp.zeros(())
    x: Any
    for p in weights["layers"]:
        h = h + _attend(
            p, rms_norm(h, p["attention/norm_scale"], model.epsilon), rotations, model, kind
        )
        x = rms_norm(h, p["network/norm_scale"], model.epsilon)
        network = {name[8:]: one for name, one in p.items() if name.startswith("network/w")}
        if model.experts:
            y, loss = mix_experts(network, x, model.capacity)
            aux = aux + loss * (model.experts**2 * model.aux_weight)
        else:
            y = _feed_forward(network, x)
        h = h + y
    h = rms_norm(h, weights["final_scale"], model.epsilon)
    table = weights["embedding" if model.tied else "output"]
    logits = jnp.einsum("gsm,vm->gsv", h, table.astype(dtype))
    entropy = cross_entropy(logits, batch["targets"], 0.0).mean()
    return entropy + aux, {"loss": entropy + aux, "cross_entropy": entropy}


def make_step(model: Llama, kind: str = "plain") -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make the train step.

    Args:
        model: The model.
        kind: The kind of attention, `plain` or `cudnn`.

    Returns:
        A function that makes the first weights and the optimizer's first state, and the step, from
        (weights, state, batch, seed) to (weights, state, metrics), which is to be jitted.
    """
    differentiate = jax.grad(compute_loss, has_aux=True)

    def init() -> tuple[Any, Any]:
        weights = init_weights(model)
        return weights, init_adam(weights)

    def step(weights, state, batch, seed):
        grads, metrics = differentiate(weights, batch, model, kind)
        with jax.named_scope("optimize"):  # by this the profile knows the optimizer
            weights, state, norm = update_adam(weights, grads, state)
        return weights, state, {**metrics, "grad_norm": norm}

    return init, step


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float) -> Any:
    """Normalize over the last axis in float32; what the derivative needs is kept as x is."""
    return _rms_norm_forward(x, scale, epsilon)[0]


def _rms_norm_forward(x, scale, epsilon):
    wide = x.astype(jnp.float32)
    inverse = lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + epsilon)
    return (wide * inverse * scale).astype(x.dtype), (x, scale, inverse)


def _rms_norm_backward(epsilon, saved, cotangent):
    x, scale, inverse = saved
    unit, wide = x.astype(jnp.float32) * inverse, cotangent.astype(jnp.float32)
    scaled = wide * scale
    dx = (scaled - unit * (scaled * unit).mean(-1, keepdims=True)) * inverse
    return dx.astype(x.dtype), (wide * unit).sum((*range(x.ndim - 1),))


rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


def _attend(
    p: dict[str, Any], x: jax.Array, rotations: tuple[Any, Any], model: Llama, kind: str
) -> jax.Array:
    """Let every position of x (GSM) attend to itself and to those before it."""

    def project(name: str) -> jax.Array:
        y = x @ p[f"attention/{name}"].astype(x.dtype)
        return y.reshape(*x.shape[:2], -1, model.key)  # GSNK

    q, k, v = (project(name) for name in ("wq", "wk", "wv"))
    q, k = _rotate(q, *rotations), _rotate(k, *rotations)
    with jax.named_scope("attend"):  # by this the profile tells attention from projections
        mixed: Any = jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation=IMPLEMENTATIONS[kind]
        )
    return mixed.reshape(*x.shape[:2], -1) @ p["attention/wo"].astype(x.dtype)


def _rotate(x: jax.Array, cosines: Any, sines: Any) -> jax.Array:
    first, second = jnp.split(x.astype(jnp.float32), 2, -1)
    y = [first * cosines - second * sines, second * cosines + first * sines]
    return jnp.concatenate(y, -1).astype(x.dtype)


def _feed_forward(p: dict[str, Any], x: jax.Array) -> jax.Array:
    y = multiply_gated(x @ p["wi"].astype(x.dtype), x @ p["wi_gate"].astype(x.dtype))
    return y @ p["wo"].astype(x.dtype)
