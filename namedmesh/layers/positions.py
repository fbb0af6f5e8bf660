"""Positions: sinusoids, learned rows, rotations, and biases on attention scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import namedmesh as nm
from namedmesh.errors.errors import did_you_mean


def sinusoids(positions: nm.Tensor, model: nm.Dimension, dtype: str = "float32") -> nm.Tensor:
    """Encode positions as sines and cosines of geometrically spaced wavelengths.

    Args:
        positions: Integer positions.
        model: The dimension to encode in: sines in its first half, cosines in the second.
        dtype: The dtype of the result; angles are computed in float32.

    Example:
        >>> S, M = nm.dims("seq=4 model=8")
        >>> nm.trace(lambda: sinusoids(nm.range(S), M)).outputs[0].shape
        [seq=4, model=8]
    """
    half = model.size // 2
    first, step = _count_halves(model)
    angle = nm.cast(positions, "float32") * nm.exp(step * (-math.log(10_000.0) / max(half - 1, 1)))
    return nm.cast(nm.where(first, nm.sin(angle), nm.cos(angle)), dtype)


def _count_halves(dim: nm.Dimension) -> tuple[nm.Tensor, nm.Tensor]:
    """Return which elements are in the first half, and count from 0 in either half, in float32."""
    channel = nm.cast(nm.range(dim), "float32")
    half = float(dim.size // 2)
    first = channel < half
    return first, nm.where(first, channel, channel - half)


def learned_positions(
    positions: nm.Tensor, length: nm.Dimension, model: nm.Dimension, *, name: str = "positions"
) -> nm.Tensor:
    """Look up the rows of a learned table of positions.

    Args:
        positions: Integer positions, below the length's size.
        length: The dimension of the table's rows.
        model: The dimension of a row.
        name: The name of the table.

    Example:
        >>> S, L, M = nm.dims("seq=4 position=16 model=8")
        >>> nm.trace(lambda: learned_positions(nm.range(S), L, M)).outputs[0].shape
        [seq=4, model=8]
    """
    table = nm.param(name, [length, model], nm.normal_init(0.02))
    return nm.gather(table, positions, length)


def rotary(
    x: nm.Tensor,
    positions: nm.Tensor,
    key: nm.Dimension,
    *,
    base: float = 10_000.0,
    frequencies: nm.Tensor | None = None,
    factor: float = 1.0,
    interleaved: bool = False,
) -> nm.Tensor:
    """Rotate pairs of elements by an angle that grows with the position (RoPE).

    Element i of the first half and of the second are a pair, as in Llama.

    Args:
        x: Queries or keys, with the key dimension.
        positions: Integer positions, with dimensions of x.
        key: The dimension of a query or key, of even size.
        base: The longest wavelength over 2 pi.
        frequencies: The angle from one position to the next, for every element of key; by default
            those of base. See `rotary_frequencies`.
        factor: A factor of the result, as some scalings have.
        interleaved: Whether neighbours are a pair instead, as in DeepSeek.

    Example:
        >>> S, N, K = nm.dims("seq=4 heads=2 key=8")
        >>> nm.trace(lambda q: rotary(q, nm.range(S), K), q=nm.spec([S, N, K])).outputs[0].shape
        [seq=4, heads=2, key=8]
    """
    if key.size % 2:
        raise nm.NamedMeshError(f"rotary: {key} has no pairs", str(x), fix="give it an even size")
    half = key.size // 2
    first, step = _count_halves(key)
    wide = nm.cast(x, "float32")
    if interleaved:
        pairs, two = nm.Dimension(f"{key.name}_pair", half), nm.Dimension(f"{key.name}_of_pair", 2)
        other = nm.roll(nm.reshape(wide, key, [pairs, two]), two, 1)
        other = nm.reshape(other, [pairs, two], key)
        place = nm.range(key)
        first, step = nm.equal(place % 2, 0), nm.cast(place // 2, "float32")
    else:
        other = nm.roll(wide, key, half)
    if frequencies is None:
        frequencies = nm.exp(step * (-math.log(base) / half))
    angle = nm.cast(positions, "float32") * frequencies
    other = other * nm.where(first, -factor, factor)
    return nm.cast(
        nm.transpose(wide * (nm.cos(angle) * factor) + other * nm.sin(angle), x.shape), x.dtype
    )


def rotary_frequencies(
    key: nm.Dimension,
    base: float = 10_000.0,
    scaling: Mapping[str, Any] | None = None,
    *,
    interleaved: bool = False,
) -> tuple[np.ndarray, float]:
    """Return the frequencies and the factor of `rotary`, scaled for longer texts than a model saw.

    Args:
        key: The dimension of a query or key.
        base: The longest wavelength over 2 pi.
        scaling: What `config.json` of a model has as `rope_scaling`: its `rope_type` is `default`,
            `linear`, `llama3` or `yarn`, and the others are that type's numbers.
        interleaved: As for `rotary`.

    Example:
        >>> scaling = {"rope_type": "linear", "factor": 4.0}
        >>> rotary_frequencies(nm.Dimension("key", 4), 100.0, scaling)
        (array([0.25 , 0.025, 0.25 , 0.025], dtype=float32), 1.0)
    """
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _SCALINGS:
        raise nm.NamedMeshError(
            f"rotary: a scaling of type {kind!r}", fix=did_you_mean(str(kind), _SCALINGS)
        )
    plain = base ** (-np.arange(0, key.size, 2) / key.size)
    scaled, factor = _SCALINGS[kind](plain, base, scaling)
    whole = np.repeat(scaled, 2) if interleaved else np.concatenate([scaled, scaled])
    return whole.astype(np.float32), factor


def _scale_llama3(
    plain: np.ndarray, base: float, scaling: Mapping[str, Any]
) -> tuple[np.ndarray, float]:
    """Divide low frequencies by the factor, leave high ones, and interpolate between."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    waves = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
    kept = np.clip((waves - low) / (high - low), 0.0, 1.0)
    return (1 - kept) * plain / scaling["factor"] + kept * plain, 1.0


