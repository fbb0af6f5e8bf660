"""The passes of attention in named ops, over all keys at once or some at a time."""

from __future__ import annotations

from dataclasses import dataclass

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.literal import fill
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.arithmetic import maximum
from namedmesh.ops.broadcast import sum
from namedmesh.ops.einsum import einsum
from namedmesh.ops.elementwise import cast, stop_gradient
from namedmesh.ops.logic import where
from namedmesh.ops.mathematics import exp, log
from namedmesh.ops.random_bits import spread_bits
from namedmesh.ops.reduce import find_peak

State = tuple[Tensor, Tensor, Tensor]

_LOWEST = -1e30  # the score of what is not allowed


@dataclass(frozen=True)
class AttentionPasses:
    """The dimensions and options of one attention, and its passes in named ops.

    Attributes:
        batch: Dimensions of queries and keys, before the positions.
        queries: The dimensions of queries alone: positions that attend.
        heads: Dimensions of queries and keys, after the positions.
        memory: The dimension of the keys' positions.
        key: The dimension of a query, a key and a value.
        scale: What products of queries and keys are multiplied by.
        rate: The share of the weights that is dropped.
    """

    batch: tuple[Dimension, ...]
    queries: tuple[Dimension, ...]
    heads: tuple[Dimension, ...]
    memory: Dimension
    key: Dimension
    scale: float
    rate: float

    @property
    def rows(self) -> list[Dimension]:
        """A row of weights has these."""
        return [*self.batch, *self.heads, *self.queries]

    @property
    def of_queries(self) -> list[Dimension]:
        """The dimensions of queries, in the order that kernels read."""
        return [*self.batch, *self.queries, *self.heads, self.key]

    @property
    def of_keys(self) -> list[Dimension]:
        """The dimensions of keys and values, in the order that kernels read."""
        return [*self.batch, self.memory, *self.heads, self.key]

    def options(self) -> dict[str, object]:
        """What a kernel is told of this."""
        names = lambda dims: [dim.name for dim in dims]
        return {
            "batch": len(self.batch),
            "queries": len(self.queries),
            "rows": names([*self.batch, *self.queries, self.memory]),
            "scale": self.scale,
            "rate": self.rate,
        }

    def scores(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """How well keys match queries, in float32."""
        found = cast(einsum([q * self.scale, k], [*self.rows, self.memory]), "float32")
        return found if mask is None else where(mask, found, _LOWEST)

    def drop(self, x: Tensor, words: Tensor | None, first: Tensor | None = None) -> Tensor:
        """Drop weights, or their cotangents, by a word for each row; both times the same.

        first is the position of the first key, where these are not all of them.
        """
        if words is None:
            return x
        kept = spread_bits(words, self.memory, first) >= int(self.rate * 2**32)
        return where(kept, x * (1.0 / (1.0 - self.rate)), 0.0)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, words: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The averages, and the logarithm of every row's sum of exponentials."""
        scores = self.scores(q, k, mask)
        peak = stop_gradient(find_peak(scores, (self.memory,)))
        parts = exp(scores - peak)
        if mask is not None:  # where nothing is allowed, nothing is averaged
            parts = where(mask, parts, 0.0)
        mass = maximum(sum(parts, self.memory), 1e-30)
        weights = cast(self.drop(parts / mass, words), q.dtype)
        return einsum([weights, v], self.of_queries), peak + log(mass)

    def start(self) -> State:
        """What is known of every row before the first keys: nothing."""
        peak = fill(Shape(self.rows), _LOWEST, "float32", "attention")
        mass = fill(Shape(self.rows), 0.0, "float32", "attention")
        return peak, mass, fill(Shape(self.of_queries), 0.0, "float32", "attention")

    def take_in(
        self,
        state: State,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        words: Tensor | None,
        first: Tensor | None,
    ) -> State:
        """Take in some of the keys: the inner step of attention by blocks."""
        peak, mass, total = state
        scores = self.scores(q, k, mask)
        higher = maximum(peak, find_peak(scores, (self.memory,)))
        fade = exp(peak - higher)
        parts = exp(scores - higher)
        if mask is not None:
            parts = where(mask, parts, 0.0)
        weights = cast(self.drop(parts, words, first), q.dtype)
        more = cast(einsum([weights, v], self.of_queries), "float32")
        return higher, mass * fade + sum(parts, self.memory), total * fade + more

    def finish(self, state: State, dtype: str) -> tuple[Tensor, Tensor]:
        """The averages, and the logarithm of every row's sum of exponentials."""
        peak, mass, total = state
        mass = maximum(mass, 1e-30)
        return cast(total / mass, dtype), peak + log(mass)

    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        words: Tensor | None,
        lse: Tensor,
        delta: Tensor,
        dy: Tensor,
        first: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The cotangents of queries, of keys and of values; of queries, the part of these keys."""
        weights = exp(self.scores(q, k, mask) - lse)
        if mask is not None:
            weights = where(mask, weights, 0.0)
        dropped = cast(self.drop(weights, words, first), q.dtype)
        dv = einsum([dropped, dy], self.of_keys)
        d_dropped = cast(einsum([dy, v], [*self.rows, self.memory]), "float32")
        d_scores = weights * (self.drop(d_dropped, words, first) - delta) * self.scale
        d_scores = cast(d_scores, q.dtype)
        return einsum([d_scores, k], self.of_queries), einsum([d_scores, q], self.of_keys), dv

    def find_delta(self, y: Tensor, dy: Tensor) -> Tensor:
        """What the softmax takes off the cotangent of every weight of a row."""
        return sum(cast(y, "float32") * cast(dy, "float32"), self.key)
