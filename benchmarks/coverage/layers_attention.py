"""The layers of attention, masks and positions."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import namedmesh as nm
from benchmarks.coverage.attention import attend
from benchmarks.coverage.entry import ELEMENTWISE, Entry
from benchmarks.coverage.kit import Kit
from namedmesh import layers


def entries(kit: Kit) -> dict[str, Entry]:
    """Attention with weights, masks and positions."""
    return _attention(kit) | _masks(kit) | _positions(kit)


def _attention(kit: Kit) -> dict[str, Entry]:
    B, S, T = nm.Dimension("batch", 3 if kit.uneven else 4), kit.dim("seq"), kit.dim("memory")
    M, N, K = kit.dim("model", 8, 3), kit.dim("head", 4, 3), kit.dim("key", 4, 5)
    heads = layers.Heads(M, N, K)
    x, memory = kit.real(B, S, M), kit.real(B, T, M)
    q, keys = kit.real(B, S, N, K), kit.real(B, T, N, K)

    def project(x, weights, name):
        return jnp.einsum("bsm,mnk->bsnk", x, weights[name])

    def combine(context, weights):
        return jnp.einsum("bsnk,nkm->bsm", context, weights["wo"])

    def across(x, memory, weights):
        k, v = project(memory, weights, "wk"), project(memory, weights, "wv")
        return combine(attend(project(x, weights, "wq"), k, v), weights)

    def one(named, reference, inputs, own):
        return Entry(named, reference, inputs, own, roundings=16)

    return {
        "attend": one(
            lambda q, k, v: layers.attend(q, k, v, S, T, heads),
            lambda q, k, v, weights: combine(attend(q, k, v), weights),
            [q, keys, keys],
            [S, T, N, K, M],
        ),
        "self_attention": one(
            lambda x: layers.self_attention(x, S, heads),
            lambda x, weights: across(x, x, weights),
            [x],
            [S, N, K, M],
        ),
        "cross_attention": one(
            lambda x, m: layers.cross_attention(x, m, T, S, heads),
            across,
            [x, memory],
            [S, T, N, K, M],
        ),
        "project_queries": one(
            lambda x: layers.project_queries(x, heads),
            lambda x, weights: project(x, weights, "wq"),
            [x],
            [N, K, M],
        ),
        "project_keys_and_values": one(
            lambda x: layers.project_keys_and_values(x, heads),
            lambda x, weights: (project(x, weights, "wk"), project(x, weights, "wv")),
            [x],
            [N, K, M],
        ),
    }


def _masks(kit: Kit) -> dict[str, Entry]:
    """Return each is read by an operand, since constants alone have no place on a mesh."""
    B, S, T = kit.B, kit.dim("seq", 8, 7), kit.dim("memory")
    rows, columns = np.indices((S.size, T.size))

    def masked(make, mask):
        return Entry(
            lambda x: nm.where(make(), x, 0.0),
            lambda x: jnp.where(mask, x, 0),
            [kit.real(B, S, T)],
            [S, T],
        )

    near = (columns <= rows) & (columns > rows - 3)
    return {
        "causal_mask": masked(lambda: layers.causal_mask(S, T), columns <= rows),
        "window_mask": masked(lambda: layers.window_mask(S, T, 3), near),
        "segment_mask": Entry(
            lambda s, m: nm.transpose(layers.segment_mask(s, m), [B, S, T]),
            lambda s, m: (s[:, :, None] == m[:, None, :]) & (m[:, None, :] != 0),
            [kit.whole(B, S, below=3), kit.whole(B, T, below=3)],
            [S, T],
        ),
    }


def _positions(kit: Kit) -> dict[str, Entry]:
    B, S, T = kit.B, kit.dim("seq", 8, 7), kit.dim("memory")
    N, K, L = kit.dim("head", 4, 3), kit.dim("key", 8, 6), kit.dim("position", 16, 9)
    distance = kit.whole(S, T, low=-15, below=16)
    positions = kit.whole(B, S, below=L.size)
    half = K.size // 2

    def slopes(d):
        return -jnp.abs(d)[..., None] * 2.0 ** (-8 * (jnp.arange(N.size) + 1) / N.size)

    def bucket(d):
        """T5's buckets, 16 for both ways, of distances up to 20."""
        size = jnp.abs(d)
        far = 4 + jnp.floor(jnp.log(jnp.maximum(size, 1) / 4) / np.log(20 / 4) * 4)
        return 8 * (d > 0) + jnp.where(size < 4, size, jnp.minimum(far, 7).astype(size.dtype))

    def rotated(x, p):
        angle = p[..., None, None] * 10_000.0 ** (-jnp.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        turned = first * jnp.cos(angle) - second * jnp.sin(angle)
        other = second * jnp.cos(angle) + first * jnp.sin(angle)
        return jnp.concatenate([turned, other], -1)

    def waves(p):
        angle = p[..., None] * 10_000.0 ** (-jnp.arange(half) / (half - 1))
        return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)

    return {
        "alibi": Entry(lambda d: layers.alibi(d, N), slopes, [distance], [N]),
        "distance_bucket": Entry(
            lambda d: layers.distance_bucket(d, 16, 20, True),
            bucket,
            [distance],
            reasons=ELEMENTWISE,
        ),
        "relative_bias": Entry(
            lambda d: layers.relative_bias(d, N, buckets=16, farthest=20),
            lambda d, weights: weights["relative_bias"][bucket(d)],
            [distance],
            [N],
        ),
        "learned_positions": Entry(
            lambda p: layers.learned_positions(p, L, K),
            lambda p, weights: weights["positions"][p],
            [positions],
            [L, K],
        ),
        "rotary": Entry(
            lambda x, p: layers.rotary(x, p, K), rotated, [kit.real(B, S, N, K), positions], [K]
        ),
        "sinusoids": Entry(lambda p: layers.sinusoids(p, K, kit.dtype), waves, [positions], [K]),
    }
