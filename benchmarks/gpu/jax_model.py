"""The model by hand in JAX, as fast as we could make it: what namedmesh is measured against.

It has the parameters and the arithmetic of namedmesh.layers.Transformer. Layers are written out one
after the other, dropout hashes a counter, tokens reach experts by gathers, and attention is XLA's
or cuDNN's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.gpu.jax_adafactor import init_optimizer, update_weights
from benchmarks.gpu.jax_experts import mix_experts
from benchmarks.gpu.jax_layers import (
    attention,
    cross_entropy,
    layer_norm,
    prepare_mask,
    sinusoids,
)
from benchmarks.gpu.jax_random import dropout, fold_in, keep_mask, make_key, random_bits
from benchmarks.gpu.models import Model


@dataclass(frozen=True)
class Weight:
    """A parameter, float32.

    Attributes:
        axes: A letter for each axis: L iterations of the layers, M the model, N heads, K keys, H
            hidden, E experts, V and W the vocabularies.
        fan: The axes over whose size the variance is one; without any it starts as a constant.
        constant: That constant.
    """

    axes: str
    fan: str = ""
    constant: float = 0.0


def describe_weights(model: Model) -> dict[str, Any]:
    """Return all parameters, nested by where they belong."""

    def norm(axes: str) -> dict[str, Weight]:
        return {"scale": Weight(axes, constant=1.0), "bias": Weight(axes)}

    def attend() -> dict[str, Any]:
        projections = {name: Weight("LMNK", fan="M") for name in ("wq", "wk", "wv")}
        return {"norm": norm("LM"), **projections, "wo": Weight("LNKM", fan="NK")}

    def layer(crossed: bool, mixture: bool) -> dict[str, Any]:
        weights: dict[str, Any] = {"attention": attend()}
        if crossed:
            weights["cross"] = attend()
        if mixture:
            experts = {"wi": Weight("LEMH", fan="M"), "wo": Weight("LEHM", fan="H")}
            weights["moe"] = {"norm": norm("LM"), "wg": Weight("LME", fan="M"), **experts}
        else:
            network = {"wi": Weight("LMH", fan="M"), "wo": Weight("LHM", fan="H")}
            weights["ffn"] = {"norm": norm("LM"), **network}
        return weights

    def side(vocab: str, crossed: bool) -> dict[str, Any]:
        layers = {"dense": layer(crossed, mixture=False)}
        if model.experts:
            layers["experts"] = layer(crossed, mixture=True)
        return {"embedding": Weight(vocab + "M", fan="M"), "layers": layers, "final": norm("M")}

    return {"encoder": side("V", crossed=False), "decoder": side("W", crossed=True)}


def init_weights(model: Model, seed: int = 0) -> dict[str, Any]:
    """Make the first weights: evenly spread with the right variance, which is quick to compile."""
    sizes = {
        "L": model.iterations,
        "M": model.model,
        "N": model.heads,
        "K": model.key,
        "H": model.hidden,
        "E": model.experts,
        "V": model.source_vocab,
        "W": model.target_vocab,
    }
    weights, structure = jax.tree.flatten(describe_weights(model))
    arrays = []
    for i, weight in enumerate(weights):
        shape = tuple(sizes[letter] for letter in weight.axes)
        if not weight.fan:
            arrays.append(jnp.full(shape, weight.constant, jnp.float32))
            continue
        bits = random_bits(fold_in(make_key(jnp.int32(seed)), i), shape)
        spread = math.sqrt(12.0 / math.prod(sizes[letter] for letter in weight.fan))
        arrays.append(((bits >> 8).astype(jnp.float32) * 2.0**-24 - 0.5) * spread)
    return jax.tree.unflatten(structure, arrays)


def compute_loss(
    weights: dict[str, Any],
    batch: dict[str, jax.Array],
    seed: jax.Array,
    model: Model,
    kind: str = "plain",
    looped: bool = False,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Compute the training loss and metrics; kind and looped as in make_step."""
    key = make_key(seed)
    source, target = batch["source_segments"], batch["target_segments"]
    causal = jnp.tril(jnp.ones((model.target, model.target), bool))[None]

    def attend(p: dict[str, Any], h: jax.Array, memory: Any, mask: jax.Array, *keys) -> jax.Array:
        """Add attention to a memory, or where there is none to h itself."""
        x = layer_norm(h, p["norm"])
        memory = x if memory is None else memory
        y = attention(p, x, memory, mask, keys[0], model.dropout, kind)
        return h + dropout(y, model.dropout, keys[1])

    own_mask = prepare_mask(_same_segment(source, source), kind)

    def attend_in_encoder(p: dict[str, Any], h: jax.Array, key: jax.Array) -> jax.Array:
        return attend(p["attention"], h, None, own_mask, fold_in(key, 1), fold_in(key, 2))

    p = weights["encoder"]
    x = _embed(model, p, batch["source"], batch["source_positions"], fold_in(key, 100))
    encoded, aux1 = _run_layers(model, p, x, fold_in(key, 1), attend_in_encoder, source, looped)

    target_mask = prepare_mask(_same_segment(target, target) & causal, kind)
    cross_mask = prepare_mask(_same_segment(target, source), kind)

    def attend_in_decoder(p: dict[str, Any], h: jax.Array, key: jax.Array) -> jax.Array:
        h = attend(p["attention"], h, None, target_mask, fold_in(key, 1), fold_in(key, 3))
        return attend(p["cross"], h, encoded, cross_mask, fold_in(key, 2), fold_in(key, 4))

    p = weights["decoder"]
    before = jnp.pad(batch["target"], ((0, 0), (1, 0)))[:, :-1]
    shifted = jnp.where(batch["target_positions"] == 0, 0, before)
    x = _embed(model, p, shifted, batch["target_positions"], fold_in(key, 102))
    decoded, aux2 = _run_layers(model, p, x, fold_in(key, 3), attend_in_decoder, target, looped)

    logits = jnp.einsum("gtm,wm->gtw", decoded, p["embedding"].astype(decoded.dtype))
    real = (target != 0).astype(jnp.float32)

    def mean(values: jax.Array) -> jax.Array:
        return (values * real).sum() / jnp.maximum(real.sum(), 1.0)

    entropy = mean(cross_entropy(logits, batch["target"], model.smoothing))
    right = mean((jnp.argmax(logits, -1) == batch["target"]).astype(jnp.float32))
    loss = entropy + (aux1 + aux2) * model.experts**2 * model.aux_weight
    return loss, {"loss": loss, "cross_entropy": entropy, "accuracy": right}


