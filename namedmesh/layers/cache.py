"""The key/value cache of decoding: a row for each layer and step, written once and never moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        shards: A dimension that divides steps, or None: step i is kept in shard i modulo its size,
            so that a layout that maps it splits the steps evenly, and attention sends sums only.
        entries: The dimensions of what is kept of a token, by name; `keys` and `values` by default.

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
        shards: nm.Dimension | None = None,
        entries: Mapping[str, Sequence[nm.Dimension]] | None = None,
    ):
        self.steps, self.heads, self.dims, self.dtype, self.flat = steps, heads, dims, dtype, flat
        self.entries = entries or {name: [heads.heads, heads.key] for name in ("keys", "values")}
        if not dims or (flat and flat not in dims):
            raise nm.NamedMeshError(
                f"Cache: flat={flat} for tokens of {', '.join(map(str, dims)) or 'no dimension'}",
                fix="pass the dimensions of a step's tokens, that of hypotheses among them",
            )
        if shards is not None and steps.size % shards.size:
            raise nm.NamedMeshError(
                f"Cache: {shards} does not divide {steps}", fix="round the number of steps up"
            )
        self.slot = nm.Dimension(f"{flat.name}_slot", flat.size) if flat else None
        self.shards = shards
        size = steps.size // shards.size if shards else steps.size
        self.rounds = nm.Dimension(f"{steps.name}_round", size) if shards else steps
        self.rows = nm.Dimension("cache_row", layers.size * size)
        self.slots = [self.rounds, shards] if shards else [steps]

    def positions(self) -> nm.Tensor:
        """Return the step that each slot of the cache is for."""
        if self.shards is None:
            return nm.range(self.steps)
        return nm.range(self.rounds) * self.shards.size + nm.range(self.shards)

    def start(self, filled: int = 0, padding: nm.Tensor | None = None) -> dict[str, nm.Tensor]:
        """Return the time before the first step: its `step`, and the `mask` that attention sees.

        Args:
            filled: The steps that `fill` has written.
            padding: How many of those, from the first, are padding, for each sequence.
        """
        dims = [*self.dims, *self.slots, self.slot] if self.slot else self.slots
        mask = nm.full(dims, False, "bool")
        if filled:
            mask = mask | (self.positions() < filled)
        if filled and padding is not None:
            mask = mask & (self.positions() >= padding)
        if filled and self.flat and self.slot:
            mask = mask & nm.equal(nm.range(self.flat), nm.range(self.slot))
        return {"step": nm.constant(filled - 1), "mask": mask}

    def advance(self, time: dict[str, nm.Tensor]) -> dict[str, nm.Tensor]:
        """Return the time of the next step, whose tokens see themselves and what they follow."""
        step = time["step"] + 1
        own = nm.equal(self.positions(), step)
        if self.flat and self.slot:
            own = own & nm.equal(nm.range(self.flat), nm.range(self.slot))
        return {"step": step, "mask": nm.transpose(time["mask"] | own, time["mask"].shape)}

    def empty(self) -> dict[str, nm.Tensor]:
        """Return zeros for every entry, with room for every layer and step."""
        dims = [self.slot if self.slot and dim == self.flat else dim for dim in self.dims]
        dims = [self.rows, *([self.shards] if self.shards else []), *dims]
        return {name: nm.zeros([*dims, *own], self.dtype) for name, own in self.entries.items()}

    def fill(
        self,
        cache: dict[str, nm.Tensor],
        new: dict[str, nm.Tensor],
        layer: nm.Tensor,
        prompt: nm.Dimension,
    ) -> dict[str, nm.Tensor]:
        """Return the cache with the keys and values of one layer and of the first steps.

        Args:
            cache: The cache so far.
            new: The `keys` and `values` of a whole prompt; what they lack of the dimensions of a
                step's tokens shares it.
            layer: The layer's number, int32.
            prompt: The dimension of the prompt's tokens.
        """
        count = self.shards.size if self.shards else 1
        rows = self.rows.resized(-(-prompt.size // count))
        spare = rows.size * count - prompt.size

        def put(tensor: nm.Tensor, entry: nm.Tensor) -> nm.Tensor:
            entry = nm.pad(nm.cast(entry, tensor.dtype), prompt, high=spare)
            old = prompt.resized(prompt.size + spare)
            if self.shards is None:
                entry = nm.rename(entry, old, rows)
            else:
                entry = nm.reshape(entry, old, [rows, self.shards])
            if self.slot and self.flat and self.flat in entry.shape:
                entry = nm.rename(entry, self.flat, self.slot)
            entry = nm.broadcast(entry, [rows, *tensor.shape.without(self.rows.name)])
            return nm.dynamic_update(tensor, entry, layer * self.rounds.size, self.rows)

        return {name: put(tensor, new[name]) for name, tensor in cache.items()}

    def append(
        self,
        cache: dict[str, nm.Tensor],
        new: dict[str, nm.Tensor],
        layer: nm.Tensor,
        time: dict[str, nm.Tensor],
    ) -> tuple[dict[str, nm.Tensor], dict[str, nm.Tensor], list[nm.Dimension]]:
        """Write the entries of a step; return the cache, a layer's entries, and their memory.

        Args:
            cache: The cache so far.
            new: The entries of this step's tokens.
            layer: The layer's number, int32.
            time: The time of this step; see `advance`.
        """
        memory = [*self.slots]
        if self.flat and self.slot:
            memory.append(self.slot)
            new = {name: nm.rename(tensor, self.flat, self.slot) for name, tensor in new.items()}
        first, own = layer * self.rounds.size, None
        row = first + time["step"]
        if self.shards is not None:
            row = first + time["step"] // self.shards.size
            own = nm.equal(nm.range(self.shards), time["step"] % self.shards.size)

        def put(tensor: nm.Tensor, entry: nm.Tensor) -> nm.Tensor:
            entry = nm.stack([nm.cast(entry, tensor.dtype)], self.rows.resized(1))
            if own is not None:
                entry = nm.where(own, entry, nm.dynamic_slice(tensor, row, self.rows, 1))
            return nm.dynamic_update(tensor, entry, row, self.rows)

        def read(tensor: nm.Tensor) -> nm.Tensor:
            rows = nm.dynamic_slice(tensor, first, self.rows, self.rounds.size)
            return nm.rename(rows, self.rows.resized(self.rounds.size), self.rounds)

        # Append first, then read: XLA updates a tensor that a loop carries in place only as long
        # as the body reads it after its last write.
        cache = {name: put(tensor, new[name]) for name, tensor in cache.items()}
        return cache, {name: read(tensor) for name, tensor in cache.items()}, memory

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
        cache, past, memory = self.append(cache, {"keys": k, "values": v}, layer, time)
        keys, values, mask = past["keys"], past["values"], time["mask"]
        return attend(
            q, keys, values, self.dims[-1], memory, self.heads, mask=mask, bias=bias
        ), cache
