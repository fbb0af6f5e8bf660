"""From attention in named dimensions to what its kernel reads, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from namedmesh.artifacts.kernels.attention_tiles import (
    BACKWARD_KEYS,
    BACKWARD_QUERIES,
    FORWARD,
    Options,
    Tiles,
    run_backward,
    run_forward,
)

SMALLEST = 16  # the least size of a product's side
LARGEST_KEY = 128  # what fits beside the tiles


@dataclass(frozen=True)
class AttentionCall:
    """One call of the kernel: how many dimensions stand for batch, queries and heads.

    Attributes:
        batch: Sizes before the positions, which the kernel takes as one.
        queries: Sizes of the positions that attend, taken as one.
        heads: Sizes after the positions, taken as one.
        memory: The number of keys.
        key: The size of a key.
        mask: The sizes of the mask with ones where it does not have a dimension; None without one.
        options: The scale and the dropout.
    """

    batch: tuple[int, ...]
    queries: tuple[int, ...]
    heads: tuple[int, ...]
    memory: int
    key: int
    mask: tuple[int, ...] | None
    options: Options

    @classmethod
    def of(cls, told: dict[str, Any], reads: Sequence[jax.ShapeDtypeStruct]) -> Self | None:
        """Describe a call; None for what the kernel does not do."""
        q, k = reads[0].shape, reads[1].shape
        batch, queries = q[: told["batch"]], q[told["batch"] : told["batch"] + told["queries"]]
        heads, memory, key = q[len(batch) + len(queries) : -1], k[told["batch"]], q[-1]
        mask = None
        if told["mask"] is not None:
            sizes = dict(zip(told["mask"], reads[3].shape, strict=True))
            mask = tuple(sizes.get(name, 1) for name in told["rows"])
            if len(sizes) > sum(name in sizes for name in told["rows"]):
                return None  # a mask for each head
        fits = (
            key & (key - 1) == 0
            and SMALLEST <= key <= LARGEST_KEY
            and reads[0].dtype in (jnp.bfloat16, jnp.float16)
            and math.prod(queries) % SMALLEST == 0
            and memory % SMALLEST == 0
        )
        if not fits:
            return None
        options = Options(told["scale"], told["rate"])
        return cls(batch, queries, heads, memory, key, mask, options)

    def tiles(self, wanted: Tiles) -> Tiles:
        """The tiles nearest to those wanted that cut the sizes at hand evenly."""
        return Tiles(
            math.gcd(wanted.queries, math.prod(self.queries)),
            math.gcd(wanted.keys, self.memory),
            wanted.warps,
            wanted.stages,
        )

    def shared(self, reads: Sequence[Any]) -> tuple[Any, Any, Any, Any, Any]:
        """What both passes read: queries, keys, values, mask and words, as the kernel has them."""
        b, s, n = (math.prod(sizes) for sizes in (self.batch, self.queries, self.heads))
        q, k, v, *extra = reads
        mask = words = None
        if self.mask is not None:
            mask = extra[0].reshape(self.mask)
            sizes = list(self.mask)
            if any(size > 1 for size in self.mask[: len(self.batch)]):
                sizes[: len(self.batch)] = self.batch
            sizes[len(self.batch) :] = [*self.queries, self.memory]
            mask = jnp.broadcast_to(mask, sizes).astype(jnp.int8)
            mask = mask.reshape(math.prod(sizes[: len(self.batch)]), s, self.memory)
        if self.options.rate:
            words = extra[-1].reshape(b, n, s)
        keys = (b, self.memory, n, self.key)
        return q.reshape(b, s, n, self.key), k.reshape(keys), v.reshape(keys), mask, words

    def forward(self, *reads: Any) -> tuple[Any, ...]:
        """The averages, and the logarithm of every row's sum of exponentials."""
        q, k, v, mask, words = self.shared(reads)
        tiles = self.tiles(FORWARD)
        y, lse = run_forward(q, k, v, mask, words, self.options, tiles=tiles)
        return (
            y.reshape(*self.batch, *self.queries, *self.heads, self.key),
            lse.reshape(*self.batch, *self.heads, *self.queries),
        )

    def backward(self, *reads: Any) -> tuple[Any, ...]:
        """The cotangents of queries, keys and values."""
        *first, y, lse, dy = reads
        q, k, v, mask, words = self.shared(first)
        rows = (q.shape[0], q.shape[2], q.shape[1])
        made = run_backward(
            q,
            k,
            v,
            mask,
            words,
            y.reshape(q.shape),
            lse.reshape(rows),
            dy.reshape(q.shape),
            self.options,
            by_keys=self.tiles(BACKWARD_KEYS),
            by_queries=self.tiles(BACKWARD_QUERIES),
        )
        return tuple(x.reshape(like.shape) for x, like in zip(made, reads, strict=False))
