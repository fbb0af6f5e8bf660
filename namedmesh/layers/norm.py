"""Normalization over the model dimension, over groups of channels and over a batch, in float32."""

from __future__ import annotations

from collections.abc import Sequence

import namedmesh as nm
from namedmesh.ir.operands import as_tuple
from namedmesh.layers.mistakes import claim_name
from namedmesh.layers.weights import get_weights


def layer_norm(
    x: nm.Tensor,
    over: nm.Dimension | Sequence[nm.Dimension],
    *,
    name: str | None = None,
    epsilon: float = 1e-6,
) -> nm.Tensor:
    """Normalize x to zero mean and unit variance, then apply a learned scale and bias.

    Args:
        x: The input.
        over: The dimension to normalize over, or several, which the scale has.
        name: The prefix of the parameters `<name>_scale` and `<name>_bias`; `norm` for
            one layer of a scope.
        epsilon: Added to the variance.

    Example:
        >>> B, M = nm.dims("batch=4 model=8")
        >>> list(nm.trace(lambda x: layer_norm(x, M), x=nm.spec([B, M])).parameters)
        ['norm_scale', 'norm_bias']
    """
    wide = nm.cast(x, "float32")
    unit = _standardize(wide, as_tuple(over), epsilon)
    return _scale_and_shift("layer_norm", unit, as_tuple(over), name, x.dtype)


def rms_norm(
    x: nm.Tensor,
    over: nm.Dimension | Sequence[nm.Dimension],
    *,
    name: str | None = None,
    epsilon: float = 1e-6,
    from_one: bool = False,
) -> nm.Tensor:
    """Normalize x to unit mean square, then apply a learned scale.

    Args:
        x, over, name, epsilon: As in `layer_norm`; there is no bias.
        from_one: Whether what is learned is the scale minus one, as in Gemma.

    Example:
        >>> B, M = nm.dims("batch=4 model=8")
        >>> list(nm.trace(lambda x: rms_norm(x, M), x=nm.spec([B, M])).parameters)
        ['norm_scale']
    """
    wide = nm.cast(x, "float32")
    unit = wide * nm.rsqrt(nm.mean(nm.square(wide), over=over) + epsilon)
    name = claim_name("rms_norm", "norm", named=True) if name is None else name
    init = nm.constant_init(0.0 if from_one else 1.0)
    scale = get_weights().make(f"{name}_scale", as_tuple(over), init)
    return nm.cast(unit * (scale + 1.0 if from_one else scale), x.dtype)


def group_norm(
    x: nm.Tensor,
    channels: nm.Dimension,
    groups: int,
    *,
    over: Sequence[nm.Dimension] = (),
    name: str | None = None,
    epsilon: float = 1e-6,
) -> nm.Tensor:
    """Normalize groups of channels to zero mean and unit variance, then scale and shift.

    Args:
        x: The input.
        channels: The dimension that is divided into groups.
        groups: The number of groups: 1 is a layer norm, one for each channel an instance norm.
        over: Further dimensions to normalize over: those of space.
        name: The prefix of the parameters, as in `layer_norm`; both have the channels.
        epsilon: Added to the variance.

    Example:
        >>> B, R, C = nm.dims("batch=2 rows=4 channels=8")
        >>> list(nm.trace(lambda x: group_norm(x, C, 2, over=[R]), x=nm.spec([B, R, C])).parameters)
        ['norm_scale', 'norm_bias']
    """
    if channels.size % groups:
        raise nm.NamedMeshError(
            f"group_norm: {groups} groups do not divide {channels}",
            fix="pass a divisor of the number of channels",
        )
    G = channels.resized(groups)  # of the same name, to be sharded as the channels are
    C = nm.Dimension(f"{channels.name}_in_group", channels.size // groups)
    wide = nm.reshape(nm.cast(x, "float32"), channels, [G, C])
    unit = nm.transpose(
        nm.reshape(_standardize(wide, [C, *over], epsilon), [G, C], channels), x.shape
    )
    return _scale_and_shift("group_norm", unit, [channels], name, x.dtype)


def batch_norm(
    x: nm.Tensor,
    over: Sequence[nm.Dimension],
    *,
    training: bool,
    momentum: float = 0.99,
    name: str | None = None,
    epsilon: float = 1e-5,
) -> nm.Tensor:
    """Normalize by the mean and variance of the whole batch, or by running averages of them.

    Args:
        x: The input.
        over: The dimensions of the batch and of space; the parameters have the others.
        training: Whether to use the batch's own moments and move the averages towards them.
        momentum: The share of the averages that a step keeps.
        name: The prefix of the parameters, as in `layer_norm`, and of the states `<name>_mean` and
            `<name>_variance`.
        epsilon: Added to the variance.

    Example:
        >>> B, C = nm.dims("batch=4 channels=2")
        >>> layer = lambda x: batch_norm(x, [B], training=True)
        >>> list(nm.trace(layer, x=nm.spec([B, C])).variables)
        ['norm_mean', 'norm_variance', 'norm_scale', 'norm_bias']
    """
    name = claim_name("batch_norm", "norm", named=True) if name is None else name
    dims = [dim for dim in x.shape if dim not in over]
    wide = nm.cast(x, "float32")
    average = nm.state(f"{name}_mean", dims, 0.0)
    spread = nm.state(f"{name}_variance", dims, 1.0)
    if training:
        mean = nm.mean(wide, over=over)
        variance = nm.mean(nm.square(wide - mean), over=over)
        for state, moment in ((average, mean), (spread, variance)):
            nm.assign(state, state * momentum + nm.stop_gradient(moment) * (1.0 - momentum))
    else:
        mean, variance = average, spread
    unit = (wide - mean) * nm.rsqrt(variance + epsilon)
    return _scale_and_shift("batch_norm", unit, dims, name, x.dtype)


def _standardize(x: nm.Tensor, over: Sequence[nm.Dimension], epsilon: float) -> nm.Tensor:
    """Normalize to zero mean and unit variance."""
    centred = x - nm.mean(x, over=over)
    return centred * nm.rsqrt(nm.mean(nm.square(centred), over=over) + epsilon)


def _scale_and_shift(
    layer: str, unit: nm.Tensor, dims: Sequence[nm.Dimension], name: str | None, dtype: str
) -> nm.Tensor:
    """Apply a learned scale and bias."""
    name = claim_name(layer, "norm", named=True) if name is None else name
    scale = get_weights().make(f"{name}_scale", dims, nm.constant_init(1.0))
    bias = get_weights().make(f"{name}_bias", dims, nm.constant_init(0.0))
    return nm.cast(unit * scale + bias, dtype)
