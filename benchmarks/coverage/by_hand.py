"""Manual regions' collectives, and functions of jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

import namedmesh as nm
from benchmarks.coverage.entry import Entry
from benchmarks.coverage.kit import Kit


def entries(kit: Kit) -> dict[str, Entry]:
    """Collectives along a dimension of shards, each in a region with something around it."""
    P, B, C = kit.dim("shard"), kit.B, kit.C
    A = nm.Dimension("all", P.size)
    row, square = kit.real(P, C), kit.real(P, A, C)
    swapped = [1, 0, None, *range(3, P.size)]
    both = nm.spec([B, kit.R], kit.dtype)

    def region(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *tensors: nm.manual(function, *tensors, over=P)

    def numbered(x):
        return x * nm.cast(nm.collective.index(P), x.dtype)

    def swap(x):
        return jnp.stack([x[0] * 0 if i is None else x[i] for i in swapped])

    def product(x, w):
        return nm.call_jax(lambda x, w: jnp.tanh(x @ w), x, w, result=both, batch=[B])

    return {
        "collective.sum": Entry(
            region(lambda x: nm.sin(x) * nm.collective.sum(x, P)),
            lambda x: jnp.sin(x) * x.sum(0),
            [row],
            [P],
        ),
        "collective.gather": Entry(
            region(lambda x: nm.einsum([x, nm.collective.gather(x, P, A)], [P, A])),
            lambda x: x @ x.T,
            [row],
            [P],
        ),
        "collective.scatter_sum": Entry(
            region(lambda x: nm.sin(nm.collective.scatter_sum(x, P, A))),
            lambda x: jnp.sin(x.sum(0)),
            [square],
            [P, A],
        ),
        "collective.all_to_all": Entry(
            region(lambda x: nm.sin(nm.collective.all_to_all(x, P, A))),
            lambda x: jnp.sin(x.swapaxes(0, 1)),
            [square],
            [P, A],
        ),
        "collective.permute": Entry(
            region(lambda x: nm.sin(nm.collective.permute(x, P, by=2))),
            lambda x: jnp.sin(jnp.roll(x, 2, 0)),
            [row],
            [P],
        ),
        "collective.permute (sources)": Entry(
            region(lambda x: nm.sin(nm.collective.permute(x, P, sources=swapped))),
            lambda x: jnp.sin(swap(x)),
            [row],
            [P],
        ),
        "collective.index": Entry(
            region(lambda x: nm.square(numbered(x))),
            lambda x: (x * jnp.arange(P.size)[:, None]) ** 2,
            [row],
            [P],
        ),
        "call_jax": Entry(
            product,
            lambda x, w: jnp.tanh(x @ w),
            [kit.real(B, C), kit.real(C, kit.R)],
            [C, kit.R],
        ),
    }
