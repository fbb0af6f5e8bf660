"""Initializers: how variables start."""

from __future__ import annotations

import math
from collections.abc import Callable

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.operands import check_dimension
from namedmesh.ir.tensor import Tensor
from namedmesh.ops import random
from namedmesh.ops.constants import full

Initializer = Callable[[Tensor, Shape, str], Tensor]


def constant_init(value: float) -> Initializer:
    """Every element the same number."""
    return lambda key, shape, dtype: full(shape, value, dtype)


def normal_init(stddev: float) -> Initializer:
    """Normally distributed around zero."""
    return lambda key, shape, dtype: random.normal(key, shape, stddev=stddev, dtype=dtype)


def fan_in_init(*fan_in: Dimension, scale: float = 1.0) -> Initializer:
    """Normally distributed with variance scale / (size of the dimensions that are summed over)."""
    return normal_init(
        math.sqrt(scale / math.prod(check_dimension("fan_in_init", dim).size for dim in fan_in))
    )
