"""The mixture of experts by hand in JAX: top-2 gating, and tokens dispatched by index.

Letters: G rows, S tokens of a row, E experts, C places of an expert in a row, M the model, two
choices for each token. Both dispatch and combine are gathers, forward and backward.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.gpu.jax_layers import multiply_gated
from benchmarks.gpu.jax_random import uniform


class Routing(NamedTuple):
    """The routing of tokens, over all rows."""

    token: jax.Array  # EGC: the token at each place; G * S where there is none
    place: jax.Array  # GS, 2: the place of each choice; E * G * C where it is not served
    weight: jax.Array  # GS, 2: the weight of each choice
    aux: jax.Array  # the auxiliary loss, which is least when experts have even loads


def mix_experts(
    weights: dict[str, Any],
    x: jax.Array,
    capacity: int,
    real: jax.Array | None = None,
    key: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Send tokens to experts and combine what they return.

    Args:
        weights: wg (ME), wi (EMH) and wo (EHM); with wi_gate (EMH) swish gates what it makes.
        x: Tokens, GSM.
        capacity: The places C.
        real: One for a token, zero for padding, GS; None if all are tokens.
        key: The random key by which second choices are served; None serves all that have a place.

    Returns:
        The combined outputs, GSM, and the auxiliary loss.
    """
    G, S, M = x.shape
    E = weights["wg"].shape[-1]
    routing = route(weights["wg"], x, capacity, real, key)
    xe = dispatch(x.reshape(G * S, M), routing.token, routing.place)
    xe = xe.reshape(E, G * capacity, M)
    h = jnp.einsum("enm,emh->enh", xe, weights["wi"].astype(x.dtype))
    if "wi_gate" in weights:
        h = multiply_gated(h, jnp.einsum("enm,emh->enh", xe, weights["wi_gate"].astype(x.dtype)))
    else:
        h = jax.nn.relu(h)
    ye = jnp.einsum("enh,ehm->enm", h, weights["wo"].astype(x.dtype))
    ye = ye.reshape(E * G * capacity, M)
    y = combine(ye, routing.weight, routing.token, routing.place)
    return y.reshape(G, S, M), routing.aux


def route(
    wg: jax.Array, x: jax.Array, capacity: int, real: jax.Array | None, key: jax.Array | None
) -> Routing:
    """Choose two experts for each token, the second served at random by its weight, or always."""
    (G, S, _), E, C = x.shape, wg.shape[-1], capacity
    real = jnp.ones((G, S)) if real is None else real
    gates = jax.nn.softmax(jnp.einsum("gsm,me->gse", x.astype(jnp.float32), wg), -1)
    first = jnp.argmax(gates, -1)
    first_hot = jax.nn.one_hot(first, E)
    second = jnp.argmax(jnp.where(first_hot > 0, -1.0, gates), -1)
    mask1 = first_hot * real[..., None]  # GSE
    mask2 = jax.nn.one_hot(second, E) * real[..., None]
    gate1, gate2 = (gates * mask1).sum(-1), (gates * mask2).sum(-1)  # GS
    total = gate1 + gate2 + 1e-9
    # First choices of a whole row come before its second choices.
    place1 = ((jnp.cumsum(mask1, 1) - mask1) * mask1).sum(-1)
    place2 = ((jnp.cumsum(mask2, 1) - mask2 + mask1.sum(1, keepdims=True)) * mask2).sum(-1)
    served1 = (place1 < C) & (real > 0)
    served2 = (place2 < C) & (real > 0)
    if key is not None:
        served2 &= lax.stop_gradient(gate2 / total) * 2 > uniform(key, (G, S))
    weight = jnp.stack([gate1 / total * served1, gate2 / total * served2], -1)
    tokens = jnp.maximum(real.sum(1), 1.0)[:, None]
    chosen_share = mask1.sum(1) / tokens  # GE
    gate_share = (gates * real[..., None]).sum(1) / tokens
    aux = (chosen_share * gate_share).mean(-1).mean()

    expert = jnp.stack([first, second], -1)
    served = jnp.stack([served1, served2], -1)
    within = jnp.stack([place1, place2], -1).astype(jnp.int32)
    row = jnp.arange(G)[:, None, None]
    # Experts are outermost, so that dispatch writes what the batched product reads.
    place = jnp.where(served, (expert * G + row) * C + within, E * G * C).reshape(G * S, 2)
    number = jnp.broadcast_to(jnp.arange(G * S, dtype=jnp.int32)[:, None], place.shape)
    token = jnp.full((E * G * C,), G * S, jnp.int32)
    token = token.at[place.reshape(-1)].set(number.reshape(-1), mode="drop", unique_indices=True)
    return Routing(token, place, weight.reshape(G * S, 2), aux)


def _take_rows(x: jax.Array, index: jax.Array) -> jax.Array:
    """Gather rows; zeros where the index is past the end."""
    return x.at[index].get(mode="fill", fill_value=0)


@jax.custom_vjp
def dispatch(x: jax.Array, token: jax.Array, place: jax.Array) -> jax.Array:
    """Copy tokens (GS, M) to their places (EGC, M).

    Its derivative gathers too: by itself JAX would scatter.
    """
    return _take_rows(x, token)


def _dispatch_forward(x, token, place):
    return dispatch(x, token, place), place


def _dispatch_backward(place, cotangent):
    first, second = (_take_rows(cotangent, place[:, i]).astype(jnp.float32) for i in (0, 1))
    return (first + second).astype(cotangent.dtype), None, None


dispatch.defvjp(_dispatch_forward, _dispatch_backward)


@jax.custom_vjp
def combine(y: jax.Array, weight: jax.Array, token: jax.Array, place: jax.Array) -> jax.Array:
    """Add up what experts return (EGC, M) for each token's choices (GS, M), with their weights."""
    first, second = (
        _take_rows(y, place[:, i]).astype(jnp.float32) * weight[:, i, None] for i in (0, 1)
    )
    return (first + second).astype(y.dtype)


def _combine_forward(y, weight, token, place):
    return combine(y, weight, token, place), (y, weight, token, place)


def _combine_backward(saved, cotangent):
    y, weight, token, place = saved
    by_place = jnp.zeros(token.shape, jnp.float32)
    by_place = by_place.at[place.reshape(-1)].set(
        weight.reshape(-1), mode="drop", unique_indices=True
    )
    dy = _take_rows(cotangent, token).astype(jnp.float32) * by_place[:, None]
    wide = cotangent.astype(jnp.float32)
    dweight = [(_take_rows(y, place[:, i]).astype(jnp.float32) * wide).sum(-1) for i in (0, 1)]
    return dy.astype(y.dtype), jnp.stack(dweight, -1), None, None


combine.defvjp(_combine_forward, _combine_backward)
