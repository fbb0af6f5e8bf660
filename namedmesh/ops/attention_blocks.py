"""The passes of attention in named ops, over all keys or a block of them at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.format import format_value
from namedmesh.ir.literal import fill
from namedmesh.ir.recipe import Recipe
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.broadcast import sum
from namedmesh.ops.constants import range as count
from namedmesh.ops.constants import zeros
from namedmesh.ops.einsum import einsum
from namedmesh.ops.elementwise import cast, stop_gradient
from namedmesh.ops.logic import where
from namedmesh.ops.mathematics import exp, log, maximum
from namedmesh.ops.random_bits import spread_bits
from namedmesh.ops.reduce import find_peak
from namedmesh.ops.scan import scan
from namedmesh.ops.shape import reshape, transpose

LONG = 2048  # more keys than these are taken by blocks, unless block= is given
BLOCK = 1024  # keys at a time, by default
LEAST = 128  # smaller blocks are not worth a loop


@dataclass(frozen=True)
class AttentionBlocks:
    """Attention that takes in a block of keys in each iteration of a loop."""

    whole: AttentionPasses  # over all keys
    size: int  # keys of a block
    mask: Recipe | None  # makes a block of the mask by itself, so that it is never whole

    @cached_property
    def number(self) -> Dimension:
        """The blocks."""
        memory = self.whole.memory
        return Dimension(f"{memory.name}_blocks", memory.size // self.size)

    @cached_property
    def passes(self) -> AttentionPasses:
        """Attention over one block."""
        block = Dimension(f"{self.whole.memory.name}_block", self.size)
        return dataclasses.replace(self.whole, memory=block)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, leaves: Sequence[Tensor], words: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute the averages, and the logarithm of every row's sum of exponentials."""

        def iteration(state: State, row: dict[str, Any]) -> tuple[State, None]:
            mask, first = self.make_mask(leaves, row), row["number"] * self.size
            taken = self.passes.take_in(state, q, row["k"], row["v"], mask, words, first)
            return taken, None

        state, _ = scan(iteration, self.passes.start(), self.rows(k, v, leaves), over=self.number)
        return self.whole.finish(state, q.dtype)

    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        leaves: Sequence[Tensor],
        words: Tensor | None,
        lse: Tensor,
        delta: Tensor,
        dy: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the cotangents of queries, keys and values."""

        def iteration(so_far: Tensor, row: dict[str, Any]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            mask, first = self.make_mask(leaves, row), row["number"] * self.size
            dq, dk, dv = self.passes.backward(
                q, row["k"], row["v"], mask, words, lse, delta, dy, first
            )
            return so_far + cast(dq, "float32"), (dk, dv)

        start = zeros(self.whole.of_queries)
        dq, (dk, dv) = scan(iteration, start, self.rows(k, v, leaves), over=self.number)
        return cast(dq, q.dtype), self.join(dk), self.join(dv)

    def rows(self, k: Tensor, v: Tensor, leaves: Sequence[Tensor]) -> dict[str, Any]:
        """Return the tensors of which every iteration reads a row."""
        own = [self.split(leaf) for leaf in leaves if self.has_blocks(leaf)]
        return {"k": self.split(k), "v": self.split(v), "mask": own, "number": count(self.number)}

    def make_mask(self, leaves: Sequence[Tensor], row: dict[str, Any]) -> Tensor | None:
        """Make a block of the mask."""
        if self.mask is None:
            return None
        own = iter(row["mask"])
        values = [next(own) if self.has_blocks(leaf) else leaf for leaf in leaves]
        return self.mask.make(values, self.passes.memory)

    def has_blocks(self, leaf: Tensor) -> bool:
        """Return whether a tensor has the dimension that is taken by blocks."""
        return leaf.shape.named(self.whole.memory.name) is not None

    def split(self, x: Tensor) -> Tensor:
        """Split the keys' positions into blocks."""
        return reshape(x, self.whole.memory, [self.number, self.passes.memory])

    def join(self, x: Tensor) -> Tensor:
        """Put blocks of keys together, in the order of keys."""
        whole = reshape(x, [self.number, self.passes.memory], self.whole.memory)
        return transpose(whole, self.whole.of_keys)


def choose_block(over: Dimension, block: int | None) -> int:
    """Return the number of keys at a time: all of them where that is as good."""
    divisors = [n for n in range(1, over.size + 1) if over.size % n == 0]
    if block is None:
        best = max(n for n in divisors if n <= BLOCK)
        return best if over.size > LONG and best >= LEAST else over.size
    if block not in divisors:
        some = ", ".join(map(str, divisors[-6:]))
        raise NamedMeshError(
            f"attention: block={format_value(block)} does not divide {over}", fix=f"give {some}"
        )
    return block


State = tuple[Tensor, Tensor, Tensor]

_LOWEST = -1e30  # the score of what is not allowed


@dataclass(frozen=True)
class AttentionPasses:
    """The dimensions and options of one attention, and its passes in named ops."""

    batch: tuple[Dimension, ...]  # of queries and keys, before the positions
    queries: tuple[Dimension, ...]  # of queries alone: positions that attend
    heads: tuple[Dimension, ...]  # of queries and keys, after the positions
    memory: Dimension  # the keys' positions
    key: Dimension
    scale: float  # the factor of products of queries and keys
    rate: float  # the share of the weights to drop

    @property
    def rows(self) -> list[Dimension]:
        """The dimensions of a row of weights."""
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
        """Return the options of a kernel."""
        return {
            "batch": len(self.batch),
            "queries": len(self.queries),
            "rows": [dim.name for dim in (*self.batch, *self.queries, self.memory)],
            "scale": self.scale,
            "rate": self.rate,
        }

    def scores(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Compute how well keys match queries, in float32."""
        products = cast(einsum([q * self.scale, k], [*self.rows, self.memory]), "float32")
        return products if mask is None else where(mask, products, _LOWEST)

    def drop(self, x: Tensor, words: Tensor | None, first: Tensor | None = None) -> Tensor:
        """Drop weights, or their cotangents, by a word for each row; both times the same."""
        if words is None:
            return x
        kept = spread_bits(words, self.memory, first) >= int(self.rate * 2**32)
        return where(kept, x * (1.0 / (1.0 - self.rate)), 0.0)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, words: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute the averages, and the logarithm of every row's sum of exponentials."""
        scores = self.scores(q, k, mask)
        peak = stop_gradient(find_peak(scores, (self.memory,)))
        parts = exp(scores - peak)
        if mask is not None:  # where nothing is allowed, nothing is averaged
            parts = where(mask, parts, 0.0)
        mass = maximum(sum(parts, self.memory), 1e-30)
        weights = cast(self.drop(parts / mass, words), q.dtype)
        return einsum([weights, v], self.of_queries), peak + log(mass)

    def start(self) -> State:
        """Return the state before the first keys: the peak, mass and total of every row."""
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
        """Compute the averages, and the logarithm of every row's sum of exponentials."""
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
        """Compute cotangents of queries (the part of these keys), keys and values."""
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
        """Compute what the softmax subtracts from the cotangent of every weight of a row."""
        return sum(cast(y, "float32") * cast(dy, "float32"), self.key)
