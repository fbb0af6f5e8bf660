"""Ops that reduce, normalise, multiply or run along a dimension, and those that order it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import namedmesh as nm
from benchmarks.coverage.entry import Entry
from benchmarks.coverage.kit import Kit


def entries(kit: Kit) -> dict[str, Entry]:
    """Reductions, einsum, cumulative ops, softmax and its kin, sorting."""
    B, R, C = kit.B, kit.R, kit.C
    K, H = kit.dim("best", 4, 3), kit.dim("hidden", 8, 5)
    real, distinct, truth = kit.real(B, R, C), kit.distinct(B, R, C), kit.truth(B, R, C)

    def along(named, reference, *inputs, **options):
        return Entry(named, reference, inputs or (real,), own=[R], **options)

    def best(x):
        values, indices = jax.lax.top_k(jnp.moveaxis(x, 1, 2), K.size)
        return jnp.moveaxis(values, 2, 1), jnp.moveaxis(indices, 2, 1)

    return {
        "sum": along(lambda x: nm.sum(x, over=R), lambda x: jnp.sum(x, 1)),
        "sum (where)": along(
            lambda x, m: nm.sum(x, over=R, where=m),
            lambda x, m: jnp.sum(x, 1, where=m),
            real,
            truth,
        ),
        "mean": along(lambda x: nm.mean(x, over=R), lambda x: jnp.mean(x, 1)),
        "prod": along(lambda x: nm.prod(x, over=R), lambda x: jnp.prod(x, 1), roundings=8),
        "max": along(lambda x: nm.max(x, over=R), lambda x: jnp.max(x, 1), distinct),
        "min": along(lambda x: nm.min(x, over=R), lambda x: jnp.min(x, 1), distinct),
        "any": along(lambda x: nm.any(x, over=R), lambda x: jnp.any(x, 1), truth),
        "all": along(lambda x: nm.all(x, over=R), lambda x: jnp.all(x, 1), truth),
        "var": along(lambda x: nm.var(x, over=R), lambda x: jnp.var(x, 1)),
        "std": along(lambda x: nm.std(x, over=R), lambda x: jnp.std(x, 1)),
        "logsumexp": along(lambda x: nm.logsumexp(x, over=R), lambda x: jax.nn.logsumexp(x, 1)),
        "softmax": along(lambda x: nm.softmax(x, over=R), lambda x: jax.nn.softmax(x, 1)),
        "softmax (with one logit more)": along(
            lambda x, e: nm.softmax(x, over=R, extra=e),
            lambda x, e: jax.nn.softmax(jnp.concatenate([x, e[:, None]], 1), 1)[:, :-1],
            real,
            kit.real(B, C),
        ),
        "logsumexp (with one logit more)": along(
            lambda x: nm.logsumexp(x, over=R, extra=0.5),
            lambda x: jax.nn.logsumexp(
                jnp.pad(x, ((0, 0), (0, 1), (0, 0)), constant_values=0.5), 1
            ),
        ),
        "log_softmax": along(
            lambda x: nm.log_softmax(x, over=R), lambda x: jax.nn.log_softmax(x, 1)
        ),
        "einsum": Entry(
            lambda x, w: nm.einsum([x, w], [B, R, H]),
            lambda x, w: jnp.einsum("brc,ch->brh", x, w),
            [real, kit.real(C, H)],
            own=[C, H],
        ),
        "einsum (three operands)": Entry(
            lambda x, y, w: nm.einsum([x, y, w], [B, H]),
            lambda x, y, w: jnp.einsum("brc,br,ch->bh", x, y, w),
            [real, kit.real(B, R), kit.real(C, H)],
            own=[R, C, H],
        ),
        "cumsum": along(lambda x: nm.cumsum(x, R), lambda x: jnp.cumsum(x, 1), roundings=8),
        "cumprod": along(
            lambda x: nm.cumprod(x, R),
            lambda x: jnp.cumprod(x, 1),
            kit.positive(B, R, C),
            roundings=8,
        ),
        "argmax": along(lambda x: nm.argmax(x, over=R), lambda x: jnp.argmax(x, 1), distinct),
        "argmin": along(lambda x: nm.argmin(x, over=R), lambda x: jnp.argmin(x, 1), distinct),
        "argsort": along(lambda x: nm.argsort(x, R), lambda x: jnp.argsort(x, 1), distinct),
        "sort": along(lambda x: nm.sort(x, R), lambda x: jnp.sort(x, 1), distinct),
        "top_k": Entry(lambda x: nm.top_k(x, R, K), best, [distinct], own=[R, K]),
    }
