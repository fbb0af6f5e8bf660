"""Noise for training, the same under every layout: dropout, and jitter on the router's input."""

from __future__ import annotations

import namedmesh as nm


def dropout(x: nm.Tensor, rate: float, key: nm.Tensor | None) -> nm.Tensor:
    """Set a random share of the elements to zero and scale up the others, equally in every layout.

    Args:
        x: The input.
        rate: The probability that an element is dropped, in [0, 1).
        key: A random key, or None (evaluation), which leaves x as it is.

    Example:
        >>> x = nm.spec(nm.dims("batch=4"))
        >>> nm.trace(lambda x: dropout(x, 0.5, nm.random.key(0)), x).outputs[0].shape
        [batch=4]
    """
    if not 0.0 <= rate < 1.0:
        raise nm.NamedMeshError(
            f"dropout: rate={rate} is not in [0, 1)", str(x), fix="pass a rate in [0, 1)"
        )
    if key is None or rate == 0.0:
        return x
    keep = nm.random.bernoulli(key, x.shape, 1.0 - rate)
    return nm.where(keep, x * (1.0 / (1.0 - rate)), 0.0)


def jitter(x: nm.Tensor, key: nm.Tensor, epsilon: float = 1e-2) -> nm.Tensor:
    """Multiply by uniform noise in [1 - epsilon, 1 + epsilon), for the router's input.

    Args:
        x: The router's input.
        key: A random key.
        epsilon: The largest distance of the noise from one.

    Example:
        >>> x = nm.spec(nm.dims("batch=4"))
        >>> nm.trace(lambda x: jitter(x, nm.random.key(0)), x).outputs[0].shape
        [batch=4]
    """
    return x * nm.random.uniform(key, x.shape, 1.0 - epsilon, 1.0 + epsilon, x.dtype)


def derive_key(key: nm.Tensor | None, number: int) -> nm.Tensor | None:
    """Return a random key for one purpose (a number of its own), or None in evaluation.

    Example:
        >>> nm.trace(lambda: derive_key(nm.random.key(0), 7)).outputs[0].shape
        [key_word=2]
    """
    return None if key is None else nm.random.fold_in(key, number)
