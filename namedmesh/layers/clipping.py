"""Clipping of gradients by the norm of all of them together."""

from __future__ import annotations

from collections.abc import Mapping

import namedmesh as nm
from namedmesh.layers.explain import explain_mistakes


@explain_mistakes
def global_norm(grads: Mapping[str, nm.Tensor]) -> nm.Tensor:
    """Compute the norm of all gradients together, in float32.

    Each gradient that is split over devices adds one number to what is summed between them.

    Args:
        grads: Gradients by name.

    Returns:
        A scalar: the square root of the sum of the squares of every element.

    Example:
        >>> (M,) = nm.dims("model=2")
        >>> program = nm.trace(lambda g: global_norm({"w": g}), g=nm.spec([M]))
        >>> float(program.evaluate({}, g=[3.0, 4.0])[1])
        5.0
    """
    total = nm.full([], 0.0)
    for name, grad in grads.items():
        squares = nm.square(nm.cast(grad, "float32"))
        if len(grad.shape):
            squares = nm.sum(squares)
            squares.describe(name=f"grad_norm/{name}")
        total = total + squares
    return nm.sqrt(total)


@explain_mistakes
def clip_by_global_norm(
    grads: Mapping[str, nm.Tensor], limit: float
) -> tuple[dict[str, nm.Tensor], nm.Tensor]:
    """Scale all gradients down together so that their norm is at most a limit.

    Args:
        grads: Gradients by name.
        limit: The largest norm, a positive number.

    Returns:
        The gradients by name, each in its own dtype, and the norm before clipping.

    Raises:
        NamedMeshError: If the limit is not positive.

    Example:
        >>> (M,) = nm.dims("model=2")
        >>> clip = lambda g: clip_by_global_norm({"w": g}, 2.5)[0]["w"]
        >>> nm.trace(clip, g=nm.spec([M])).evaluate({}, g=[3.0, 4.0])[1].numpy().tolist()
        [1.5, 2.0]
    """
    if not limit > 0:
        raise nm.NamedMeshError(
            f"clip_by_global_norm: limit={limit} is not positive", fix="pass a positive number"
        )
    norm = global_norm(grads)
    scale = limit / nm.maximum(norm, float(limit))
    clipped = {
        name: nm.cast(nm.cast(grad, "float32") * scale, grad.dtype) for name, grad in grads.items()
    }
    return clipped, norm
