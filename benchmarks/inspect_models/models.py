"""A small model of each library, as its users write them, and one train step for all."""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

BATCH, WIDTH, HIDDEN, BLOCKS = 64, 64, 256, 2
Apply = Callable[[Any, jax.Array], jax.Array]
Model = tuple[str, Apply, Any]  # its name, its function of parameters and input, its parameters


def make_nnx() -> Model:
    """Two residual blocks of Flax NNX."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
            self.up = nnx.Linear(WIDTH, HIDDEN, rngs=rngs)
            self.down = nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return x + self.down(nnx.gelu(self.up(self.norm(x))))

    rngs = nnx.Rngs(0)
    graph, state = nnx.split(nnx.Sequential(*(Block(rngs) for _ in range(BLOCKS))))
    return "residual MLP", lambda params, x: nnx.merge(graph, params)(x), state


def make_equinox() -> Model:
    """Attention and an MLP of Equinox."""
    import equinox as eqx

    class Block(eqx.Module):
        attention: eqx.nn.MultiheadAttention
        norm: eqx.nn.LayerNorm
        mlp: eqx.nn.MLP

        def __init__(self, key: jax.Array) -> None:
            one, two = jax.random.split(key)
            self.attention = eqx.nn.MultiheadAttention(4, WIDTH, key=one)
            self.norm = eqx.nn.LayerNorm(WIDTH)
            self.mlp = eqx.nn.MLP(WIDTH, WIDTH, HIDDEN, 1, key=two)

        def __call__(self, x: jax.Array) -> jax.Array:
            y = jax.vmap(self.norm)(x)
            y = x + self.attention(y, y, y)
            return y + jax.vmap(self.mlp)(y)

    params, static = eqx.partition(Block(jax.random.key(0)), eqx.is_array)

    def apply(params: Any, x: jax.Array) -> jax.Array:
        model = eqx.combine(params, static)
        return jax.vmap(model)(x.reshape(BATCH // 8, 8, WIDTH)).reshape(BATCH, WIDTH)

    return "attention and MLP", apply, params


def make_haliax() -> Model:
    """A loop over blocks of Haliax."""
    import equinox as eqx
    import haliax as hax
    import haliax.nn as hnn

    rows, width, hidden = (hax.Axis(*one) for one in (("r", BATCH), ("w", WIDTH), ("h", HIDDEN)))

    class Block(eqx.Module):
        norm: hnn.LayerNorm
        up: hnn.Linear
        down: hnn.Linear

        @staticmethod
        def init(*, key: Any) -> Block:
            one, two = jax.random.split(key)
            up, down = (
                hnn.Linear.init(width, hidden, key=one),
                hnn.Linear.init(hidden, width, key=two),
            )
            return Block(hnn.LayerNorm.init(width), up, down)

        def __call__(self, x: hax.NamedArray) -> hax.NamedArray:
            return x + self.down(hnn.gelu(self.up(self.norm(x))))

    layers = hax.Axis("layers", BLOCKS)
    keys = jax.random.split(jax.random.key(0), BLOCKS)
    params, static = eqx.partition(hnn.Stacked.init(layers, Block)(key=keys), eqx.is_array)

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return eqx.combine(params, static).fold(hax.named(x, (rows, width))).array

    return "stacked MLP", apply, params


def make_penzai() -> Model:
    """The MLP of Penzai."""
    from penzai import pz
    from penzai.models.simple_mlp import MLP

    model = MLP.from_config(jax.random.key(0), [WIDTH, HIDDEN, WIDTH, HIDDEN, WIDTH])
    model, params = pz.unbind_params(model, freeze=True)

    def apply(params: Any, x: jax.Array) -> jax.Array:
        whole = pz.bind_variables(model, params)
        return whole(pz.nx.wrap(x).tag("batch", "features")).unwrap("batch", "features")

    return "MLP", apply, params


def make_keras() -> Model:
    """A functional model of Keras 3."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    x = inputs = keras.Input((WIDTH,))
    for _ in range(BLOCKS):
        y = keras.layers.Dense(HIDDEN, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.Add()([x, keras.layers.Dense(WIDTH)(y)])
    model = keras.Model(inputs, x)
    rest = [one.value for one in model.non_trainable_variables]
    params = [one.value for one in model.trainable_variables]
    return "residual MLP", lambda params, x: model.stateless_call(params, rest, x)[0], params


MODELS = {
    "flax": make_nnx,
    "equinox": make_equinox,
    "haliax": make_haliax,
    "penzai": make_penzai,
    "keras": make_keras,
}


def make_steps(apply: Apply, params: Any) -> dict[str, tuple[Callable[..., Any], Any]]:
    """Return a forward and a train step, and what each holds between steps."""
    optimizer = optax.adam(1e-3)

    def forward(params: Any, x: jax.Array) -> jax.Array:
        return apply(params, x)

    def train(state: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return jnp.mean((apply(params, x) - x) ** 2)

        value, gradients = jax.value_and_grad(loss)(state[0])
        updates, moments = optimizer.update(gradients, state[1], state[0])
        return value, (optax.apply_updates(state[0], updates), moments)

    return {"forward": (forward, params), "train": (train, (params, optimizer.init(params)))}
