"""Ops that compare, count and find, statistics, segments, and matrices along two dimensions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import namedmesh as nm
from benchmarks.coverage.entry import Entry, Input
from benchmarks.coverage.kit import Kit


def entries(kit: Kit) -> dict[str, Entry]:
    """Everything in ops/counting, statistics, segments and matrices."""
    return _counting(kit) | _statistics(kit) | _segments(kit) | _matrices(kit)


def _counting(kit: Kit) -> dict[str, Entry]:
    B, R, C = kit.B, kit.R, kit.C
    V, K, S = kit.dim("value", 8, 5), kit.dim("found", 4, 3), nm.Dimension("sorted", 80)
    real, whole, truth = kit.real(B, R, C), kit.whole(B, R, below=9), kit.truth(B, R, C)
    eighths, few = kit.eighths(B, R, C), kit.whole(B, R, C, below=3)

    def along(named, reference, *inputs, own=(R,), **options):
        return Entry(named, reference, inputs or (real,), own=own, **options)

    def find(x, fill):
        found = lambda row: jnp.nonzero(row, size=K.size, fill_value=fill)[0].astype("int32")
        return jnp.moveaxis(jax.vmap(jax.vmap(found))(jnp.moveaxis(x, 1, 2)), 2, 1)

    def differ(x):
        one = lambda row: jnp.unique(row, size=K.size, fill_value=0, return_counts=True)
        values, times = jax.vmap(jax.vmap(one))(jnp.moveaxis(x, 1, 2))
        times = times.astype("int32")
        return jnp.moveaxis(values, 2, 1), jnp.moveaxis(jnp.where(times > 0, times, 0), 2, 1)

    search = lambda x, v: jax.vmap(lambda x, v: jnp.searchsorted(x, v))(x, v).astype("int32")
    counted = lambda x: jnp.bincount(x.reshape(-1), length=V.size).astype("int32")

    def binned(x):
        counts, edges = jnp.histogram(x, V.size, (-1.03, 1.5))
        return counts.astype("int32"), edges

    return {
        "is_nan": along(lambda x: nm.is_nan(nm.log(x)), lambda x: jnp.isnan(jnp.log(x))),
        "isclose": along(
            lambda x: nm.isclose(x, 0.5, 0.1, 0.5), lambda x: jnp.isclose(x, 0.5, 0.1, 0.5), eighths
        ),
        "allclose": along(
            lambda x: nm.allclose(x, 0.0, atol=3.0), lambda x: jnp.allclose(x, 0.0, atol=3.0)
        ),
        "count_nonzero": along(
            lambda x: nm.count_nonzero(x, R), lambda x: jnp.count_nonzero(x, 1).astype("int32"), few
        ),
        "count_nonzero (of bool)": along(
            lambda x: nm.count_nonzero(x, R), lambda x: jnp.sum(x, 1).astype("int32"), truth
        ),
        "bincount": along(lambda x: nm.bincount(x, V), counted, whole, own=[R, V]),
        "histogram": along(lambda x: nm.histogram(x, V, -1.03, 1.5), binned, eighths, own=[R, V]),
        "searchsorted": along(
            lambda x, v: nm.searchsorted(nm.sort(x, R), v, R),
            lambda x, v: search(jnp.sort(x, 1), v),
            kit.distinct(B, R),
            kit.real(B, C),
        ),
        "searchsorted (by halves)": along(
            lambda x, v: nm.searchsorted(x, v, S, side="right"),
            lambda x, v: jnp.searchsorted(x, v, side="right").astype("int32"),
            Input(nm.spec([S], "int32"), lambda rng, sizes: np.sort(rng.integers(0, 99, sizes))),
            kit.whole(B, C, below=99),
            own=[S],
        ),
        "nonzero": along(
            lambda x: nm.nonzero(x, R, K, fill=-1), lambda x: find(x, -1), truth, own=[R, K]
        ),
        "unique": along(lambda x: nm.unique(x, R, K), differ, few, own=[R, K]),
    }


def _statistics(kit: Kit) -> dict[str, Entry]:
    B, R, C = kit.B, kit.R, kit.C
    distinct, real = kit.distinct(B, R, C), kit.real(B, R, C)

    def along(named, reference, x=real, **options):
        return Entry(named, reference, [x], own=[R], **options)

    def some(name):
        """Leave out what is above a number, by making it nan."""
        named, reference = getattr(nm, name), getattr(jnp, name)
        return along(
            lambda x: named(nm.where(x > 0.7, float("nan"), x), over=R),
            lambda x: reference(jnp.where(x > 0.7, jnp.nan, x), 1),
            distinct,
            roundings=8,
        )

    names = ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin")
    return {name: some(name) for name in names} | {
        "median": along(lambda x: nm.median(x, R), lambda x: jnp.median(x, 1), distinct),
        "quantile": along(
            lambda x: nm.quantile(x, 0.3, R), lambda x: jnp.quantile(x, 0.3, 1), distinct
        ),
        "norm": along(lambda x: nm.norm(x, R), lambda x: jnp.linalg.norm(x, axis=1)),
        "norm (of order 3)": along(
            lambda x: nm.norm(x, R, 3), lambda x: jnp.linalg.norm(x, 3, axis=1), roundings=8
        ),
        "norm (largest)": along(
            lambda x: nm.norm(x, R, float("inf")),
            lambda x: jnp.linalg.norm(x, jnp.inf, axis=1),
            kit.distinct(B, R, C),
        ),
    }


def _segments(kit: Kit) -> dict[str, Entry]:
    R, C = kit.R, kit.C
    N = kit.dim("node", 8, 5)
    distinct, real, segments = kit.distinct(R, C), kit.real(R, C), kit.whole(R, below=N.size + 1)

    def each(name, reference, x=real, own=(R, N)):
        named = getattr(nm, name)
        return Entry(lambda x, s: named(x, s, N), reference, [x, segments], own, roundings=8)

    total = lambda x, s: jax.ops.segment_sum(x, s, N.size)
    extreme = lambda find, none: (
        lambda x, s: jnp.where(
            jax.ops.segment_sum(jnp.ones_like(x), s, N.size) > 0, find(x, s, N.size), none
        )
    )

    def mean(x, s):
        return total(x, s) / jnp.maximum(total(jnp.ones_like(x), s), 1)

    def share(x, s):
        e, inside = jnp.exp(x), (s < N.size)[:, None]
        sums = jnp.where(inside, total(e, s)[jnp.minimum(s, N.size - 1)], 1)
        return jnp.where(inside, e / sums, 0)

    inner = lambda name: (
        lambda x, s: nm.where(
            nm.is_finite(getattr(nm, name)(x, s, N)), getattr(nm, name)(x, s, N), 0.0
        )
    )
    return {
        "segment_sum": each("segment_sum", total),
        "segment_mean": each("segment_mean", mean),
        "segment_max": Entry(
            inner("segment_max"), extreme(jax.ops.segment_max, 0.0), [distinct, segments], [R, N]
        ),
        "segment_min": Entry(
            inner("segment_min"), extreme(jax.ops.segment_min, 0.0), [distinct, segments], [R, N]
        ),
        "segment_softmax": each("segment_softmax", share),
    }


def _matrices(kit: Kit) -> dict[str, Entry]:
    B, R, C = kit.B, kit.R, kit.C
    real = kit.real(B, R, C)

    def along(named, reference):
        return Entry(named, reference, [real], own=[R, C])

    return {
        "eye": along(lambda x: x * nm.eye(R, C, kit.dtype), lambda x: x * jnp.eye(*x.shape[1:])),
        "tril": along(lambda x: nm.tril(x, R, C, 1), lambda x: jnp.tril(x, 1)),
        "triu": along(lambda x: nm.triu(x, R, C, -1), lambda x: jnp.triu(x, -1)),
        "diagonal": along(
            lambda x: nm.diagonal(x, R, C), lambda x: jnp.diagonal(x, axis1=1, axis2=2)
        ),
    }
