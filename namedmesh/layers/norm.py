"""Normalisation over the model dimension, computed in float32."""

from __future__ import annotations

import namedmesh as nm
from namedmesh.layers.explain import explain_mistakes
from namedmesh.layers.naming import claim_name


@explain_mistakes
def layer_norm(
    x: nm.Tensor, over: nm.Dimension, *, name: str | None = None, epsilon: float = 1e-6
) -> nm.Tensor:
    """Normalise to zero mean and unit variance, then apply a learned scale and bias.

    Args:
        x: The input.
        over: The dimension to normalise over.
        name: The prefix of the parameters `<name>_scale` and `<name>_bias`. By default `norm`,
            which one layer of a scope may have.
        epsilon: Added to the variance.

    Returns:
        A tensor of the shape and dtype of x.

    Example:
        >>> B, M = nm.dims("batch=4 model=8")
        >>> list(nm.trace(lambda x: layer_norm(x, M), x=nm.spec([B, M])).parameters)
        ['norm_scale', 'norm_bias']
    """
    wide = nm.cast(x, "float32")
    centred = wide - nm.mean(wide, over=over)
    unit = centred * nm.rsqrt(nm.mean(nm.square(centred), over=over) + epsilon)
    name = claim_name("layer_norm", "norm", named=True) if name is None else name
    scale = nm.param(f"{name}_scale", [over], nm.constant_init(1.0))
    bias = nm.param(f"{name}_bias", [over], nm.constant_init(0.0))
    return nm.cast(unit * scale + bias, x.dtype)


@explain_mistakes
def rms_norm(
    x: nm.Tensor, over: nm.Dimension, *, name: str | None = None, epsilon: float = 1e-6
) -> nm.Tensor:
    """Normalise to unit mean square, then apply a learned scale.

    Args:
        x: The input.
        over: The dimension to normalise over.
        name: The prefix of the parameter `<name>_scale`. By default `norm`, which one layer of a
            scope may have.
        epsilon: Added to the mean square.

    Returns:
        A tensor of the shape and dtype of x.

    Example:
        >>> B, M = nm.dims("batch=4 model=8")
        >>> list(nm.trace(lambda x: rms_norm(x, M), x=nm.spec([B, M])).parameters)
        ['norm_scale']
    """
    wide = nm.cast(x, "float32")
    unit = wide * nm.rsqrt(nm.mean(nm.square(wide), over=over) + epsilon)
    name = claim_name("rms_norm", "norm", named=True) if name is None else name
    return nm.cast(unit * nm.param(f"{name}_scale", [over], nm.constant_init(1.0)), x.dtype)
