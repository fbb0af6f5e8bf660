"""Normalisation over the model dimension, computed in float32."""

from __future__ import annotations

import namedmesh as nm
from namedmesh.dims.dimension import Dimension
from namedmesh.ir.tensor import Tensor


def layer_norm(x: Tensor, over: Dimension, *, name: str = "norm", epsilon: float = 1e-6) -> Tensor:
    """Zero mean and unit variance over a dimension, then a learned scale and bias."""
    wide = nm.cast(x, "float32")
    centred = wide - nm.mean(wide, over=over)
    unit = centred * nm.rsqrt(nm.mean(nm.square(centred), over=over) + epsilon)
    scale = nm.param(f"{name}_scale", [over], nm.constant_init(1.0))
    bias = nm.param(f"{name}_bias", [over], nm.constant_init(0.0))
    return nm.cast(unit * scale + bias, x.dtype)


def rms_norm(x: Tensor, over: Dimension, *, name: str = "norm", epsilon: float = 1e-6) -> Tensor:
    """Unit mean square over a dimension, then a learned scale."""
    wide = nm.cast(x, "float32")
    unit = wide * nm.rsqrt(nm.mean(nm.square(wide), over=over) + epsilon)
    return nm.cast(unit * nm.param(f"{name}_scale", [over], nm.constant_init(1.0)), x.dtype)
