"""Initializers: how variables start."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.literal import check_number
from namedmesh.ir.operands import as_tuple, check_dimension, check_has_dims
from namedmesh.ir.tensor import Tensor
from namedmesh.ops import random
from namedmesh.ops.broadcast import sum
from namedmesh.ops.constants import full
from namedmesh.ops.einsum import einsum
from namedmesh.ops.elementwise import cast
from namedmesh.ops.mathematics import rsqrt, square
from namedmesh.ops.scan import scan
from namedmesh.ops.shape import name_apart, rename

Dims = Dimension | Sequence[Dimension]
Initializer = Callable[[Tensor, Shape, str], Tensor]
"""Makes a variable's first value from a random key, its shape and its dtype.

Example:
    >>> M = nm.Dimension("model", 3)
    >>> ramp = lambda key, shape, dtype: nm.broadcast(nm.range(M, dtype), shape)
    >>> nm.evaluate(lambda: nm.param("w", [M], init=ramp))
    array([0., 1., 2.], dtype=float32)
"""


def constant_init(value: float) -> Initializer:
    """Return an initializer that fills a variable with one number.

    Args:
        value: The number.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda: nm.param("gain", [M], init=nm.constant_init(1.0)))
        array([1., 1.], dtype=float32)
    """
    return lambda key, shape, dtype: full(shape, value, dtype)


def normal_init(stddev: float) -> Initializer:
    """Return an initializer of normally distributed numbers around zero.

    Args:
        stddev: Their standard deviation.

    Example:
        >>> N = nm.Dimension("sample", 1000)
        >>> w = nm.evaluate(lambda: nm.param("w", [N], init=nm.normal_init(0.5)))
        >>> bool(0.4 < w.std() < 0.6)
        True
    """
    return lambda key, shape, dtype: random.normal(key, shape, stddev=stddev, dtype=dtype)


def uniform_init(limit: float) -> Initializer:
    """Return an initializer of numbers evenly spread from -`limit` to `limit`.

    Args:
        limit: The bound, greater than 0.

    Example:
        >>> N = nm.Dimension("sample", 1000)
        >>> w = nm.evaluate(lambda: nm.param("w", [N], init=nm.uniform_init(0.5)))
        >>> bool(-0.5 <= w.min() < -0.49 and 0.49 < w.max() < 0.5)
        True
    """
    bound = check_number("uniform_init: limit", limit, "float32")
    if not bound > 0:
        raise NamedMeshError(f"uniform_init: limit={bound} is not above 0", fix="give a bound")
    return lambda key, shape, dtype: random.uniform(key, shape, -bound, bound, dtype)


def truncated_normal_init(stddev: float) -> Initializer:
    """Return an initializer of normal numbers, cut off at 2.27 standard deviations.

    Args:
        stddev: Their standard deviation.

    Example:
        >>> N = nm.Dimension("sample", 1000)
        >>> w = nm.evaluate(lambda: nm.param("w", [N], init=nm.truncated_normal_init(1.0)))
        >>> bool(0.9 < w.std() < 1.1 and abs(w).max() < 2.28)
        True
    """
    number = check_number("truncated_normal_init: stddev", stddev, "float32")
    wide = number / 0.87962566103423978  # cut at two of its own, a normal distribution has less
    return lambda key, shape, dtype: random.truncated_normal(key, shape, stddev=wide, dtype=dtype)


def glorot_init(fan_in: Dims, fan_out: Dims, uniform: bool = True) -> Initializer:
    """Return Glorot's initializer, of variance 2 / (fan_in + fan_out).

    Args:
        fan_in: One dimension or several that the product with the weight sums over.
        fan_out: The dimensions that the product makes.
        uniform: Draw evenly spread numbers in place of normally distributed ones.

    Example:
        >>> M, H = nm.dims("model=100 hidden=60")
        >>> w = nm.evaluate(lambda: nm.param("w", [M, H], init=nm.glorot_init(M, H)))
        >>> bool(0.105 < w.std() < 0.118)
        True
    """
    variance = 2.0 / (_count("glorot_init", fan_in) + _count("glorot_init", fan_out))
    return uniform_init(math.sqrt(3.0 * variance)) if uniform else normal_init(math.sqrt(variance))


def he_init(*fan_in: Dimension) -> Initializer:
    """Return He's initializer for weights before a ReLU: `nm.fan_in_init` with a scale of 2.

    Args:
        *fan_in: The dimensions that the product with the weight sums over.

    Example:
        >>> M, H = nm.dims("model=100 hidden=50")
        >>> w = nm.evaluate(lambda: nm.param("w", [M, H], init=nm.he_init(M)))
        >>> bool(0.13 < w.std() < 0.15)
        True
    """
    return fan_in_init(*fan_in, scale=2.0)


def orthogonal_init(rows: Dims, columns: Dims, scale: float = 1.0) -> Initializer:
    """Return an initializer of matrices whose rows or columns are orthogonal.

    Found by Newton and Schulz's iteration from normal numbers; further dimensions, as of stacked
    layers, have a matrix for each element.

    Args:
        rows: One dimension or several: one side of the matrix.
        columns: Those of the other side.
        scale: The length of the vectors.

    Example:
        >>> import numpy as np
        >>> M, H = nm.dims("model=8 hidden=4")
        >>> w = nm.evaluate(lambda: nm.param("w", [M, H], init=nm.orthogonal_init(M, H)))
        >>> bool(np.allclose(w.T @ w, np.eye(4), atol=1e-5))
        True
    """
    what = "orthogonal_init"
    sides = [[check_dimension(what, dim) for dim in as_tuple(side)] for side in (rows, columns)]
    factor = check_number(f"{what}: scale", scale, "float32")
    short = min(sides, key=lambda side: Shape(side).elements)

    def initialize(key: Tensor, shape: Shape, dtype: str) -> Tensor:
        drawn = random.normal(key, shape)
        check_has_dims(what, drawn, *sides[0], *sides[1])
        batch = [dim for dim in shape if dim not in (*sides[0], *sides[1])]
        twins = [name_apart(dim, "twin", drawn) for dim in short]

        def improve(matrix: Tensor, _: None) -> tuple[Tensor, None]:
            twin = rename(matrix, dict(zip(short, twins, strict=True)))
            gram = einsum([matrix, twin], [*batch, *short, *twins])
            return 1.5 * matrix - 0.5 * einsum([gram, twin], shape), None

        length = sum(square(drawn), [*sides[0], *sides[1]])
        matrix, _ = scan(improve, drawn * rsqrt(length), over=Dimension("iteration", 48))
        return cast(matrix * factor, dtype)

    return initialize


def _count(what: str, dims: Dims) -> int:
    """Multiply the sizes of one dimension or several."""
    return math.prod(check_dimension(what, dim).size for dim in as_tuple(dims))


def fan_in_init(*fan_in: Dimension, scale: float = 1.0) -> Initializer:
    """Return an initializer of normal numbers of variance `scale` / (size of `fan_in`).

    Args:
        *fan_in: The dimensions that the product with the weight sums over.
        scale: A factor of the variance.

    Example:
        >>> M, H = nm.dims("model=100 hidden=50")
        >>> w = nm.evaluate(lambda: nm.param("w", [M, H], init=nm.fan_in_init(M)))
        >>> bool(0.09 < w.std() < 0.11)
        True
    """
    factor = check_number("fan_in_init: scale", scale, "float32")
    if not 0.0 <= factor < math.inf:
        raise NamedMeshError(
            f"fan_in_init: scale={factor} is not a variance", fix="give a number from 0.0"
        )
    return normal_init(math.sqrt(factor / _count("fan_in_init", fan_in)))
