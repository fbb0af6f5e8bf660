"""Steps of plain JAX that tests inspect; the comments mark lines that collectives belong to."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

LAYERS, BATCH, MODEL, HIDDEN = 3, 16, 32, 64


def make_mesh(**axes: int) -> jax.sharding.Mesh:
    """A mesh of virtual devices whose shardings the compiler propagates."""
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
    with jax.named_scope("mlp"):
        hidden = jnp.tanh(x @ weights["wi"])  # line: wi
        return x + hidden @ weights["wo"], None  # line: wo


def loss(params: Any, x: jax.Array) -> jax.Array:
    y, _ = jax.lax.scan(layer, x, {name: params[name] for name in ("wi", "wo")})
    return jnp.mean((y + params["bias"]) ** 2)  # line: loss


@jax.jit
def train(params: Any, x: jax.Array) -> tuple[jax.Array, Any]:
    value, gradients = jax.value_and_grad(loss)(params, x)
    norm = jnp.sqrt(sum(jnp.sum(one**2) for one in jax.tree.leaves(gradients)))  # line: norm
    return value, jax.tree.map(lambda p, g: p - 0.1 * g / norm, params, gradients)


def arguments(mesh: jax.sharding.Mesh, hidden: int = HIDDEN) -> tuple[Any, jax.Array]:
    """Megatron's layout: the batch over data, the hidden units over model."""

    def place(sizes: tuple[int, ...], *axes: str | None) -> Any:
        return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=NamedSharding(mesh, P(*axes)))

    params = {
        "wi": place((LAYERS, MODEL, hidden), None, None, "model"),
        "wo": place((LAYERS, hidden, MODEL), None, "model", None),
        "bias": place((MODEL,)),
    }
    return params, place((BATCH, MODEL), "data", None)


def step(hidden: int = HIDDEN) -> Any:
    """What `namedmesh inspect` is given."""
    return train, *arguments(make_mesh(data=2, model=4), hidden)
