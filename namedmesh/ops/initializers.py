"""Initializers: how variables start."""

from __future__ import annotations

import math
from collections.abc import Callable

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.literal import check_number
from namedmesh.ir.operands import check_dimension
from namedmesh.ir.tensor import Tensor
from namedmesh.ops import random
from namedmesh.ops.constants import full

Initializer = Callable[[Tensor, Shape, str], Tensor]
"""Makes a variable's first value from a random key, its shape and its dtype.

Any such function will do:

Example:
    >>> import namedmesh as nm
    >>> M = nm.Dimension("model", 3)
    >>> ramp = lambda key, shape, dtype: nm.broadcast(nm.range(M, dtype), shape)
    >>> nm.evaluate(lambda: nm.param("w", [M], init=ramp))
    array([0., 1., 2.], dtype=float32)
"""


def constant_init(value: float) -> Initializer:
    """Makes an initializer that fills a variable with one number.

    Args:
        value: The number.

    Returns:
        An initializer: a function of a random key, a shape and a dtype.

    Example:
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda: nm.param("gain", [M], init=nm.constant_init(1.0)))
        array([1., 1.], dtype=float32)
    """
    return lambda key, shape, dtype: full(shape, value, dtype)


def normal_init(stddev: float) -> Initializer:
    """Makes an initializer that draws normally distributed numbers around zero.

    Args:
        stddev: Their standard deviation.

    Returns:
        An initializer: a function of a random key, a shape and a dtype.

    Example:
        >>> import namedmesh as nm
        >>> N = nm.Dimension("sample", 1000)
        >>> w = nm.evaluate(lambda: nm.param("w", [N], init=nm.normal_init(0.5)))
        >>> bool(0.4 < w.std() < 0.6)
        True
    """
    return lambda key, shape, dtype: random.normal(key, shape, stddev=stddev, dtype=dtype)


def fan_in_init(*fan_in: Dimension, scale: float = 1.0) -> Initializer:
    """Makes an initializer that keeps the variance of what a weight is multiplied with.

    It draws normally distributed numbers of variance `scale` / (product of the sizes of `fan_in`).

    Args:
        *fan_in: The dimensions that the product with the weight sums over.
        scale: A factor of the variance.

    Returns:
        An initializer: a function of a random key, a shape and a dtype.

    Raises:
        NamedMeshError: An argument is not a Dimension.

    Example:
        >>> import namedmesh as nm
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
    return normal_init(
        math.sqrt(factor / math.prod(check_dimension("fan_in_init", dim).size for dim in fan_in))
    )
