"""Whole numbers that are ordered as floating point numbers are: nan the largest, zeros equal.

Backends disagree on how nan and -0.0 compare, in sorting and in reductions across devices; on whole
numbers all agree. So what orders floating point numbers does it by these keys.
"""

from __future__ import annotations

from typing import Any


def order_keys(tf: Any, x: Any, nan_first: bool = False) -> Any:
    """Convert floating point values to whole numbers of the same order; returns others as is."""
    if not x.dtype.is_floating:
        return x
    wide, whole = (tf.float64, tf.int64) if x.dtype == tf.float64 else (tf.float32, tf.int32)
    x = tf.cast(x, wide)
    bits = tf.bitcast(x, whole)
    # The bits of negative numbers count down from the sign, -0.0: turned round, they count up.
    keys = tf.where(bits < 0, whole.min - bits, bits)
    return tf.where(tf.math.is_nan(x), tf.constant(whole.min if nan_first else whole.max), keys)


def from_order_keys(tf: Any, keys: Any, dtype: Any, nan_first: bool = False) -> Any:
    """Convert the keys of floating point values back."""
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    nan = tf.equal(keys, keys.dtype.min if nan_first else keys.dtype.max)
    bits = tf.where(keys < 0, keys.dtype.min - keys, keys)
    value = tf.where(nan, tf.constant(float("nan"), wide), tf.bitcast(bits, wide))
    return tf.cast(value, dtype)


def unsign_zero_and_nan(tf: Any, x: Any) -> Any:
    """Take the sign from zeros and nan, by which some backends tell them apart."""
    whole = {2: tf.int16, 4: tf.int32, 8: tf.int64}[x.dtype.size]
    negative_zero = tf.equal(tf.bitcast(x, whole), whole.min)
    nan = tf.constant(float("nan"), x.dtype)
    return tf.where(tf.math.is_nan(x), nan, tf.where(negative_zero, tf.zeros([], x.dtype), x))


def sort_keys(tf: Any, x: Any) -> Any:
    """Convert values to int32 or int64 of the same order, which every backend sorts alike."""
    keys = order_keys(tf, x)
    return tf.cast(keys, tf.int64 if keys.dtype in (tf.int64, tf.uint32) else tf.int32)
