"""The key/value cache of decoding: a row for each layer and step, written once and never moved."""

from __future__ import annotations

from collections.abc import Sequence

import namedmesh as nm
from namedmesh.layers.attention import Heads, attend, project_keys_and_values, project_queries
from namedmesh.layers.explain import explain_mistakes


@explain_mistakes
class Cache:
    """Keys and values of all layers in two tensors, so that a loop over layers writes in place.

    XLA updates a tensor that a loop carries in place as long as the body reads it only after its
    last write; `attend` therefore appends first, then reads.

    Args:
        layers: The dimension of layers.
        steps: The dimension of decoding steps.
        heads: The dimensions of attention.

    Example:
        >>> L, T, M, N, K = nm.dims("layer=2 step=5 model=8 heads=2 key=4")
        >>> Cache(L, T, Heads(M, N, K)).rows
        Dimension(name='cache_row', size=10)
    """

    def __init__(self, layers: nm.Dimension, steps: nm.Dimension, heads: Heads):
        self.steps, self.heads = steps, heads
        self.rows = nm.Dimension("cache_row", layers.size * steps.size)

    def empty(self, dims: Sequence[nm.Dimension], dtype: str) -> dict[str, nm.Tensor]:
        """Return a cache of zeros with room for every layer and step.

        Args:
            dims: The dimensions of the sequences that are decoded side by side.
            dtype: The dtype of keys and values.

        Returns:
            The tensors `keys` and `values`.

        Example:
            >>> B, L, T, M, N, K = nm.dims("batch=3 layer=2 step=5 model=8 heads=2 key=4")
            >>> cache = Cache(L, T, Heads(M, N, K))
            >>> nm.trace(lambda: cache.empty([B], "float32")["keys"]).outputs[0].shape
            [cache_row=10, batch=3, heads=2, key=4]
        """
        shape = [self.rows, *dims, self.heads.heads, self.heads.key]
        return {"keys": nm.zeros(shape, dtype), "values": nm.zeros(shape, dtype)}

    def write(
        self,
        cache: dict[str, nm.Tensor],
        new: dict[str, nm.Tensor],
        layer: nm.Tensor,
        step: nm.Tensor,
    ) -> dict[str, nm.Tensor]:
        """Write the keys and values of one layer and step.

        Args:
            cache: The cache so far.
            new: The `keys` and `values` to write.
            layer: The layer's number, int32.
            step: The step's number, int32.

        Returns:
            The new cache.

        Example:
            >>> L, T, M, N, K = nm.dims("layer=2 step=5 model=8 heads=2 key=4")
            >>> cache = Cache(L, T, Heads(M, N, K))
            >>> def write(k, layer, step):
            ...     empty = cache.empty([], "float32")
            ...     return cache.write(empty, {"keys": k, "values": k}, layer, step)["keys"]
            >>> number = nm.spec([], "int32")
            >>> nm.trace(write, nm.spec([N, K]), number, number).outputs[0].shape
            [cache_row=10, heads=2, key=4]
        """
        row, one = layer * self.steps.size + step, self.rows.resized(1)
        return {
            name: nm.dynamic_update(tensor, nm.stack([new[name]], one), row, self.rows)
            for name, tensor in cache.items()
        }

    def read(self, cache: dict[str, nm.Tensor], layer: nm.Tensor) -> dict[str, nm.Tensor]:
        """Read the keys and values of one layer at every step.

        Args:
            cache: The cache.
            layer: The layer's number, int32.

        Returns:
            The tensors `keys` and `values`, with the dimension of steps.

        Example:
            >>> L, T, M, N, K = nm.dims("layer=2 step=5 model=8 heads=2 key=4")
            >>> cache = Cache(L, T, Heads(M, N, K))
            >>> read = lambda layer: cache.read(cache.empty([], "float32"), layer)["keys"]
            >>> nm.trace(read, nm.spec([], "int32")).outputs[0].shape
            [step=5, heads=2, key=4]
        """

        def read_rows(tensor: nm.Tensor) -> nm.Tensor:
            first = layer * self.steps.size
            rows = nm.dynamic_slice(tensor, first, self.rows, self.steps.size)
            return nm.rename(rows, self.rows.resized(self.steps.size), self.steps)

        return {name: read_rows(tensor) for name, tensor in cache.items()}

    def attend(
        self,
        x: nm.Tensor,
        seq: nm.Dimension,
        cache: dict[str, nm.Tensor],
        layer: nm.Tensor,
        step: nm.Tensor,
        *,
        mask: nm.Tensor | None = None,
        bias: nm.Tensor | None = None,
    ) -> tuple[nm.Tensor, dict[str, nm.Tensor]]:
        """Let the tokens of one step attend to the steps so far, their own included.

        Where the cache has a sequence dimension under another name than x, the steps of all
        sequences are attended to as one flat sequence, and the mask tells which belong together.

        Args:
            x: The tokens of this step, with the sequence and model dimensions.
            seq: The dimension of the sequences that are decoded side by side.
            cache: The cache so far.
            layer: The layer's number, int32.
            step: The step's number, int32.
            mask: Which steps count, bool.
            bias: A tensor to add to the scores.

        Returns:
            The output, and the cache with this step's keys and values.

        Example:
            >>> B, L, T, M, N, K = nm.dims("batch=3 layer=2 step=5 model=8 heads=2 key=4")
            >>> cache = Cache(L, T, Heads(M, N, K))
            >>> def layer(x, layer, step):
            ...     empty = cache.empty([B], "float32")
            ...     return cache.attend(x, B, empty, layer, step, mask=nm.range(T) <= step)[0]
            >>> number = nm.spec([], "int32")
            >>> nm.trace(layer, nm.spec([B, M]), number, number).outputs[0].shape
            [batch=3, model=8]
        """
        k, v = project_keys_and_values(x, self.heads)
        new = {"keys": k, "values": v}
        flat = [dim for dim in cache["keys"].shape if dim not in (self.rows, *k.shape)]
        if flat:
            new = {name: nm.rename(tensor, seq, flat[0]) for name, tensor in new.items()}
        cache = self.write(cache, new, layer, step)
        past = self.read(cache, layer)
        q, memory = project_queries(x, self.heads), [self.steps, *flat]
        y = attend(q, past["keys"], past["values"], seq, memory, self.heads, mask=mask, bias=bias)
        return y, cache
