"""Context: what an op's lowering may ask of the lowering around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from namedmesh.dims.dimension import Dimension, Shape


class Context:
    """Plain, unsharded lowering; the sharded lowering overrides what differs on a mesh."""

    compiled = False  # whether XLA-only TensorFlow ops may be used
    precision = "default"

    def size(self, dim: Dimension) -> int:
        """The size of a dimension where this op runs: its own, or one device's piece of it."""
        return dim.size

    def sizes(self, dims: Sequence[Dimension] | Shape) -> list[int]:
        """The sizes of several dimensions."""
        return [self.size(dim) for dim in dims]

    def offset(self, dim: Dimension) -> Any | None:
        """Where this device's piece of a dimension starts; None when it has all of it."""
        return None

    def place(self, value: Any, tensor: Any) -> Any:
        """Says that a value lies as a result of an op does."""
        return value

    def hold(self, value: Any, op: Any, i: int) -> Any:
        """Says inside a loop what was said outside: that a value lies as an operand of the loop does."""
        return value

    def run(self, body: Any, values: Sequence[Any]) -> list[Any]:
        """Lowers a loop body or a branch on these values."""
        from namedmesh.ir.evaluate import run

        return run(body, values, self)


def align(value: Any, shape: Shape, order: Shape) -> Any:
    """Transposes and expands a value so that it broadcasts, by name, against the dimensions of order."""
    present = [dim.name for dim in order if dim.name in shape.names]
    value = arrange(value, shape, present)
    if present == [dim.name for dim in order][len(order) - len(present) :]:
        return value  # trailing dimensions broadcast by themselves
    sizes = iter(value.shape.as_list())
    return tf.reshape(value, [next(sizes) if dim.name in present else 1 for dim in order])


def arrange(value: Any, shape: Shape, names: Sequence[str]) -> Any:
    """Transposes a value so that its dimensions come in the order of names."""
    permutation = [shape.position(name) for name in names]
    return value if permutation == sorted(permutation) else tf.transpose(value, permutation)
