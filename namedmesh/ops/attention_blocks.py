"""Attention by blocks of keys: nothing of the size of queries times keys is stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.format import format_value
from namedmesh.ir.recipe import Recipe
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.attention_passes import AttentionPasses, State
from namedmesh.ops.constants import range as count
from namedmesh.ops.constants import zeros
from namedmesh.ops.elementwise import cast
from namedmesh.ops.scan import scan
from namedmesh.ops.shape import reshape, transpose

LONG = 2048  # more keys than these are taken by blocks, unless said otherwise
BLOCK = 1024  # keys at a time, by default
LEAST = 128  # smaller blocks are not worth a loop


@dataclass(frozen=True)
class AttentionBlocks:
    """Attention that takes in a block of keys in each iteration of a loop.

    Attributes:
        whole: Attention over all keys.
        size: The keys of a block.
        mask: How the mask is made, so that a block of it can be made by itself; None without one.
    """

    whole: AttentionPasses
    size: int
    mask: Recipe | None

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
        """The averages, and the logarithm of every row's sum of exponentials."""

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
        """The cotangents of queries, keys and values."""

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
        """What every iteration reads a row of."""
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
        """Whether a tensor has the dimension that is taken by blocks."""
        return leaf.shape.named(self.whole.memory.name) is not None

    def split(self, x: Tensor) -> Tensor:
        """Split the keys' positions into blocks."""
        return reshape(x, self.whole.memory, [self.number, self.passes.memory])

    def join(self, x: Tensor) -> Tensor:
        """Put blocks of keys together, in the order of keys."""
        whole = reshape(x, [self.number, self.passes.memory], self.whole.memory)
        return transpose(whole, self.whole.of_keys)


def choose_block(over: Dimension, block: int | None) -> int:
    """Return how many keys are taken at a time: all of them where that is as good."""
    divisors = [n for n in range(1, over.size + 1) if over.size % n == 0]
    if block is None:
        best = max(n for n in divisors if n <= BLOCK)
        return best if over.size > LONG and best >= LEAST else over.size
    if isinstance(block, bool) or not isinstance(block, int) or block not in divisors:
        some = ", ".join(map(str, divisors[-6:]))
        raise NamedMeshError(
            f"attention: block={format_value(block)} does not divide {over}", fix=f"give {some}"
        )
    return block
