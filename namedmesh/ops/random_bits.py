"""Random keys, and the bits drawn from them by counter: the ops behind nm.random.

Each element hashes the key with its own named index, so every layout draws the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.format import format_value
from namedmesh.ir.op import Op
from namedmesh.ir.operands import make_shape
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.hashing import fold_number, hash_counter, spread_word

KEY = Dimension("key_word", 2)


class Bits(Op):
    """32 random bits for each element."""

    # Otherwise XLA shares the counters of draws that lie in different places, and moves them.
    manual = True
    shape: Shape

    @property
    def repeatable(self) -> bool:
        return True

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.shape, "uint32")]

    def lower(self, context: Context, key: Any) -> Any:
        tf = context.tf
        split = [dim for dim in self.shape.dims[1:] if context.offset(dim) is not None]
        if not split and len(self.shape) and self.shape.elements < 2**31:
            return hash_counter(tf, (key[0], key[1]), self._count_elements(context))
        # The counter is the element's row-major index, in two words where one cannot hold it.
        words = [tf.zeros([], tf.uint32), tf.zeros([], tf.uint32)]
        word, stride = 0, 1
        for dim in reversed(self.shape.dims):
            if stride * dim.size > 2**32:
                word, stride = word + 1, 1
            sizes = [context.size(dim) if other is dim else 1 for other in self.shape]
            index = tf.cast(tf.range(context.size(dim)), tf.uint32)
            offset = context.offset(dim)
            index = index if offset is None else index + tf.cast(offset, tf.uint32)
            words[word] = words[word] + tf.reshape(index * tf.constant(stride, tf.uint32), sizes)
            stride *= dim.size
        low = tf.broadcast_to(words[0], context.sizes(self.shape))
        return hash_counter(tf, (key[0], key[1]), low, words[1] if word else None)

    def _count_elements(self, context: Context) -> Any:
        """Count the elements of a shard that is whole but for its first dimension."""
        tf = context.tf
        sizes = context.sizes(self.shape)
        counters, offset = tf.range(math.prod(sizes)), context.offset(self.shape[0])
        if offset is not None:
            counters = counters + offset * math.prod(sizes[1:])
        return tf.reshape(tf.cast(counters, tf.uint32), sizes)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [None]


class SpreadBits(Op):
    """A word of its own for each index along a dimension, from one word for all of them.

    A second operand is the index of the first, where the dimension is a shard of a longer one.
    """

    manual = True  # as for Bits
    dim: Dimension

    @property
    def repeatable(self) -> bool:
        return True

    def results(self) -> list[tuple[Shape, str]]:
        return [(Shape([*self.inputs[0].shape, self.dim]), "uint32")]

    def lower(self, context: Context, words: Any, first: Any = None) -> Any:
        tf = context.tf
        index = tf.range(context.size(self.dim))
        for start in (context.offset(self.dim), first):
            index = index if start is None else index + start
        return spread_word(tf, words[..., None], tf.cast(index, tf.uint32))

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [None] * len(self.inputs)


class FoldIn(Op):
    """A new key from a key and a number."""

    @property
    def repeatable(self) -> bool:
        return True

    def results(self) -> list[tuple[Shape, str]]:
        return [(Shape([KEY]), "uint32")]

    def lower(self, context: Context, key: Any, number: Any) -> Any:
        tf = context.tf
        return fold_number(tf, key, tf.cast(number, tf.uint32))

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [None, None]

    def placement(self) -> Placement:
        return Placement(whole=[KEY.name])


def check_key(what: str, key: Tensor) -> None:
    """Raise unless key is a random key."""
    if not isinstance(key, Tensor) or key.shape.dims != (KEY,) or key.dtype != "uint32":
        raise NamedMeshError(
            f"{what}: the first argument is not a random key",
            format_value(key),
            fix="make one with nm.random.key(seed)",
        )


def draw_bits(what: str, key: Tensor, dims: Sequence[Dimension]) -> Tensor:
    """Draw 32 bits for each element of some dimensions; what names the caller in errors."""
    check_key(what, key)
    return Bits((key,), make_shape(what, dims)).output


def spread_bits(words: Tensor, dim: Dimension, first: Tensor | None = None) -> Tensor:
    """Make 32 bits for each element along one more dimension: cheaper than drawing them all."""
    return SpreadBits((words,) if first is None else (words, first), dim).output
