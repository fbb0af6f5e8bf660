"""Losses over a vocabulary."""

from __future__ import annotations

import math

import namedmesh as nm
from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.tensor import Tensor


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    vocab: Dimension,
    *,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The loss and the z-loss of every target.

    smoothing spreads that share of the probability over all other tokens; the entropy of the smoothed target is
    subtracted, so that a perfect prediction has loss zero. z_loss weighs the squared log of the normaliser.
    """
    if not 0 <= smoothing < 1 or (smoothing and vocab.size < 2):
        raise NamedMeshError(
            f"cross_entropy: smoothing={smoothing} over {vocab}",
            fix="give a share from 0 to below 1",
        )
    scores = nm.cast(logits, "float32")
    normaliser = nm.logsumexp(scores, over=vocab)
    hot = nm.one_hot(targets, vocab)
    picked = nm.sum(scores * hot, over=vocab)
    loss = normaliser - picked
    if smoothing:
        other = smoothing / (vocab.size - 1)
        confidence = 1.0 - smoothing
        everything = nm.sum(scores, over=vocab)
        loss = normaliser - picked * (confidence - other) - everything * other
        loss = loss + (confidence * math.log(confidence) + smoothing * math.log(other))
    return loss, nm.square(normaliser) * z_loss


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """The mean of values where weights say how much each counts."""
    return nm.sum(values * weights) / nm.maximum(nm.sum(weights), 1.0)
