"""Embeddings of tokens and positions."""

from __future__ import annotations

import math

import namedmesh as nm
from namedmesh.dims.dimension import Dimension
from namedmesh.ir.tensor import Tensor


def embedding(
    tokens: Tensor,
    vocab: Dimension,
    model: Dimension,
    *,
    name: str = "embedding",
    dtype: str = "float32",
) -> Tensor:
    """The rows of a table at some tokens, scaled up by the square root of the model dimension."""
    table = nm.param(name, [vocab, model], nm.normal_init(1.0 / math.sqrt(model.size)))
    return nm.gather(nm.cast(table, dtype), tokens, vocab) * math.sqrt(model.size)


def logits(x: Tensor, vocab: Dimension, model: Dimension, *, name: str = "embedding") -> Tensor:
    """Scores of every token of a vocabulary; the name of an embedding ties the two."""
    table = nm.param(name, [vocab, model], nm.normal_init(1.0 / math.sqrt(model.size)))
    kept = [dim for dim in x.shape if dim != model]
    return nm.einsum([x, nm.cast(table, x.dtype)], [*kept, vocab])


def sinusoids(positions: Tensor, model: Dimension, dtype: str = "float32") -> Tensor:
    """Sines and cosines of positions at geometrically spaced wavelengths: the first half of the model sines, then cosines."""
    channel = nm.cast(nm.range(model), "float32")
    half = model.size // 2
    first = channel < float(half)
    step = nm.where(first, channel, channel - float(half))
    angle = nm.cast(positions, "float32") * nm.exp(step * (-math.log(10_000.0) / max(half - 1, 1)))
    return nm.cast(nm.where(first, nm.sin(angle), nm.cos(angle)), dtype)


def learned_positions(
    positions: Tensor, length: Dimension, model: Dimension, *, name: str = "positions"
) -> Tensor:
    """The rows of a learned table at some positions."""
    table = nm.param(name, [length, model], nm.normal_init(0.02))
    return nm.gather(table, positions, length)