def make_step(
    model: Model, kind: str = "plain", looped: bool = False
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make the train step.

    Args:
        model: The model.
        kind: The kind of attention, `plain` or `cudnn`.
        looped: Whether layers are a loop, which the backward pass computes again, iteration by
        iteration.

    Returns:
        A function that makes the first weights and the optimizer's first state, and the step, from
        (weights, state, batch, seed) to (weights, state, metrics); both are to be jitted.
    """
    axes = [weight.axes for weight in jax.tree.leaves(describe_weights(model))]
    differentiate = jax.grad(compute_loss, has_aux=True)

    def init() -> tuple[Any, Any]:
        weights = init_weights(model)
        return weights, init_optimizer(jax.tree.leaves(weights), axes)

    def step(weights, state, batch, seed):
        grads, metrics = differentiate(weights, batch, seed, model, kind, looped)
        leaves, structure = jax.tree.flatten(weights)
        with jax.named_scope("optimize"):  # by this the profile knows the optimizer
            leaves, state = update_weights(leaves, jax.tree.leaves(grads), axes, state)
        return jax.tree.unflatten(structure, leaves), state, metrics

    return init, step


def _same_segment(queries: jax.Array, memory: jax.Array) -> jax.Array:
    """Mark positions of a memory (GS) in the example of a query (GQ), as GQS."""
    memory = memory[:, None, :]
    return (queries[:, :, None] == memory) & (memory != 0)


def _embed(model: Model, p: dict[str, Any], tokens, positions, key: jax.Array) -> jax.Array:
    """Embed tokens and positions, GSM."""
    # The rows are cast after the lookup, so that their gradients add up in float32.
    x = p["embedding"][tokens].astype(jnp.bfloat16)
    x = x * jnp.asarray(math.sqrt(model.model), x.dtype)
    if model.word_dropout:
        kept = keep_mask(fold_in(key, 1), tokens.shape, model.word_dropout)
        x = jnp.where(kept[..., None], x, jnp.zeros((), x.dtype))
    return dropout(x + sinusoids(positions, model.model), model.dropout, key)


def _run_layers(
    model: Model,
    p: dict[str, Any],
    x: jax.Array,
    key: jax.Array,
    attend: Callable[[dict[str, Any], jax.Array, jax.Array], jax.Array],
    segments: jax.Array,
    looped: bool,
) -> tuple[jax.Array, jax.Array]:
    """Run the layers of one side; returns their output and the auxiliary losses' sum."""
    real = (segments != 0).astype(jnp.float32)

    def iteration(carry, row):
        (h, aux), (layers, i) = carry, row
        own = fold_in(key, i)
        h = attend(layers["dense"], h, own)
        y = _feed_forward(layers["dense"]["ffn"], h)
        h = h + dropout(y, model.dropout, fold_in(own, 11))
        if model.experts:
            h = attend(layers["experts"], h, fold_in(own, 12))
            moe = layers["experts"]["moe"]
            capacity = model.capacity(h.shape[1])
            tokens = layer_norm(h, moe["norm"])
            y, loss = mix_experts(moe, tokens, capacity, real, fold_in(own, 13))
            h, aux = h + dropout(y, model.dropout, fold_in(own, 14)), aux + loss
        return (h, aux), None

    start, rows = (x, jnp.zeros(())), (p["layers"], jnp.arange(model.iterations))
    if looped:
        (h, aux), _ = lax.scan(jax.checkpoint(iteration), start, rows)
    else:
        (h, aux), _ = lax.scan(iteration, start, rows, unroll=model.iterations)
    return layer_norm(h, p["final"]), aux


def _feed_forward(p: dict[str, Any], h: jax.Array) -> jax.Array:
    x = layer_norm(h, p["norm"])
    y = jax.nn.relu(jnp.einsum("gsm,mh->gsh", x, p["wi"].astype(x.dtype)))
    return jnp.einsum("gsh,hm->gsm", y, p["wo"].astype(x.dtype))
