"""The ops of attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import namedmesh as nm
from benchmarks.coverage.entry import Entry
from benchmarks.coverage.kit import Kit


def attend(q, k, v, mask=None):
    """Attention of `[batch, query, head, key]`, as it is written in papers."""
    scores = jnp.einsum("bqhk,bthk->bqht", q, k) / q.shape[-1] ** 0.5
    scores = scores if mask is None else jnp.where(mask, scores, -1e30)
    return jnp.einsum("bqht,bthk->bqhk", jax.nn.softmax(scores, -1), v)


def entries(kit: Kit) -> dict[str, Entry]:
    """Attention: whole, by blocks, in a ring, and by moving heads."""
    B, S, T = (
        nm.Dimension("batch", 3 if kit.uneven else 4),
        kit.dim("seq", 8, 9),
        kit.dim("memory", 8, 9),
    )
    N, K, ring = kit.dim("head", 4, 3), kit.dim("key", 4, 5), kit.dim("ring", 4, 3)
    q, keys = kit.real(B, S, N, K), kit.real(B, T, N, K)

    def causal(q, k, v):
        rows, columns = jnp.indices((S.size, T.size))
        return attend(q, k, v, (columns <= rows)[:, None, :])

    def later(q, k, v):
        mask = nm.range(T) <= nm.range(S)
        return nm.attention(q, k, v, T, K, mask=mask)

    def one(named, reference, own):
        return Entry(named, reference, [q, keys, keys], own, roundings=8)

    return {
        "attention": one(lambda q, k, v: nm.attention(q, k, v, T, K), attend, [S, T, K]),
        "attention (mask)": one(later, causal, [S, T, K]),
        "attention (blocks)": one(
            lambda q, k, v: nm.attention(q, k, v, T, K, block=4 - kit.uneven), attend, [S, T, K]
        ),
        "ring_attention": one(
            lambda q, k, v: nm.ring_attention(q, k, v, T, K, query=S, ring=ring),
            attend,
            [S, T, ring],
        ),
        "ring_attention (causal)": one(
            lambda q, k, v: nm.ring_attention(q, k, v, T, K, query=S, ring=ring, causal=True),
            causal,
            [S, T, ring],
        ),
        "ulysses_attention": one(
            lambda q, k, v: nm.ulysses_attention(q, k, v, T, K, query=S, heads=N),
            attend,
            [S, T, N],
        ),
    }
