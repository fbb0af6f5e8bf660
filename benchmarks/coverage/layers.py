"""The layers that compute something of their own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import namedmesh as nm
from benchmarks.coverage import layers_attention, layers_experts
from benchmarks.coverage.entry import ELEMENTWISE, Entry
from benchmarks.coverage.kit import Kit
from namedmesh import layers


def entries(kit: Kit) -> dict[str, Entry]:
    """Return all layers, by the names they are imported by."""
    found = _linear(kit) | _norms(kit) | _losses(kit) | _noise(kit)
    found |= layers_attention.entries(kit) | layers_experts.entries(kit)
    return {f"layers.{name}": entry for name, entry in found.items()}


def _linear(kit: Kit) -> dict[str, Entry]:
    B, R, C = kit.B, kit.R, kit.C
    H, V = kit.dim("hidden", 8, 5), kit.dim("vocab", 16, 9)
    F = nm.Dimension("out", 4)
    real, tokens = kit.real(B, R, C), kit.whole(B, R, below=V.size)

    def convolve(x, weights):
        numbers = ("NWC", "WIO", "NWC")
        return jax.lax.conv_general_dilated(x, weights["w"], (1,), "SAME", None, None, numbers)

    def one(named, reference, own, x=real):
        return Entry(named, reference, [x], own, roundings=8)

    return {
        "dense": one(
            lambda x: layers.dense(x, [C], [H], bias=True),
            lambda x, weights: x @ weights["w"] + weights["w_bias"],
            [C, H],
        ),
        "feed_forward": one(
            lambda x: layers.feed_forward(x, C, H),
            lambda x, weights: jax.nn.relu(x @ weights["wi"]) @ weights["wo"],
            [C, H],
        ),
        "convolution": one(lambda x: layers.convolution(x, {R: 3}, [C], [F]), convolve, [R, C, F]),
        "embedding": one(
            lambda t: layers.embedding(t, V, C, dtype=kit.dtype),
            lambda t, weights: weights["embedding"][t] * C.size**0.5,
            [V, C],
            tokens,
        ),
        "vocabulary_logits": one(
            lambda x: layers.vocabulary_logits(x, V, C),
            lambda x, weights: x @ weights["embedding"].T,
            [V, C],
        ),
    }


def _norms(kit: Kit) -> dict[str, Entry]:
    B, R, C = kit.B, kit.R, kit.C
    groups = 1 if kit.uneven else 2

    def unit(x, axes, epsilon=1e-6):
        centred = x - x.mean(axes, keepdims=True)
        return centred / jnp.sqrt((centred**2).mean(axes, keepdims=True) + epsilon)

    def scaled(unit, weights):
        return unit * weights["norm_scale"] + weights["norm_bias"]

    def grouped(x, weights):
        parts = x.reshape(*x.shape[:2], groups, -1)
        return scaled(unit(parts, (1, 3)).reshape(x.shape), weights)

    def one(named, reference, *own):
        return Entry(named, reference, [kit.real(B, R, C)], own)

    return {
        "layer_norm": one(
            lambda x: layers.layer_norm(x, C), lambda x, weights: scaled(unit(x, 2), weights), C
        ),
        "rms_norm": one(
            lambda x: layers.rms_norm(x, C),
            lambda x, weights: (
                x / jnp.sqrt((x**2).mean(2, keepdims=True) + 1e-6) * weights["norm_scale"]
            ),
            C,
        ),
        "group_norm": one(lambda x: layers.group_norm(x, C, groups, over=[R]), grouped, R, C),
        "batch_norm": one(
            lambda x: layers.batch_norm(x, [B, R], training=True),
            lambda x, weights: scaled(unit(x, (0, 1), 1e-5), weights),
            B,
            R,
        ),
    }


def _losses(kit: Kit) -> dict[str, Entry]:
    B, R = kit.B, kit.R
    V = kit.dim("vocab", 16, 9)
    logits, targets, yes = kit.real(B, R, V), kit.whole(B, R, below=V.size), kit.real(B, R)

    def hard(x, t):
        normaliser = jax.nn.logsumexp(x, 2)
        return normaliser - jnp.take_along_axis(x, t[..., None], 2)[..., 0], normaliser**2 * 0.1

    def divergence(x, y):
        p, q = jax.nn.softmax(x, 2), jax.nn.softmax(y, 2)
        return jnp.sum(p * jnp.log(p / q) + q * jnp.log(q / p), 2) / 2

    def norm(x, y):
        return jnp.sqrt(jnp.sum(x * x) + jnp.sum(y * y))

    def clipped(x, y):
        scale = 2.5 / norm(x, y)
        return x * scale, y * scale, norm(x, y)

    def clip(x, y):
        both, size = layers.clip_by_global_norm({"x": x, "y": y}, 2.5)
        return both["x"], both["y"], size

    return {
        "cross_entropy": Entry(
            lambda x, t: layers.cross_entropy(x, t, V, z_loss=0.1), hard, [logits, targets], [V]
        ),
        "chunked_cross_entropy": Entry(
            lambda x, t: layers.chunked_cross_entropy(
                lambda x: x, x, t, V, z_loss=0.1, over=R, chunks=1 if kit.uneven else 2
            ),
            hard,
            [logits, targets],
            [V],
        ),
        "soft_cross_entropy": Entry(
            lambda x, p: layers.soft_cross_entropy(x, p, V),
            lambda x, p: -jnp.sum(p * jax.nn.log_softmax(x, 2), 2),
            [logits, kit.positive(B, R, V)],
            [V],
        ),
        "binary_cross_entropy": Entry(
            lambda x, t: layers.binary_cross_entropy(x, t),
            lambda x, t: -jnp.where(t, jax.nn.log_sigmoid(x), jax.nn.log_sigmoid(-x)),
            [yes, kit.truth(B, R)],
            reasons=ELEMENTWISE,
        ),
        "symmetric_divergence": Entry(
            lambda x, y: layers.symmetric_divergence(x, y, V), divergence, [logits, logits], [V]
        ),
        "weighted_mean": Entry(
            layers.weighted_mean,
            lambda x, w: jnp.sum(x * w) / jnp.sum(w),
            [yes, kit.positive(B, R)],
            [B, R],
            roundings=8,
        ),
        "global_norm": Entry(
            lambda x, y: layers.global_norm({"x": x, "y": y}), norm, [logits, yes], [R, V]
        ),
        "clip_by_global_norm": Entry(clip, clipped, [logits, yes], [R, V]),
        "length_penalty": Entry(
            lambda x: layers.length_penalty(x, 0.6),
            lambda x: ((5 + x) / 6) ** 0.6,
            [kit.positive(B, R)],
            reasons=ELEMENTWISE,
        ),
    }


def _noise(kit: Kit) -> dict[str, Entry]:
    """Layers that draw random numbers: the same under every layout."""
    B, R, C = kit.B, kit.R, kit.C
    inputs = [kit.positive(B, R, C), kit.whole(below=1000)]
    key = nm.random.key_from_seed

    def one(named, holds):
        return Entry(named, None, inputs, reasons=ELEMENTWISE, holds=holds)

    def derive(x, seed):
        derived = layers.derive_key(key(seed), 7)
        assert derived is not None
        return x * nm.random.uniform(derived, x.shape, dtype=kit.dtype)

    return {
        "dropout": one(
            lambda x, seed: layers.dropout(x, 0.5, key(seed)), lambda y: 0.1 < (y == 0).mean() < 0.9
        ),
        "jitter": one(
            lambda x, seed: layers.jitter(x, key(seed), 0.25),
            lambda y: np.all((y > 0.2) & (y < 2.6)),
        ),
        "derive_key": one(derive, lambda y: y.std() > 0),
    }
