"""Random numbers for dropout, by hand in JAX: a hash of a counter, which fuses into its use.

jax.random's own bits are written to memory first; these never are.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax


def mix(x: jax.Array) -> jax.Array:
    """Hash 32-bit words, so that each bit depends on all."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def make_key(seed: jax.Array) -> jax.Array:
    """Make a key, two words, of a seed."""
    seed = seed.astype(jnp.uint32)
    return jnp.stack([mix(seed), mix(seed + jnp.uint32(77))])


def fold_in(key: jax.Array, number: jax.Array | int) -> jax.Array:
    """Make another key of a key and a number."""
    number = jnp.asarray(number).astype(jnp.uint32)
    first = mix(mix(number ^ key[0]) + key[1])
    second = mix(mix(number ^ key[1]) + key[0] + jnp.uint32(1))
    return jnp.stack([first, second])


def random_bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return random 32-bit words."""
    counter = lax.iota(jnp.uint32, math.prod(shape))
    return mix(mix(counter ^ key[0]) + key[1]).reshape(shape)


def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return random numbers in [0, 1), float32."""
    return (random_bits(key, shape) >> 8).astype(jnp.float32) * 2.0**-24


def keep_mask(key: jax.Array, shape: tuple[int, ...], rate: float) -> jax.Array:
    """Draw the mask of dropout."""
    return random_bits(key, shape) >= jnp.uint32(int(rate * 2**32))


def dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    """Set a share of x to zero, and scale up the rest."""
    if not rate:
        return x
    scale = jnp.asarray(1.0 / (1.0 - rate), x.dtype)
    return jnp.where(keep_mask(key, x.shape, rate), x * scale, jnp.zeros((), x.dtype))
