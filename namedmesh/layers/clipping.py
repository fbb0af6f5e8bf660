"""Clipping of gradients by the norm of all of them together."""

from __future__ import annotations

from collections.abc import Mapping

import namedmesh as nm


def global_norm(grads: Mapping[str, nm.Tensor]) -> nm.Tensor:
    """The root of the sum of squares of every element, in float32: one number summed over devices for each split gradient."""
    total = nm.full([], 0.0)
    for name, grad in grads.items():
        squares = nm.square(nm.cast(grad, "float32"))
        if len(grad.shape):
            squares = nm.sum(squares)
            squares.describe(name=f"grad_norm/{name}")
        total = total + squares
    return nm.sqrt(total)


def clip_by_global_norm(
    grads: Mapping[str, nm.Tensor], limit: float
) -> tuple[dict[str, nm.Tensor], nm.Tensor]:
    """Gradients scaled down together so that their norm is at most limit, each in its dtype, and the norm before."""
    if not limit > 0:
        raise nm.NamedMeshError(
            f"clip_by_global_norm: limit={limit}", fix="the limit is a positive number"
        )
    norm = global_norm(grads)
    scale = limit / nm.maximum(norm, float(limit))
    return {
        name: nm.cast(nm.cast(grad, "float32") * scale, grad.dtype) for name, grad in grads.items()
    }, norm
