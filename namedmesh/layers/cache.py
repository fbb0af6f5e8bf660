"""The key/value cache of decoding: a row for each layer and step, written once and never moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import namedmesh as nm
from namedmesh.dims.dimension import Dimension
from namedmesh.ir.tensor import Tensor
from namedmesh.layers.attention import Heads, keys_and_values, mixed, queries


class Cache:
    """Keys and values of all layers in two tensors, so that a loop over layers writes them in place."""

    def __init__(self, layers: Dimension, steps: Dimension, heads: Heads):
        self.steps, self.heads = steps, heads
        self.rows = Dimension("cache_row", layers.size * steps.size)

    def empty(self, dims: Sequence[Dimension], dtype: str) -> dict[str, Tensor]:
        """Room for every layer and step; dims are those of the sequences that are decoded side by side."""
        shape = [self.rows, *dims, self.heads.heads, self.heads.key]
        return {"keys": nm.zeros(shape, dtype), "values": nm.zeros(shape, dtype)}

    def written(
        self, cache: dict[str, Tensor], made: dict[str, Tensor], layer: Tensor, step: Tensor
    ) -> dict[str, Tensor]:
        """The cache with one layer's keys and values of one step."""
        row, one = layer * self.steps.size + step, self.rows.resized(1)
        put = lambda name: nm.dynamic_update(
            cache[name], nm.stack([made[name]], one), row, self.rows
        )
        return {name: put(name) for name in cache}

    def read(self, cache: dict[str, Tensor], layer: Tensor) -> dict[str, Tensor]:
        """One layer's keys and values of every step."""

        def rows(tensor: Tensor) -> Tensor:
            mine = nm.dynamic_slice(tensor, layer * self.steps.size, self.rows, self.steps.size)
            return nm.rename(mine, self.rows.resized(self.steps.size), self.steps)

        return {name: rows(tensor) for name, tensor in cache.items()}

    def attention(
        self,
        x: Tensor,
        seq: Dimension,
        cache: dict[str, Tensor],
        layer: Tensor,
        step: Tensor,
        **options: Any,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Self-attention of one step's tokens to those before: appends their keys and values, then reads what is there.

        Where the cache has the sequences under a name of its own, the steps of all of them are one flat sequence,
        and the mask says which are whose.
        """
        k, v = keys_and_values(x, self.heads)
        made = {"keys": k, "values": v}
        flat = [dim for dim in cache["keys"].shape if dim not in (self.rows, *k.shape)]
        if flat:
            made = {name: nm.rename(tensor, seq, flat[0]) for name, tensor in made.items()}
        cache = self.written(cache, made, layer, step)
        past = self.read(cache, layer)
        memory = [self.steps, *flat]
        return mixed(
            queries(x, self.heads), past["keys"], past["values"], seq, memory, self.heads, **options
        ), cache
