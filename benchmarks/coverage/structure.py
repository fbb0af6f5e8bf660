"""Ops that move elements: shapes, joins, windows, convolutions, and moves between devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import namedmesh as nm
from benchmarks.coverage.entry import Entry
from benchmarks.coverage.kit import Kit


def entries(kit: Kit) -> dict[str, Entry]:
    """Everything that changes the shape or the place of a tensor."""
    return _shapes(kit) | _joins(kit) | _windows(kit) | _moves(kit)


def _shapes(kit: Kit) -> dict[str, Entry]:
    B, R, C = kit.B, kit.R, kit.C
    other, both = nm.Dimension("other", R.size), nm.Dimension("both", R.size * C.size)
    first, second = kit.dim("first", 4, 7), nm.Dimension("second", 2 - kit.uneven)
    real = kit.real(B, R, C)
    return {
        "rename": Entry(lambda x: nm.rename(x, R, other), lambda x: x, [real], own=[R, other]),
        "transpose": Entry(
            lambda x: nm.transpose(x, [C, B, R]), lambda x: x.transpose(2, 0, 1), [real], own=[R, C]
        ),
        "reshape": Entry(
            lambda x: nm.reshape(x, [R, C], both),
            lambda x: x.reshape(B.size, -1),
            [real],
            own=[R, C, both],
        ),
        "reshape (into several)": Entry(
            lambda x: nm.reshape(x, R, [first, second]),
            lambda x: x.reshape(B.size, first.size, second.size, C.size),
            [real],
            own=[R, first, second],
        ),
        "broadcast": Entry(
            lambda x: nm.broadcast(x, [other, B, C]),
            lambda x: jnp.broadcast_to(x, (other.size, *x.shape)),
            [kit.real(B, C)],
            own=[other],
        ),
    }


def _joins(kit: Kit) -> dict[str, Entry]:
    B, R, C = kit.B, kit.R, kit.C
    copy = nm.Dimension("copy", 2)
    real, longer = kit.real(B, R, C), kit.real(B, R.resized(R.size + 1), C)

    def along(named, reference, *inputs, own=(R,)):
        return Entry(named, reference, inputs or (real,), own=own)

    parts = [3, R.size - 3]
    return {
        "concat": along(
            lambda x, y: nm.concat([x, y], "row"),
            lambda x, y: jnp.concatenate([x, y], 1),
            real,
            longer,
        ),
        "chunk": along(lambda x: nm.chunk(x, R, parts), lambda x: tuple(jnp.split(x, [3], 1))),
        "stack": along(
            lambda x, y: nm.stack([x, y], copy),
            lambda x, y: jnp.stack([x, y]),
            real,
            real,
            own=[copy],
        ),
        "unstack": along(
            lambda x: nm.unstack(x, R), lambda x: tuple(x[:, i] for i in range(R.size))
        ),
        "repeat": along(lambda x: nm.repeat(x, R, 2), lambda x: jnp.repeat(x, 2, 1)),
        "tile": along(lambda x: nm.tile(x, R, 2), lambda x: jnp.tile(x, (1, 2, 1))),
    }


def _windows(kit: Kit) -> dict[str, Entry]:
    B, R, C = kit.B, kit.R, kit.C
    K, F = nm.dims("window=3 out=4")
    real, distinct = kit.real(B, R, C), kit.distinct(B, R, C)
    weight = kit.real(K, C, F)

    def along(named, reference, *inputs, own=(R,), **options):
        return Entry(named, reference, inputs or (real,), own=own, **options)

    def convolve(x, w, stride=1):
        numbers = ("NWC", "WIO", "NWC")
        return jax.lax.conv_general_dilated(x, w, (stride,), "SAME", dimension_numbers=numbers)

    def transposed(x, w):
        sizes = (B.size, 2 * R.size, F.size)
        forward = lambda y: convolve(y, w.transpose(0, 2, 1), 2)
        return jax.linear_transpose(forward, jax.ShapeDtypeStruct(sizes, x.dtype))(x)[0]

    def slid(x, window, stride):
        count = (R.size - window) // stride + 1
        last = (count - 1) * stride + 1
        return jnp.stack([x[:, i : i + last : stride] for i in range(window)], -1)

    return {
        "slice": along(lambda x: nm.slice(x, R, 1, 3, 2), lambda x: x[:, 1:6:2]),
        "pad": along(
            lambda x: nm.pad(x, R, 1, 2, 0.5),
            lambda x: jnp.pad(x, ((0, 0), (1, 2), (0, 0)), constant_values=0.5),
        ),
        "pad (reflect)": along(
            lambda x: nm.pad(x, R, 1, 2, mode="reflect"),
            lambda x: jnp.pad(x, ((0, 0), (1, 2), (0, 0)), "reflect"),
        ),
        "pad (edge)": along(
            lambda x: nm.pad(x, R, 3, mode="edge"),
            lambda x: jnp.pad(x, ((0, 0), (3, 0), (0, 0)), "edge"),
        ),
        "pad (wrap)": along(
            lambda x: nm.pad(x, R, 1, 2, mode="wrap"),
            lambda x: jnp.pad(x, ((0, 0), (1, 2), (0, 0)), "wrap"),
        ),
        "reverse": along(lambda x: nm.reverse(x, R), lambda x: x[:, ::-1]),
        "roll": along(lambda x: nm.roll(x, R, 3), lambda x: jnp.roll(x, 3, 1)),
        "roll (by a tensor)": along(
            lambda x, by: nm.roll(x, R, by), lambda x, by: jnp.roll(x, by, 1), real, kit.whole()
        ),
        "shift": along(
            lambda x: nm.shift(x, R, -2, 0.5),
            lambda x: jnp.pad(x[:, 2:], ((0, 0), (0, 2), (0, 0)), constant_values=0.5),
        ),
        "resize": along(
            lambda x: nm.resize(x, {R: 2 * R.size + 1}),
            lambda x: jax.image.resize(x, (x.shape[0], 2 * R.size + 1, x.shape[2]), "linear"),
        ),
        "resize (nearest)": along(
            lambda x: nm.resize(x, {R: 5}, "nearest"),
            lambda x: jax.image.resize(x, (x.shape[0], 5, x.shape[2]), "nearest"),
        ),
        "windows": along(
            lambda x: nm.windows(x, {R: K}, stride=2), lambda x: slid(x, 3, 2), own=[R, K]
        ),
        "pool": along(lambda x: nm.pool(x, {R: 2}), lambda x: slid(x, 2, 2).max(-1), distinct),
        "pool (mean)": along(
            lambda x: nm.pool(x, {R: 3}, "mean", stride=1), lambda x: slid(x, 3, 1).mean(-1)
        ),
        "conv": along(lambda x, w: nm.conv(x, w, {R: K}), convolve, real, weight, own=[R, C, K, F]),
        "conv (stride 2)": along(
            lambda x, w: nm.conv(x, w, {R: K}, stride=2),
            lambda x, w: convolve(x, w, 2),
            real,
            weight,
            own=[R, C, K, F],
        ),
        "conv_transpose": along(
            lambda x, w: nm.conv_transpose(x, w, {R: K}, stride=2),
            transposed,
            real,
            weight,
            own=[R, C, K, F],
        ),
    }


def _moves(kit: Kit) -> dict[str, Entry]:
    B, R, C = kit.B, kit.R, kit.C
    real = kit.real(B, R, C)

    def moved(move):
        return Entry(lambda x: nm.sin(move(x)), jnp.sin, [real], own=[R])

    return {
        "replicate": moved(lambda x: nm.replicate(x, R)),
        "reshard": moved(lambda x: nm.reshard(x, R)),
        "split": moved(lambda x: nm.split(x, R)),
        "shard": moved(lambda x: nm.shard(x, {R: "x"})),
    }
