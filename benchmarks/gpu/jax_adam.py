"""Adam by hand in JAX, as examples/llm has it: clipped by the global norm, with a warm-up."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu.llama import (
    BETA1,
    BETA2,
    CLIP_NORM,
    DECAY_STEPS,
    EPSILON,
    LEARNING_RATE,
    WARM_UP_STEPS,
)


def init_adam(weights: Any) -> dict[str, Any]:
    """Make the optimizer's first state."""
    zeros = [jax.tree.map(jnp.zeros_like, weights) for _ in range(2)]
    return {"step": jnp.zeros((), jnp.int32), "first": zeros[0], "second": zeros[1]}


def update_adam(weights: Any, grads: Any, state: dict[str, Any]) -> tuple[Any, Any, jax.Array]:
    """Return the new weights, the new state, and the gradient's norm before it was clipped."""
    step = state["step"].astype(jnp.float32)
    done = jnp.minimum(step / DECAY_STEPS, 1.0)
    rate = LEARNING_RATE * (jnp.cos(done * math.pi) + 1) / 2
    rate = rate * jnp.minimum((step + 1) / WARM_UP_STEPS, 1.0)
    first_correction, second_correction = 1 - BETA1 ** (step + 1), 1 - BETA2 ** (step + 1)
    squares = [jnp.square(grad.astype(jnp.float32)).sum() for grad in jax.tree.leaves(grads)]
    norm = jnp.sqrt(jnp.stack(squares).sum())
    clip = CLIP_NORM / jnp.maximum(norm, CLIP_NORM)

    def update(weight, grad, first, second):
        grad = grad.astype(jnp.float32) * clip
        first = first * BETA1 + grad * (1 - BETA1)
        second = second * BETA2 + jnp.square(grad) * (1 - BETA2)
        scale = jnp.sqrt(second / second_correction) + EPSILON
        return weight - first / first_correction / scale * rate, first, second

    leaves, structure = jax.tree.flatten(weights)
    others = [jax.tree.leaves(tree) for tree in (grads, state["first"], state["second"])]
    updated = [update(*one) for one in zip(leaves, *others, strict=True)]
    weights, first, second = (
        jax.tree.unflatten(structure, column) for column in zip(*updated, strict=True)
    )
    return weights, {"step": state["step"] + 1, "first": first, "second": second}, norm
