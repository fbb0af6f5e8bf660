"""The layer of benchmarks.moe by hand in JAX: the same mathematics, sharded in the same places."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.moe import Sizes


def top2_gating(gates: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return combine weights and dispatch mask (GSEC), and each group's auxiliary loss (G).

    gates are GSE.
    """
    experts = gates.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(gates, -1), experts)  # GSE
    aux = jnp.mean(jnp.mean(first, 1) * jnp.mean(gates, 1), -1)  # G
    second = jax.nn.one_hot(jnp.argmax(jnp.where(first > 0, -1.0, gates), -1), experts)
    gate1, gate2 = jnp.sum(gates * first, -1), jnp.sum(gates * second, -1)  # GS
    total = gate1 + gate2 + 1e-9
    place1 = jnp.cumsum(first, 1) - first  # GSE: how many came before
    place2 = jnp.cumsum(second, 1) - second + jnp.sum(first, 1, keepdims=True)
    combine1 = _place(first, place1, gate1 / total, capacity)
    combine = combine1 + _place(second, place2, gate2 / total, capacity)
    return combine, (combine > 0).astype(jnp.float32), aux


def _place(mask: jax.Array, place: jax.Array, gate: jax.Array, capacity: int) -> jax.Array:
    """Put every token's gate at its place in its expert's buffer, unless beyond the capacity."""
    kept = mask * (place < capacity)  # GSE
    position = jnp.sum(place * kept, -1).astype(jnp.int32)  # GS
    return jnp.einsum("gs,gse,gsc->gsec", gate, kept, jax.nn.one_hot(position, capacity))


def step(sizes: Sizes, mesh: Mesh) -> Any:
    """Compile the step over the one axis of a mesh.

    It maps x, dy, wg, wi and wo to y and the gradients of x, wg, wi and wo.
    """
    first = NamedSharding(mesh, PartitionSpec(*mesh.axis_names))
    second = NamedSharding(mesh, PartitionSpec(None, *mesh.axis_names))
    whole = NamedSharding(mesh, PartitionSpec())
    constrain = jax.lax.with_sharding_constraint

    def moe(x, wg, wi, wo):  # x: GSM
        gates = jax.nn.softmax(jnp.einsum("gsm,me->gse", x, wg))
        combine, dispatch, aux = top2_gating(gates, sizes.capacity)
        xe = constrain(jnp.einsum("gsec,gsm->egcm", dispatch, x), second)
        xe = constrain(xe, first)  # group -> expert: one AllToAll
        h = jax.nn.relu(jnp.einsum("egcm,emh->egch", xe, wi))
        ye = constrain(jnp.einsum("egch,ehm->egcm", h, wo), first)
        ye = constrain(ye, second)  # and one back
        return jnp.einsum("gsec,egcm->gsm", combine, ye), aux

    def forward_and_backward(x, dy, wg, wi, wo):
        (y, aux), backward = jax.vjp(moe, x, wg, wi, wo)
        return y, *backward((dy, jnp.full_like(aux, 1 / sizes.group)))

    tokens = (sizes.group, sizes.seq, sizes.model)
    entries = [
        (tokens, first),
        (tokens, first),
        ((sizes.model, sizes.expert), whole),
        ((sizes.expert, sizes.model, sizes.hidden), first),
        ((sizes.expert, sizes.hidden, sizes.model), first),
    ]
    function = jax.jit(
        forward_and_backward,
        in_shardings=tuple(sharding for _, sharding in entries),
        out_shardings=(first, first, whole, first, first),
    )
    return function.lower(
        *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape, _ in entries)
    ).compile()
