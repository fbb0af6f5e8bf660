"""The hash behind random numbers: from a key and a counter to 32 bits, in TensorFlow.

Two rounds of a cheap mixer, with a word of the key in each: a sixth of the operations of Threefry,
in the program as on the device.
"""

from __future__ import annotations

import functools
from typing import Any

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
    """Permutes 32-bit words; every input bit changes every output bit (lowbias32)."""
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
    """Make a word for each index from a random one; one round will do where the words are random.

    `namedmesh.artifacts.kernels` computes the same.
    """
    return _mix(tf, word + index * tf.constant(GOLDEN, tf.uint32))


@functools.cache
def _folder(tf: Any) -> Any:
    """Make one TensorFlow function, traced once, as for the mixer."""
    signature = [tf.TensorSpec([2], tf.uint32), tf.TensorSpec([], tf.uint32)]

    @tf.function(input_signature=signature, autograph=False)
    def fold(key: Any, number: Any) -> Any:
        # Other words than the key's own: a key made here is no pair of bits drawn from this one.
        words = _mix(tf, key[1] + tf.constant(FOLDED, tf.uint32)), key[0]
        second = hash_counter(tf, words, number, tf.constant(1, tf.uint32))
        return tf.stack([hash_counter(tf, words, number), second])

    return fold


def fold_number(tf: Any, key: Any, number: Any) -> Any:
    """Make a key of two words from another and a number."""
    return _folder(tf)(key, number)
