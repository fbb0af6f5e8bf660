"""Ops that read or write at indices."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import namedmesh as nm
from benchmarks.coverage.entry import Entry
from benchmarks.coverage.kit import Kit


def look_up(table, indices):
    """Rows of a table; zeros for an index outside it."""
    inside = (indices >= 0) & (indices < len(table))
    rows = table[jnp.where(inside, indices, 0)]
    return jnp.where(inside.reshape(inside.shape + (1,) * (table.ndim - 1)), rows, 0)


def entries(kit: Kit) -> dict[str, Entry]:
    """gather, scatter_add, one_hot, x[...], x.at[...] and their kin."""
    B, R, C = kit.B, kit.R, kit.C
    V, K, S = kit.dim("vocab", 16, 9), kit.dim("kept", 4, 3), kit.dim("seq", 8, 5)
    real, picked = kit.real(B, R, C), kit.whole(S, below=R.size)
    start = kit.whole(below=R.size - 3)
    table, tokens = kit.real(V, C), kit.whole(B, S, low=-1, below=V.size + 1)

    def along(named, reference, *inputs, own=(R,)):
        return Entry(named, reference, inputs or (real,), own=own)

    def place(updates, indices):
        kept = jnp.where((indices >= 0) & (indices < V.size), indices, V.size)
        return jnp.zeros((V.size + 1, C.size)).at[kept].add(updates)[:-1]

    def compressed(x, mask):
        order = jnp.argsort(~mask, stable=True)[: K.size]
        return x[:, order] * mask[order][:, None]

    def update(x, new, at):
        return jax.lax.dynamic_update_slice_in_dim(x, new, at, 1)

    some = kit.real(B, S, C)
    indices = [4, 0, 2]
    few = kit.distinct(B, R.resized(3), C)
    written = lambda: nm.constant(indices, [R.resized(3)])
    return {
        "gather": along(lambda t, i: nm.gather(t, i, V), look_up, table, tokens, own=[V]),
        "gather (of each row its own)": along(
            lambda x, i: nm.gather(x, i, R),
            lambda x, i: jnp.take_along_axis(x, i[:, :, None], 1),
            real,
            kit.whole(B, S, below=R.size),
        ),
        "gather (nearest)": along(
            lambda t, i: nm.gather(t, i, V, mode="clip"),
            lambda t, i: t[jnp.clip(i, 0, V.size - 1)],
            table,
            tokens,
            own=[V],
        ),
        "gather (from the other end)": along(
            lambda t, i: nm.gather(t, i, V, mode="wrap"),
            lambda t, i: t[i % V.size],
            table,
            tokens,
            own=[V],
        ),
        "gather (filled)": along(
            lambda t, i: nm.gather(t, i, V, fill=2.0),
            lambda t, i: jnp.where(((i >= 0) & (i < V.size))[..., None], look_up(t, i), 2.0),
            table,
            tokens,
            own=[V],
        ),
        "gather (of two dimensions)": along(
            lambda x, i, j: nm.gather(x, [i, j], [R, C]),
            lambda x, i, j: x[:, i, j],
            real,
            picked,
            kit.whole(S, below=C.size),
            own=[R, C, S],
        ),
        "scatter (set)": along(
            lambda x, y: nm.scatter(x, y, written(), R),
            lambda x, y: x.at[:, jnp.array(indices)].set(y),
            real,
            few,
        ),
        "scatter_add": along(
            lambda u, i: nm.scatter_add(u, i, V),
            place,
            kit.real(R, C),
            kit.whole(R, low=-1, below=V.size + 1),
            own=[R, V],
        ),
        "one_hot": along(
            lambda i: nm.one_hot(i, V, kit.dtype),
            lambda i: jax.nn.one_hot(i, V.size),
            tokens,
            own=[V],
        ),
        "take": along(lambda x: nm.take(x, R, -2), lambda x: x[:, -2]),
        "compress": along(
            lambda x, m: nm.compress(x, m, R, K), compressed, real, kit.truth(R), own=[R, K]
        ),
        "dynamic_slice": along(
            lambda x, at: nm.dynamic_slice(x, at, R, 3),
            lambda x, at: jax.lax.dynamic_slice_in_dim(x, at, 3, 1),
            real,
            start,
        ),
        "dynamic_update": along(
            lambda x, new, at: nm.dynamic_update(x, new, at, R),
            update,
            real,
            kit.real(B, R.resized(3), C),
            start,
        ),
        "x[dim, number]": along(lambda x: x[R, 3], lambda x: x[:, 3]),
        "x[dim, slice]": along(lambda x: x[R, 6:1:-2], lambda x: x[:, 6:1:-2]),
        "x[dim, tensor]": along(
            lambda x, i: x[R, i], lambda x, i: x[:, i], real, picked, own=[R, S]
        ),
        "x.at[dim, number].set": along(
            lambda x, y: x.at[R, 3].set(y), lambda x, y: x.at[:, 3].set(y), real, kit.real(B, C)
        ),
        "x.at[dim, slice].add": along(
            lambda x, y: x.at[R, 1:4].add(y), lambda x, y: x.at[:, 1:4].add(y), real, few
        ),
        "x.at[dim, tensor].set": along(
            lambda x, y: x.at[R, written()].set(y),
            lambda x, y: x.at[:, jnp.array(indices)].set(y),
            real,
            few,
        ),
        "x.at[dim, tensor].add": along(
            lambda x, y, i: x.at[R, i].add(y),
            lambda x, y, i: x.at[:, i].add(y),
            real,
            some,
            picked,
            own=[R, S],
        ),
        "x.at[dim, tensor].multiply": along(
            lambda x, y, i: x.at[R, i].multiply(y),
            lambda x, y, i: (
                x
                * jnp.prod(
                    jnp.where(i[:, None, None] == jnp.arange(R.size)[:, None], y[:, :, None], 1), 1
                )
            ),
            real,
            some,
            picked,
            own=[R, S],
        ),
        "x.at[dim, tensor].max": along(
            lambda x, y: x.at[R, written()].max(y),
            lambda x, y: x.at[:, jnp.array(indices)].set(jnp.maximum(x[:, jnp.array(indices)], y)),
            kit.eighths(B, R, C),
            few,
        ),
        "x.at[dim, tensor].min": along(
            lambda x, y: x.at[R, written()].min(y),
            lambda x, y: x.at[:, jnp.array(indices)].set(jnp.minimum(x[:, jnp.array(indices)], y)),
            kit.eighths(B, R, C),
            few,
        ),
    }
