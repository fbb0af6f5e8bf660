"""What tells ops apart: those of equal contents compute the same, and lower to the same code."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.op import Op, option_names


def describe_op(op: Op) -> Hashable:
    """Return all that an op's lowering may read of it: its class, options and tensors."""
    tensors = tuple((tensor.shape, tensor.dtype) for tensor in (*op.inputs, *op.outputs))
    return describe_options(op), len(op.inputs), tensors


def describe_options(op: Op) -> Hashable:
    """Return what an op computes of its inputs: its class and options."""
    return type(op), *(describe(getattr(op, name)) for name in option_names(type(op)))


def describe(value: Any) -> Hashable:
    """Return what tells an option apart: its contents, or the object itself if we know no more.

    Numbers that compare equal may differ: 1 and True, 0.0 and -0.0.
    """
    if isinstance(value, (str, Dimension, Shape)) or value is None:
        return value
    if isinstance(value, (bool, int, float, complex)):
        return type(value), repr(value)
    if isinstance(value, (tuple, list)):
        return type(value), *map(describe, value)
    if isinstance(value, dict):
        return dict, *((describe(key), describe(one)) for key, one in value.items())
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return np.ndarray, value.dtype.str, value.shape, value.tobytes()
    return _Same(value)


@dataclasses.dataclass(frozen=True, eq=False)
class _Same:
    """An object that equals itself alone."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
