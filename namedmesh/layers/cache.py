"""The key/value cache of decoding: a row for each layer and step, written once and never moved."""

from __future__ import annotations

from collections.abc import Sequence

import namedmesh as nm
from namedmesh.layers.attention import Heads, attend


class Cache:
    """Keys and values of all layers while decoding, in two tensors.

    In the flat form (the paper's appendix A.1) the hypotheses of a beam are one interleaved
    sequence: each has a slot of the keys and values, which a search never moves, and a mask over
    hypotheses and slots, which alone is reordered. Results are the same.

    Args:
        layers: The dimension of layers.
        steps: The dimension of decoding steps.
        heads: The dimensions of attention.
        dims: The dimensions of a step's tokens.
        dtype: The dtype of keys and values.
        flat: The dimension of hypotheses that share a flat cache, or None.

    Example:
        >>> L, T, B, M, N, K = nm.dims("layer=2 step=3 batch=3 model=8 heads=2 key=4")
        >>> cache = Cache(L, T, Heads(M, N, K), [B])
        >>> nm.trace(cache.empty).outputs[0].shape
        [cache_row=6, batch=3, heads=2, key=4]
        >>> nm.evaluate(lambda: cache.advance(cache.advance(cache.start()))["mask"]).tolist()
        [True, True, False]
    """

    def __init__(
        self,
        layers: nm.Dimension,
        steps: nm.Dimension,
        heads: Heads,
        dims: Sequence[nm.Dimension],
        *,
        dtype: str = "float32",
        flat: nm.Dimension | None = None,
    ):
        self.steps, self.heads, self.dims, self.dtype, self.flat = steps, heads, dims, dtype, flat
        self.rows = nm.Dimension("cache_row", layers.size * steps.size)
        if not dims or (flat and flat not in dims):
            raise nm.NamedMeshError(
                f"Cache: flat={flat} for tokens of {', '.join(map(str, dims)) or 'no dimension'}",
                fix="pass the dimensions of a step's tokens, that of hypotheses among them",
            )
        self.slot = nm.Dimension(f"{flat.name}_slot", flat.size) if flat else None

    def start(self) -> dict[str, nm.Tensor]:
        """Return the time before the first step: its `step`, and the `mask` that attention sees."""
        dims = [*self.dims, self.steps, self.slot] if self.slot else [self.steps]
        return {"step": nm.constant(-1), "mask": nm.full(dims, False, "bool")}

    def advance(self, time: dict[str, nm.Tensor]) -> dict[str, nm.Tensor]:
        """Return the time of the next step, whose tokens see themselves and what they follow."""
        step = time["step"] + 1
        own = nm.equal(nm.range(self.steps), step)
        if self.flat and self.slot:
            own = own & nm.equal(nm.range(self.flat), nm.range(self.slot))
        return {"step": step, "mask": time["mask"] | own}

    def empty(self) -> dict[str, nm.Tensor]:
        """Return `keys` and `values` of zeros, with room for every layer and step."""
        dims = [self.slot if self.slot and dim == self.flat else dim for dim in self.dims]
        shape = [self.rows, *dims, self.heads.heads, self.heads.key]
        return {name: nm.zeros(shape, self.dtype) for name in ("keys", "values")}

    def write(
        self,
        cache: dict[str, nm.Tensor],
        new: dict[str, nm.Tensor],
        layer: nm.Tensor,
        step: nm.Tensor,
    ) -> dict[str, nm.Tensor]:
        """Return the cache with the keys and values of one layer and step.

        Args:
            cache: The cache so far.
            new: The `keys` and `values` to write.
            layer: The layer's number, int32.
            step: The step's number, int32.
        """
        row, one = layer * self.steps.size + step, self.rows.resized(1)
        return {
            name: nm.dynamic_update(tensor, nm.stack([new[name]], one), row, self.rows)
            for name, tensor in cache.items()
        }

    def read(self, cache: dict[str, nm.Tensor], layer: nm.Tensor) -> dict[str, nm.Tensor]:
        """Return the `keys` and `values` of one layer, with the dimension of steps."""

        def read_rows(tensor: nm.Tensor) -> nm.Tensor:
            first = layer * self.steps.size
            rows = nm.dynamic_slice(tensor, first, self.rows, self.steps.size)
            return nm.rename(rows, self.rows.resized(self.steps.size), self.steps)

        return {name: read_rows(tensor) for name, tensor in cache.items()}

    def attend(
        self,
        q: nm.Tensor,
        k: nm.Tensor,
        v: nm.Tensor,
        cache: dict[str, nm.Tensor],
        layer: nm.Tensor,
        time: dict[str, nm.Tensor],
        *,
        bias: nm.Tensor | None = None,
    ) -> tuple[nm.Tensor, dict[str, nm.Tensor]]:
        """Let the tokens of one step attend to the steps so far, their own included.

        Args:
            q: The queries of this step's tokens; see `project_queries`.
            k: Their keys; see `project_keys_and_values`.
            v: Their values.
            cache: Keys and values so far.
            layer: The layer's number, int32.
            time: The time of this step; see `advance`.
            bias: A tensor to add to the scores.

        Returns:
            The output, with the model dimension, and the cache with this step's keys and values.
        """
        new, memory = {"keys": k, "values": v}, [self.steps]
        if self.flat and self.slot:
            memory.append(self.slot)
            new = {name: nm.rename(tensor, self.flat, self.slot) for name, tensor in new.items()}
        # Append first, then read: XLA updates a tensor that a loop carries in place only as long
        # as the body reads it after its last write.
        cache = self.write(cache, new, layer, time["step"])
        past = self.read(cache, layer)
        seq = self.dims[-1]
        y = attend(
            q, past["keys"], past["values"], seq, memory, self.heads, mask=time["mask"], bias=bias
        )
        return y, cache
