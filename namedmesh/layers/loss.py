"""Losses over a vocabulary, and binary ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import namedmesh as nm


def cross_entropy(
    logits: nm.Tensor,
    targets: nm.Tensor,
    vocab: nm.Dimension,
    *,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[nm.Tensor, nm.Tensor]:
    """Return the cross-entropy and the z-loss of every target, in float32.

    Args:
        logits: Scores, with the vocabulary's dimension.
        targets: The right tokens, int32, with the other dimensions of logits.
        vocab: The vocabulary's dimension.
        smoothing: The share of the probability to spread over all other tokens. The entropy of
            the smoothed target is subtracted, so that a perfect prediction has loss zero.
        z_loss: The weight of the squared logarithm of the softmax's normalizer.

    Example:
        >>> B, V = nm.dims("batch=4 vocab=10")
        >>> loss = lambda x, y: cross_entropy(x, y, V, smoothing=0.1)[0]
        >>> nm.trace(loss, x=nm.spec([B, V]), y=nm.spec([B], "int32")).outputs[0].shape
        [batch=4]
    """
    if not 0 <= smoothing < 1 or (smoothing and vocab.size < 2):
        raise nm.NamedMeshError(
            f"cross_entropy: smoothing={smoothing} over {vocab}",
            fix="pass a share in [0, 1), and 0 for a vocabulary of one token",
        )
    scores = nm.cast(logits, "float32")
    normaliser = nm.logsumexp(scores, over=vocab)
    picked = nm.sum(scores * nm.one_hot(targets, vocab), over=vocab)
    loss = normaliser - picked
    if smoothing:
        other = smoothing / (vocab.size - 1)
        confidence = 1.0 - smoothing
        everything = nm.sum(scores, over=vocab)
        loss = normaliser - picked * (confidence - other) - everything * other
        loss = loss + (confidence * math.log(confidence) + smoothing * math.log(other))
    return loss, nm.square(normaliser) * z_loss


def chunked_cross_entropy(
    score: Callable[[nm.Tensor], nm.Tensor],
    h: nm.Tensor,
    targets: nm.Tensor,
    vocab: nm.Dimension,
    *,
    over: nm.Dimension,
    chunks: int,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[nm.Tensor, nm.Tensor]:
    """Return `cross_entropy` of scores that are made chunk by chunk, forward and back.

    The logits of one chunk are in memory at a time; the backward pass computes them again.

    Args:
        score: Makes logits of a chunk of `h`.
        h: What the logits are made of, such as a model's last layer.
        targets: The right tokens, int32.
        vocab: The vocabulary's dimension.
        over: A dimension of `h` and `targets` whose elements are chunked. Where it is sharded,
            every device takes some of its own.
        chunks: How many, which divide the dimension's size; 1 makes all logits at once.
        smoothing: As `cross_entropy` has it.
        z_loss: As `cross_entropy` has it.

    Example:
        >>> S, M, V = nm.dims("seq=8 model=4 vocab=10")
        >>> def loss(h, targets):
        ...     score = lambda h: nm.einsum([h, nm.param("w", [M, V])], over=M)
        ...     return chunked_cross_entropy(score, h, targets, V, over=S, chunks=2)[0]
        >>> nm.trace(loss, h=nm.spec([S, M]), targets=nm.spec([S], "int32")).outputs[0].shape
        [seq=8]
    """
    options = {"smoothing": smoothing, "z_loss": z_loss}
    if chunks == 1:
        return cross_entropy(score(h), targets, vocab, **options)
    if chunks < 1 or over.size % chunks:
        raise nm.NamedMeshError(
            f"chunked_cross_entropy: {chunks} chunks of {over}",
            str(h),
            fix=f"pass a number that divides {over.size}",
        )
    part, chunk = over.resized(over.size // chunks), nm.Dimension("chunk", chunks)

    def one(rows: tuple[nm.Tensor, nm.Tensor]) -> tuple[nm.Tensor, nm.Tensor]:
        return cross_entropy(score(rows[0]), rows[1], vocab, **options)

    rows = tuple(nm.reshape(x, over, [part, chunk]) for x in (h, targets))
    losses = nm.map(one, rows, over=chunk, remat="full")
    shape = targets.shape
    joined = [nm.transpose(nm.reshape(x, [part, chunk], over), shape) for x in losses]
    return joined[0], joined[1]


def soft_cross_entropy(
    logits: nm.Tensor, probabilities: nm.Tensor, vocab: nm.Dimension
) -> nm.Tensor:
    """Return the cross-entropy of every target that is a distribution, in float32.

    Args:
        logits, vocab: As in `cross_entropy`.
        probabilities: The distributions: a teacher's predictions, or mixed labels.

    Example:
        >>> B, V = nm.dims("batch=4 vocab=10")
        >>> loss = lambda x, p: soft_cross_entropy(x, p, V)
        >>> nm.trace(loss, x=nm.spec([B, V]), p=nm.spec([B, V])).outputs[0].shape
        [batch=4]
    """
    scores = nm.log_softmax(nm.cast(logits, "float32"), over=vocab)
    return -nm.sum(nm.cast(probabilities, "float32") * scores, over=vocab)


def binary_cross_entropy(logits: nm.Tensor, targets: nm.Tensor) -> nm.Tensor:
    """Return the binary cross-entropy of each element, in float32.

    Args:
        logits: Scores, of which the sigmoid is the probability of 1.
        targets: 1, 0, or anything between; bool, or a number.

    Example:
        >>> B = nm.Dimension("batch", 2)
        >>> nm.evaluate(binary_cross_entropy, logits=([B], [0.0, 100.0]), targets=([B], [1, 1]))
        array([0.6931472, 0.       ], dtype=float32)
    """
    x, y = nm.cast(logits, "float32"), nm.cast(targets, "float32")
    return nm.softplus(x) * (1.0 - y) + nm.softplus(-x) * y


def symmetric_divergence(logits: nm.Tensor, others: nm.Tensor, vocab: nm.Dimension) -> nm.Tensor:
    """Return the mean of the two KL divergences of each two predictions, in float32.

    As a loss between two passes with their own dropout this is R-drop.

    Args:
        logits, others: Scores of one shape.
        vocab: The vocabulary's dimension.

    Example:
        >>> B, V = nm.dims("batch=4 vocab=10")
        >>> divergence = lambda x, y: symmetric_divergence(x, y, V)
        >>> nm.trace(divergence, x=nm.spec([B, V]), y=nm.spec([B, V])).outputs[0].shape
        [batch=4]
    """
    one, other = (nm.log_softmax(nm.cast(x, "float32"), over=vocab) for x in (logits, others))
    return nm.sum((nm.exp(one) - nm.exp(other)) * (one - other), over=vocab) * 0.5


def weighted_mean(values: nm.Tensor, weights: nm.Tensor) -> nm.Tensor:
    """Return the weighted sum over the sum of the weights, which counts as at least one.

    Args:
        values: The values, of any shape.
        weights: The weight of each; zero for padding.

    Example:
        >>> B = nm.Dimension("batch", 3)
        >>> nm.evaluate(weighted_mean, values=([B], [1.0, 3.0, 9.0]), weights=([B], [1.0, 1.0, 0]))
        array(2., dtype=float32)
    """
    return nm.sum(values * weights) / nm.maximum(nm.sum(weights), 1.0)
