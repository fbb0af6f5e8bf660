"""Attention by cuDNN on GPUs of this machine, where there is no dropout and no mask but causality.

Its backward pass multiplies five times where two passes that write each result once multiply seven
times. It adds cotangents of queries up in no fixed order.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from namedmesh.artifacts.stablehlo.attention_kernel import AttentionCall
from namedmesh.jax_internals import cudnn_attention, find_cudnn

LEAST = 1024  # queries and keys: our own kernel was tuned with fewer, cuDNN measured with more
LARGEST_KEY = 256


@dataclass(frozen=True)
class CudnnAttentionCall(AttentionCall):
    """One call, of which cuDNN takes all heads of queries as one dimension after the positions."""

    causal: bool = False
    place: int = 0  # of the positions among the dimensions of queries alone

    @classmethod
    def of(cls, config: dict[str, Any], reads: Sequence[jax.ShapeDtypeStruct]) -> Self | None:
        """Describe a call; None for what cuDNN does not do, or does not do as quickly."""
        masked = config["mask"] is not None
        if config["rate"] or (masked and "causal" not in config) or not find_cudnn():
            return None
        call, place = super().of(config, reads), config.get("causal", 0)
        if call is None or not call.queries or (masked and call.queries[place] != call.memory):
            return None
        return dataclasses.replace(call, causal=masked, place=place)

    @classmethod
    def fits(cls, dtype: Any, queries: int, memory: int, key: int) -> bool:
        """Return whether cuDNN takes operands of these sizes."""
        known = dtype in (jnp.bfloat16, jnp.float16) and key % 8 == 0 and key <= LARGEST_KEY
        return known and queries >= LEAST and memory >= LEAST

    @property
    def order(self) -> list[int]:
        """The dimensions of batch, queries, heads and key: positions, heads, groups and key."""
        count = len(self.queries)
        groups = [1 + i for i in range(count) if i != self.place]
        return [0, 1 + self.place, 1 + count, *groups, 2 + count]

    @property
    def sizes(self) -> list[int]:
        """The sizes of batch, queries, heads and key."""
        return [math.prod(self.batch), *self.queries, math.prod(self.heads), self.key]

    def of_queries(self, x: Any) -> Any:
        """Bring an array of queries into cuDNN's order."""
        x = jnp.transpose(x.reshape(self.sizes), self.order)
        return x.reshape(*x.shape[:2], -1, self.key)

    def of_keys(self, x: Any) -> Any:
        """Bring an array of keys into cuDNN's order."""
        return x.reshape(math.prod(self.batch), self.memory, -1, self.key)

    def back(self, x: Any) -> Any:
        """Bring an array of cuDNN's back into the order of queries."""
        x = x.reshape([self.sizes[i] for i in self.order])
        places = [self.order.index(i) for i in range(len(self.order))]
        return jnp.transpose(x, places).reshape(*self.batch, *self.queries, *self.heads, self.key)

    def of_numbers(self, x: Any) -> Any:
        """Bring a number of each head and query into cuDNN's order: heads, groups, positions."""
        b, n = math.prod(self.batch), math.prod(self.heads)
        x = jnp.moveaxis(x.reshape(b, n, *self.queries), 2 + self.place, -1)
        return x.reshape(b, -1, self.queries[self.place])

    def numbers_back(self, x: Any) -> Any:
        """Bring a number of each head and query back into the order of named ops."""
        groups = [size for i, size in enumerate(self.queries) if i != self.place]
        x = x.reshape(math.prod(self.batch), math.prod(self.heads), *groups, -1)
        x = jnp.moveaxis(x, -1, 2 + self.place)
        return x.reshape(*self.batch, *self.heads, *self.queries)

    def forward(self, *reads: Any) -> tuple[Any, ...]:
        """Compute the averages, and the logarithm of every row's sum of exponentials."""
        q, k, v = self.of_queries(reads[0]), self.of_keys(reads[1]), self.of_keys(reads[2])
        y, lse = cudnn_attention(q, k, v, scale=self.options.scale, causal=self.causal)
        return self.back(y), self.numbers_back(lse)

    def backward(self, *reads: Any) -> tuple[Any, ...]:
        """Compute the cotangents of queries, keys and values."""
        q, k, v, *_, y, lse, dy = reads
        saved = self.of_numbers(lse), self.of_queries(y), self.of_queries(dy)
        operands = self.of_queries(q), self.of_keys(k), self.of_keys(v)
        options: dict[str, Any] = {"scale": self.options.scale, "causal": self.causal}
        dq, dk, dv = cudnn_attention(*operands, *saved, **options)
        return self.back(dq), dk.reshape(k.shape), dv.reshape(v.shape)
