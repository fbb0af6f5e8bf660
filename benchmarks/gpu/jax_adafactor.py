"""Adafactor by hand in JAX, as namedmesh has it: the same slots, means and learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.gpu.models import RATE_CONSTANT_STEPS

SEPARATE = "LE"  # layers and experts: every slice along these axes is a tensor of its own
SMALLEST_FACTORED = 128
BETA2, BETA2_EXPONENT = 0.99, 0.8


def init_optimizer(weights: Sequence[jax.Array], axes: Sequence[str]) -> dict[str, Any]:
    """Make the optimizer's first state.

    Args:
        weights: The weights.
        axes: The axes of each, a letter for each axis.
    """

    def make_slots(weight: jax.Array, letters: str) -> dict[str, jax.Array]:
        factors = _find_factors(weight, letters)
        if factors is None:
            return {"second": jnp.zeros(weight.shape)}
        rows, columns = (
            [size for i, size in enumerate(weight.shape) if i != left_out]
            for left_out in reversed(factors)
        )
        return {"row": jnp.zeros(rows), "column": jnp.zeros(columns)}

    slots = [make_slots(*pair) for pair in zip(weights, axes, strict=True)]
    return {"step": jnp.zeros((), jnp.int32), "slots": slots}


def update_weights(
    weights: Sequence[jax.Array],
    grads: Sequence[jax.Array],
    axes: Sequence[str],
    state: dict[str, Any],
) -> tuple[list[jax.Array], dict[str, Any]]:
    """Return the new weights and the new state."""
    step = state["step"].astype(jnp.float32)
    rate = lax.rsqrt(jnp.maximum(step, float(RATE_CONSTANT_STEPS)))
    beta2 = jnp.minimum(1.0 - (step + 1) ** -BETA2_EXPONENT, BETA2)
    updated, slots = [], []
    for weight, grad, letters, slot in zip(weights, grads, axes, state["slots"], strict=True):
        own = tuple(i for i, letter in enumerate(letters) if letter not in SEPARATE)
        change, new_slot = _normalize(grad, slot, beta2, _find_factors(weight, letters))
        change = change / jnp.maximum(_root_mean_square(change, own), 1.0)
        scale = jnp.maximum(_root_mean_square(weight, own), 1e-3) * rate
        updated.append(weight - change * scale)
        slots.append(new_slot)
    return updated, {"step": state["step"] + 1, "slots": slots}


def _normalize(
    grad: jax.Array,
    slot: dict[str, jax.Array],
    beta2: jax.Array,
    factors: tuple[int, int] | None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Divide a gradient by the root of its second moment, and update that."""

    def average(name: str, value: jax.Array) -> jax.Array:
        return slot[name] * beta2 + value * (1 - beta2)

    squares = jnp.square(grad) + 1e-30
    if factors is None:
        second = average("second", squares)
        return grad * lax.rsqrt(second), {"second": second}
    shorter, longest = factors
    row = average("row", squares.mean(longest))
    column = average("column", squares.mean(shorter))
    relative = row / row.mean(shorter - (longest < shorter), keepdims=True)
    by_row = jnp.expand_dims(lax.rsqrt(relative), longest)
    by_column = jnp.expand_dims(lax.rsqrt(column), shorter)
    return grad * by_row * by_column, {"row": row, "column": column}


def _find_factors(weight: jax.Array, letters: str) -> tuple[int, int] | None:
    """Return the two longest axes, the longest last; None where the weight is not factored."""
    own = [i for i, letter in enumerate(letters) if letter not in SEPARATE]
    pair = sorted(own, key=lambda i: weight.shape[i])[-2:]
    if len(pair) < 2 or weight.shape[pair[0]] < SMALLEST_FACTORED:
        return None
    return pair[0], pair[1]


def _root_mean_square(x: jax.Array, own: tuple[int, ...]) -> jax.Array:
    return jnp.sqrt(jnp.square(x).mean(own, keepdims=True))
