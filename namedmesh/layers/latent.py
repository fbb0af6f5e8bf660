"""Latent attention: keys and values of all heads are made of one short vector for each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import namedmesh as nm
from namedmesh.layers.attention import Heads, average_values
from namedmesh.layers.linear import dense
from namedmesh.layers.norm import rms_norm
from namedmesh.layers.weights import get_weights

Rotate = Callable[[nm.Tensor, nm.Dimension], nm.Tensor]


@dataclass(frozen=True)
class LatentHeads:
    """The dimensions of latent attention, as in DeepSeek-V2 and V3.

    Attributes:
        model: The dimension of the layer's input and output.
        heads: The dimension of heads.
        key: The dimension of the part of a head's queries and keys that has no position.
        rotated: The dimension of the part that is rotated by its position, whose key heads share.
        value: The dimension of a head's values.
        latent: The dimension of what keys and values are made of.
        query_latent: The dimension of what queries are made of, or None for the input itself.

    Example:
        >>> dims = nm.dims("model=8 heads=2 key=4 rotated=2 value=3 latent=5")
        >>> LatentHeads(*dims).cached
        Dimension(name='latent', size=7)
    """

    model: nm.Dimension
    heads: nm.Dimension
    key: nm.Dimension
    rotated: nm.Dimension
    value: nm.Dimension
    latent: nm.Dimension
    query_latent: nm.Dimension | None = None

    @property
    def whole(self) -> Heads:
        """Attention over keys that are written out for every head: both parts of them."""
        return Heads(self.model, self.heads, self.key.resized(self.key.size + self.rotated.size))

    @property
    def cached(self) -> nm.Dimension:
        """A cache's entry for a token: the latent vector, and the rotated key."""
        return self.latent.resized(self.latent.size + self.rotated.size)

    @property
    def absorbed(self) -> Heads:
        """Attention over cached vectors, which all heads share."""
        return Heads(self.model, self.heads, self.cached)

    def project(
        self, x: nm.Tensor, rotate: Rotate, *, bias: bool = False, epsilon: float = 1e-6
    ) -> tuple[nm.Tensor, nm.Tensor]:
        """Project x to both parts of the queries, and to what a cache keeps of it.

        Args:
            x: The input, with the model dimension.
            rotate: Rotates a tensor along its dimension `rotated` by the positions.
            bias: Whether the projections of x to latent vectors have one.
            epsilon: That of the norms of latent vectors.
        """
        source, over = x, self.model
        if self.query_latent is not None:
            over = self.query_latent
            source = dense(x, [self.model], [over], name="wq_latent", bias=bias)
            source = rms_norm(source, over, name="query_latent", epsilon=epsilon)
        q = dense(source, [over], [self.heads, self.key], name="wq")
        q_rotated = dense(source, [over], [self.heads, self.rotated], name="wq_rotated")
        latent = dense(x, [self.model], [self.latent], name="wk_latent", bias=bias)
        latent = rms_norm(latent, self.latent, name="latent", epsilon=epsilon)
        key = dense(x, [self.model], [self.rotated], name="wk_rotated", bias=bias)
        queries = self._join(q, self.key, rotate(q_rotated, self.rotated))
        return queries, self._join(latent, self.latent, rotate(key, self.rotated))

    def expand(self, cached: nm.Tensor) -> tuple[nm.Tensor, nm.Tensor]:
        """Return the keys and the values of all heads, from what a cache keeps."""
        latent, rotated = self._part(cached, self.latent)
        rest, (wk, wv) = latent.shape.without(self.latent.name), self._weights(cached.dtype)
        k = nm.einsum([latent, wk], [*rest, self.heads, self.key])
        shared = nm.broadcast(rotated, [*k.shape.without(self.key.name), self.rotated])
        v = nm.einsum([latent, wv], [*rest, self.heads, self.value])
        return self._join(k, self.key, shared), v

    def attend_cached(
        self,
        q: nm.Tensor,
        cached: nm.Tensor,
        seq: nm.Dimension,
        memory: Sequence[nm.Dimension],
        **options: Any,
    ) -> nm.Tensor:
        """Average cached vectors: equal to attention over keys and values that are written out.

        Args:
            q: Queries of `project`.
            cached: What a cache keeps, with the memory dimensions.
            seq, memory, options: As in `average_values`, with a scale.
        """
        plain, rotated = self._part(q, self.key)
        rest = [dim for dim in q.shape.dims[:-1] if dim != self.heads]
        wk, wv = self._weights(q.dtype)
        q = nm.einsum([plain, wk], [*rest, self.heads, self.latent])
        q = self._join(q, self.latent, rotated)
        v, _ = self._part(cached, self.latent)
        context = average_values(q, cached, v, seq, memory, self.absorbed, **options)
        return nm.einsum([context, wv], [*rest, self.heads, self.value])

    def _weights(self, dtype: str) -> list[nm.Tensor]:
        """Return the weights that make keys and values of latent vectors."""
        make, over = get_weights().make, [self.latent]
        return [
            nm.cast(make(name, [*over, self.heads, dim], nm.fan_in_init(*over), over), dtype)
            for name, dim in (("wk", self.key), ("wv", self.value))
        ]

    def _part(self, both: nm.Tensor, dim: nm.Dimension) -> tuple[nm.Tensor, nm.Tensor]:
        """Take apart what `_join` has put together along the last dimension."""
        last, size = both.shape.dims[-1], self.rotated.size
        rotated = nm.slice(both, last, dim.size, size)
        return nm.slice(both, last, 0, dim.size), nm.rename(
            rotated, dim.resized(size), self.rotated
        )

    def _join(self, one: nm.Tensor, dim: nm.Dimension, rotated: nm.Tensor) -> nm.Tensor:
        """Put a rotated part behind another."""
        rotated = nm.rename(rotated, self.rotated, dim.resized(self.rotated.size))
        return nm.concat([one, rotated], dim)
