"""Noise for training, the same under every layout: dropout, and jitter on the router's input."""

from __future__ import annotations

import namedmesh as nm


def dropout(x: nm.Tensor, rate: float, key: nm.Tensor | None) -> nm.Tensor:
    """Set a random share of the elements to zero and scale up the others.

    The mask depends on the key and on each element's position alone, so every layout draws the
    same one.

    Args:
        x: The input.
        rate: The probability that an element is dropped, in [0, 1).
        key: A random key, or None (evaluation), which leaves x as it is.

    Returns:
        A tensor of the shape and dtype of x with the same expected value.

    Example:
        >>> (B,) = nm.dims("batch=4")
        >>> program = nm.trace(lambda x: dropout(x, 0.5, nm.random.key(0)), x=nm.spec([B]))
        >>> program.outputs[0].shape
        [batch=4]
    """
    if not 0.0 <= rate < 1.0:
        raise nm.NamedMeshError(
            f"dropout: rate={rate} is not in [0, 1)", str(x), fix="pass a rate in [0, 1)"
        )
    if key is None or rate == 0.0:
        return x
    kept = nm.random.bernoulli(key, x.shape, 1.0 - rate)
    return nm.where(kept, x * (1.0 / (1.0 - rate)), 0.0)


def jitter(x: nm.Tensor, key: nm.Tensor, epsilon: float = 1e-2) -> nm.Tensor:
    """Multiply by uniform noise in [1 - epsilon, 1 + epsilon), for the router's input.

    Args:
        x: The router's input.
        key: A random key.
        epsilon: How far from one the noise may be.

    Returns:
        A tensor of the shape and dtype of x.

    Example:
        >>> (B,) = nm.dims("batch=4")
        >>> nm.trace(lambda x: jitter(x, nm.random.key(0)), x=nm.spec([B])).outputs[0].shape
        [batch=4]
    """
    return x * nm.random.uniform(key, x.shape, 1.0 - epsilon, 1.0 + epsilon, x.dtype)


def derive_key(key: nm.Tensor | None, number: int) -> nm.Tensor | None:
    """Derive a random key for one purpose.

    Args:
        key: A random key, or None for evaluation.
        number: A number of the purpose's own.

    Returns:
        Another key, or None when there is none to derive it from.

    Example:
        >>> nm.trace(lambda: derive_key(nm.random.key(0), 7)).outputs[0].shape
        [key_word=2]
        >>> derive_key(None, 7) is None
        True
    """
    return None if key is None else nm.random.fold_in(key, number)
