"""The hash behind random numbers: from a key and a counter to 32 bits, in TensorFlow."""

from __future__ import annotations

import functools
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

# Two rounds of a cheap mixer, with a word of the key in each: a sixth of the operations of
# Threefry, in the program as on the device.
GOLDEN = 0x9E3779B9
FOLDED = 0x85EBCA6B  # sets the keys made by folding apart from the bits drawn


@functools.cache
def _mixer(tf: Any) -> Any:
    """Make one TensorFlow function, traced once: bits are drawn in hundreds of places."""

    @tf.function(input_signature=[tf.TensorSpec(None, tf.uint32)], autograph=False)
    def mixer(x: Any) -> Any:
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None)):
            x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(shift, tf.uint32)))
            if factor is not None:
                x = x * tf.constant(factor, tf.uint32)
        return x

    return mixer


def _mix(tf: Any, x: Any) -> Any:
    """Permute 32-bit words so that every input bit changes every output bit (lowbias32)."""
    mixed = _mixer(tf)(x)
    mixed.set_shape(x.shape)
    return mixed


def hash_counter(tf: Any, key: tuple[Any, Any], low: Any, high: Any = None) -> Any:
    """Hash a counter of one or two words with a key of two words."""
    x = _mix(tf, tf.bitwise.bitwise_xor(low, key[0])) + key[1]
    if high is not None:
        x = x + _mix(tf, high + tf.constant(GOLDEN, tf.uint32))
    return _mix(tf, x)


def spread_word(tf: Any, word: Any, index: Any) -> Any:
    """Return a word for each index from a random word, as the attention kernel does."""
    return _mix(tf, word + index * tf.constant(GOLDEN, tf.uint32))


@functools.cache
def _folder(tf: Any) -> Any:
    """Make one TensorFlow function, traced once, as for the mixer."""

    @tf.function(input_signature=[tf.TensorSpec(None, tf.uint32)] * 2, autograph=False)
    def fold(key: Any, number: Any) -> Any:
        # Other words than the key's own: a key made here is no pair of bits drawn from this one.
        words = _mix(tf, key[..., 1] + tf.constant(FOLDED, tf.uint32)), key[..., 0]
        second = hash_counter(tf, words, number, tf.constant(1, tf.uint32))
        return tf.stack([hash_counter(tf, words, number), second], -1)

    return fold


KEY = Dimension("key_word", 2)


class RandomOp(Op):
    """An op that makes random words: cheap to repeat, and without a gradient."""

    @property
    def repeatable(self) -> bool:
        return True

    @property
    def folds(self) -> bool:
        return False  # XLA does not either: every device draws its own shard

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [None] * len(self.inputs)


class Bits(RandomOp):
    """32 random bits for each element."""

    # Otherwise XLA shares the counters of draws that are sharded differently, and moves them.
    manual = True
    shape: Shape

    def results(self) -> list[tuple[Shape, str]]:
        return [(Shape([*self.inputs[0].shape.without(KEY.name), *self.shape]), "uint32")]

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
        return Bits(inputs, self.shape).outputs

    def lower(self, context: Context, keys: Any) -> Any:
        tf = context.tf
        # Several keys draw the same counters each.
        several = [*keys.shape[:-1], *[1] * len(self.shape)]
        key = [tf.reshape(keys[..., i], several) for i in (0, 1)]
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


class SpreadBits(RandomOp):
    """A word of its own for each index along a dimension, from one word for all of them."""

    # A second operand is the index of the first element, for a shard of a longer dimension.
    manual = True  # as for Bits
    dim: Dimension

    def results(self) -> list[tuple[Shape, str]]:
        return [(Shape([*self.inputs[0].shape, self.dim]), "uint32")]

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor] | None:
        alike = all(over not in first.shape for first in inputs[1:])
        return SpreadBits(inputs, self.dim).outputs if alike else None

    def lower(self, context: Context, words: Any, first: Any = None) -> Any:
        tf = context.tf
        index = tf.range(context.size(self.dim))
        for start in (context.offset(self.dim), first):
            index = index if start is None else index + start
        return spread_word(tf, words[..., None], tf.cast(index, tf.uint32))


class FoldIn(RandomOp):
    """A new key from a key and a number."""

    def results(self) -> list[tuple[Shape, str]]:
        key, number = self.inputs
        return [(Shape([*(number.shape.dims or key.shape.dims[:-1]), KEY]), "uint32")]

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor] | None:
        return FoldIn(inputs).outputs if len(self.output.shape) == 1 else None

    def lower(self, context: Context, key: Any, number: Any) -> Any:
        folded = _folder(context.tf)(key, context.tf.cast(number, context.tf.uint32))
        folded.set_shape(key.shape if key.shape.rank > 1 else [*number.shape, 2])
        return folded

    def placement(self) -> Placement:
        return Placement(whole=[KEY.name])


def check_key(what: str, key: Tensor) -> None:
    """Raise unless key is a random key."""
    if not isinstance(key, Tensor) or key.shape.dims != (KEY,) or key.dtype != "uint32":
        problem = f"{what}: the first argument is not a random key"
        fix = "make one with nm.random.key(seed)"
        raise NamedMeshError(problem, format_value(key), fix=fix)


def draw_bits(what: str, key: Tensor, dims: Sequence[Dimension]) -> Tensor:
    """Draw 32 bits for each element of some dimensions; what names the caller in errors."""
    check_key(what, key)
    return Bits((key,), make_shape(what, dims)).output


def spread_bits(words: Tensor, dim: Dimension, first: Tensor | None = None) -> Tensor:
    """Make 32 bits for each element along one more dimension: cheaper than drawing them all."""
    return SpreadBits((words,) if first is None else (words, first), dim).output
