"""The losses of both models in jax alone, on weights by name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

Weights = dict[str, Any]


def convolve(x: Any, w: Any, stride: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision="highest",
    )  # fmt: skip


def unet_loss(weights: Weights, levels: int, groups: int, image: Any, truth: Any, weight: Any):
    def block(x: Any, scope: str) -> Any:
        for name in ("hidden", "features"):
            x = convolve(x, weights[f"{scope}/{name}/w"])
            batch, rows, columns, channels = x.shape
            cut = x.reshape(batch, rows, columns, groups, channels // groups)
            centred = cut - cut.mean((1, 2, 4), keepdims=True)
            unit = centred / jnp.sqrt((centred**2).mean((1, 2, 4), keepdims=True) + 1e-6)
            scale, bias = (weights[f"{scope}/{name}/norm_{part}"] for part in ("scale", "bias"))
            x = jnp.maximum(unit.reshape(x.shape) * scale + bias, 0)
        return x

    x, skips = image, []
    for level in range(levels):
        x = block(x, f"down_{level}")
        if level + 1 < levels:
            skips.append(x)
            x = jax.lax.reduce_window(
                x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"
            )  # fmt: skip
    for level in reversed(range(levels - 1)):
        skip = skips[level]
        x = jax.image.resize(x, (*skip.shape[:3], x.shape[3]), "linear")
        x = block(jnp.concatenate([skip, x], 3), f"up_{level}")
    scores = x @ weights["score/w"] + weights["score/w_bias"]
    each = jnp.logaddexp(0, scores) - scores * truth
    return (each * weight).sum() / weight.sum()


def resnet_loss(weights: Weights, image: Any, label: Any):
    def layer(x: Any, scope: str, stride: int = 1) -> Any:
        y = convolve(x, weights[f"{scope}/w"], stride)
        mean, variance = y.mean((0, 1, 2)), y.var((0, 1, 2))
        unit = (y - mean) / jnp.sqrt(variance + 1e-5)
        return unit * weights[f"{scope}/norm_scale"] + weights[f"{scope}/norm_bias"]

    x = jnp.maximum(layer(image, "stem", 2), 0)
    for scope, stride in (("first", 1), ("second", 2)):
        y = layer(jnp.maximum(layer(x, f"{scope}/narrow", stride), 0), f"{scope}/wide")
        x = jnp.maximum((layer(x, f"{scope}/skip", 2) if stride > 1 else x) + y, 0)
    scores = x.mean((1, 2)) @ weights["head/w"] + weights["head/w_bias"]
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), label[:, None], 1).mean()