def _scale_yarn(
    plain: np.ndarray, base: float, scaling: Mapping[str, Any]
) -> tuple[np.ndarray, float]:
    """Interpolate between divided and plain frequencies by the number of their rotations."""
    size, longest = 2 * len(plain), scaling["original_max_position_embeddings"]
    factor = scaling.get("factor") or scaling["max_position_embeddings"] / longest

    def channel_of(rotations: float) -> float:
        """Return the pair that rotates so often over the longest text."""
        return size * math.log(longest / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = (channel_of(scaling.get(f"beta_{end}") or n) for end, n in _ROTATIONS.items())
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / max(high - low, 1e-3), 0.0, 1.0)
    attention = scaling.get("attention_factor")
    if attention is None:
        one, all_dims = (scaling.get(name) for name in ("mscale", "mscale_all_dim"))
        attention = yarn_magnitude(factor)
        if one and all_dims:
            attention = yarn_magnitude(factor, one) / yarn_magnitude(factor, all_dims)
    return (1 - ramp) * plain + ramp * plain / factor, float(attention)


_ROTATIONS = {"fast": 32, "slow": 1}
_SCALINGS: dict[str, Callable[..., tuple[np.ndarray, float]]] = {
    "default": lambda plain, base, scaling: (plain, 1.0),
    "linear": lambda plain, base, scaling: (plain / scaling["factor"], 1.0),
    "llama3": _scale_llama3,
    "yarn": _scale_yarn,
}


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """Return by how much YaRN raises queries and keys for texts that are longer by a factor.

    Example:
        >>> yarn_magnitude(1.0)
        1.0
    """
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def alibi(distance: nm.Tensor, heads: nm.Dimension) -> nm.Tensor:
    """Return a bias that falls by 2**(-8 (i + 1) / n) with each position between, for head i of n.

    Args:
        distance: The memory position minus the query's position, int32.
        heads: The dimension of attention heads, which the float32 result has last.

    Example:
        >>> S, T, N = nm.dims("seq=4 memory=4 heads=2")
        >>> nm.trace(lambda: alibi(nm.range(T) - nm.range(S), N)).outputs[0].shape
        [memory=4, seq=4, heads=2]
    """
    slope = nm.exp((nm.range(heads, "float32") + 1.0) * (-8.0 * math.log(2.0) / heads.size))
    return nm.cast(nm.absolute(distance), "float32") * -slope


def relative_bias(
    distance: nm.Tensor,
    heads: nm.Dimension,
    *,
    buckets: int = 32,
    farthest: int = 128,
    both_ways: bool = True,
) -> nm.Tensor:
    """Learn a bias on attention scores for each head and distance, as T5 does.

    Args:
        distance: The memory position minus the query's position, int32.
        heads: The dimension of attention heads, which the float32 result has last.
        buckets: The number of distances that differ.
        farthest: The distance from which on all share the last bucket.
        both_ways: Whether positive distances (later positions) have buckets of their own.

    Example:
        >>> S, T, N = nm.dims("seq=4 memory=4 heads=2")
        >>> nm.trace(lambda: relative_bias(nm.range(T) - nm.range(S), N)).outputs[0].shape
        [memory=4, seq=4, heads=2]
    """
    exact = buckets // 4 if both_ways else buckets // 2
    if not 0 < exact < farthest:
        raise nm.NamedMeshError(
            f"relative_bias: {buckets} buckets for distances up to {farthest}",
            fix="pass at least 4 buckets, or a larger farthest distance",
        )
    B = nm.Dimension("distance_bucket", buckets)
    table = nm.param("relative_bias", [B, heads], nm.normal_init(0.02))
    return nm.gather(table, distance_bucket(distance, buckets, farthest, both_ways), B)


def distance_bucket(distance: nm.Tensor, buckets: int, farthest: int, both_ways: bool) -> nm.Tensor:
    """Number the bucket of a distance: one for each near distance, logarithmic ranges for far ones.

    The arguments are those of `relative_bias`; without `both_ways`, positive distances count as 0.

    Example:
        >>> D = nm.Dimension("distance", 6)
        >>> nm.evaluate(lambda: distance_bucket(nm.range(D) - 5, 4, 8, False)).tolist()
        [3, 3, 2, 2, 1, 0]
    """
    side = nm.zeros([], "int32")
    if both_ways:
        buckets //= 2
        side = nm.cast(distance > 0, "int32") * buckets
        distance = nm.absolute(distance)
    else:
        distance = nm.maximum(-distance, 0)
    exact = buckets // 2
    far = (
        nm.log(nm.cast(nm.maximum(distance, 1), "float32") / float(exact))
        / math.log(farthest / exact)
        * (buckets - exact)
    )
    far = nm.minimum(nm.cast(far, "int32") + exact, buckets - 1)
    return side + nm.where(distance < exact, distance, far)
