"""Layers by hand in JAX: norm, attention, positions and the loss; activations are bfloat16."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.gpu.jax_random import dropout

ATTENTIONS = ("plain", "cudnn")
MASKED = -1e9  # the score of what may not be attended to


def layer_norm(x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """Normalize over the last axis, in float32."""
    wide = x.astype(jnp.float32)
    centered = wide - wide.mean(-1, keepdims=True)
    y = centered * lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + 1e-6)
    return (y * weights["scale"] + weights["bias"]).astype(x.dtype)


def sinusoids(positions: jax.Array, size: int) -> jax.Array:
    """Encode positions as sines and cosines of many wavelengths."""
    half = size // 2
    steps = jnp.arange(half, dtype=jnp.float32) * (-math.log(10_000.0) / max(half - 1, 1))
    angles = positions[..., None].astype(jnp.float32) * jnp.exp(steps)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1).astype(jnp.bfloat16)


def prepare_mask(allowed: jax.Array, kind: str) -> jax.Array:
    """Iteration what may be attended to (GQM bool) into what `attention` takes (G1QM).

    cuDNN takes no mask, but a tensor to add to the scores.
    """
    if kind == "plain":
        return allowed[:, None]
    return jnp.where(allowed, 0.0, MASKED).astype(jnp.bfloat16)[:, None]


def attention(
    weights: dict[str, Any],
    x: jax.Array,
    memory: jax.Array,
    mask: jax.Array,
    key: jax.Array,
    rate: float,
    kind: str,
) -> jax.Array:
    """Let every position of x attend to those of the memory.

    Args:
        weights: wq, wk and wv (MNK), and wo (NKM).
        x: The queries' side, GQM.
        memory: The side of keys and values, GSM.
        mask: What `prepare_mask` returned.
        key: The random key of dropout.
        rate: The dropout rate of the attention weights.
        kind: `plain`, or `cudnn` for its fused kernel, which draws its own dropout.

    Returns:
        The result, GQM.
    """
    q = jnp.einsum("gqm,mnk->gqnk", x, weights["wq"].astype(jnp.bfloat16))
    k = jnp.einsum("gsm,mnk->gsnk", memory, weights["wk"].astype(jnp.bfloat16))
    v = jnp.einsum("gsm,mnk->gsnk", memory, weights["wv"].astype(jnp.bfloat16))
    scale = 1.0 / math.sqrt(q.shape[-1])
    with jax.named_scope("attend"):  # by this the profile tells attention from projections
        mixed = (_attend_plain if kind == "plain" else _attend_cudnn)(
            q, k, v, mask, key, scale, rate
        )
    return jnp.einsum("gqnk,nkm->gqm", mixed, weights["wo"].astype(jnp.bfloat16))


def _attend_plain(q, k, v, mask, key, scale, rate):
    """Attention as XLA compiles it: the scores go through memory."""
    scores = jnp.einsum("gqnk,gsnk->gnqs", q * jnp.asarray(scale, q.dtype), k)
    scores = jnp.where(mask, scores.astype(jnp.float32), MASKED)
    shares = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    return jnp.einsum("gnqs,gsnk->gqnk", dropout(shares, rate, key), v)


def _attend_cudnn(q, k, v, mask, key, scale, rate):
    """Attention by cuDNN; jax's public function has no dropout, so this calls what it calls."""
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

    return dot_product_attention(
        q, k, v, mask, None, scale=scale, mask_type=MaskType.NO_MASK, seed=7, dropout_rate=rate
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def cross_entropy(logits: jax.Array, target: jax.Array, smoothing: float) -> jax.Array:
    """Compute the cross entropy, with label smoothing if any, zero for a perfect prediction.

    Its derivative computes the softmax again from the logits, rather than keep it in float32.
    """
    return _cross_entropy(logits, target, smoothing)[0]


def _cross_entropy(logits, target, smoothing):
    scores = logits.astype(jnp.float32)
    total = jax.nn.logsumexp(scores, -1)
    confidence, other = _label_shares(logits.shape[-1], smoothing)
    chosen = jnp.where(_one_hot(target, logits), scores, 0).sum(-1)
    if not smoothing:
        return total - chosen, total
    loss = total - chosen * (confidence - other) - scores.sum(-1) * other
    least = confidence * math.log(confidence) + smoothing * math.log(other)
    return loss + least, total


def _cross_entropy_forward(logits, target, smoothing):
    loss, total = _cross_entropy(logits, target, smoothing)
    return loss, (logits, target, total)


def _cross_entropy_backward(smoothing, saved, cotangent):
    logits, target, total = saved
    confidence, other = _label_shares(logits.shape[-1], smoothing)
    labels = other + jnp.where(_one_hot(target, logits), confidence - other, 0.0)
    grad = jnp.exp(logits.astype(jnp.float32) - total[..., None]) - labels
    return (grad * cotangent[..., None]).astype(logits.dtype), None


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def _label_shares(vocab: int, smoothing: float) -> tuple[float, float]:
    """Return the shares of the right token and of each other token."""
    return 1.0 - smoothing, smoothing / (vocab - 1)


def _one_hot(target: jax.Array, logits: jax.Array) -> jax.Array:
    """Mark the right token by a comparison, which fuses."""
    return lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == target[..., None]


@jax.custom_vjp
def multiply_gated(x: jax.Array, gated: jax.Array) -> jax.Array:
    """Multiply swish(x) by what it gates; the derivative keeps these two alone."""
    return jax.nn.silu(x) * gated


def _multiply_gated_backward(saved, cotangent):
    x, gated, wide = (one.astype(jnp.float32) for one in (*saved, cotangent))
    share = jax.nn.sigmoid(x)
    dx = wide * gated * share * (1 + x * (1 - share))
    return dx.astype(cotangent.dtype), (wide * x * share).astype(cotangent.dtype)


multiply_gated.defvjp(
    lambda x, gated: (multiply_gated(x, gated), (x, gated)), _multiply_gated_backward
)
