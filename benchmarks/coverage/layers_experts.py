"""The layers that route tokens to experts, where every expert has room for every token."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.coverage.entry import Entry
from benchmarks.coverage.kit import Kit
from namedmesh import layers


def entries(kit: Kit) -> dict[str, Entry]:
    """Gating by tokens and by experts, and the mixture itself."""
    G, S, E = kit.dim("group", 8, 3), kit.dim("seq"), kit.dim("expert", 4, 3)
    M, H = kit.dim("model", 4, 3), kit.dim("hidden", 8, 5)
    C, few = kit.dim("capacity", S.size, S.size), kit.dim("capacity", 4, 3)
    logits = kit.real(G, S, E)

    def gate(logits):
        return layers.top_k_gating(logits, S, E, C, second="all")

    def route(logits):
        routing = gate(logits)
        return routing.weight, routing.expert

    def routed(logits):
        gates, chosen = jax.lax.top_k(jax.nn.softmax(logits, -1), 2)
        return gates / (gates.sum(-1, keepdims=True) + 1e-9), chosen

    def pick(logits):
        routing = layers.expert_choice_gating(logits, S, E, few)
        return routing.weight, routing.token

    def picked(logits):
        return jax.lax.top_k(jnp.swapaxes(jax.nn.softmax(logits, -1), 1, 2), few.size)

    def mixture(x):
        return layers.moe(x, gate, (G, S, E, C, M, H))[0]

    def dropless(x):
        return layers.dropless_moe(x, gate, (G, S, E, M, H))[0]

    def mixed(x, weights):
        share, chosen = routed(x @ weights["wg"])
        hidden = jax.nn.relu(jnp.einsum("gsm,emh->gseh", x, weights["wi"]))
        every = jnp.einsum("gseh,ehm->gsem", hidden, weights["wo"])
        best = jnp.take_along_axis(every, chosen[..., None], 2)
        return jnp.einsum("gsk,gskm->gsm", share, best)

    return {
        "top_k_gating": Entry(route, routed, [logits], [S, E]),
        "expert_choice_gating": Entry(pick, picked, [logits], [S, E]),
        "moe": Entry(mixture, mixed, [kit.real(G, S, M)], [S, E, M, H], roundings=8),
        "dropless_moe": Entry(dropless, mixed, [kit.real(G, S, M)], [S, E, M, H], roundings=8),
    }
