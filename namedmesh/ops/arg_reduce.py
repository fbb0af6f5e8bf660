"""Where the largest and smallest elements along a dimension are."""

from __future__ import annotations

from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.context import Context
from namedmesh.ir.op import Op
from namedmesh.ir.operands import check_dtype_kind, check_has_dims
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.reduce import order_by_keys


class ArgReduce(Op):
    """The index of the largest or smallest element along a dimension, the first at ties."""

    function: str
    over: Dimension

    @property
    def kind(self) -> str:
        return self.function

    @property
    def closed(self) -> bool:
        return True

    def results(self) -> list[tuple[Shape, str]]:
        return [(self.inputs[0].shape.without(self.over.name), "int32")]

    def lower(self, context: Context, x: Any) -> Any:
        tf = context.tf
        compute = tf.argmax if self.function == "argmax" else tf.argmin
        return compute(x, self.inputs[0].shape.position(self.over.name), output_type=tf.int32)

    def vjp(self, dy: Tensor) -> list[Tensor | None]:
        return [None]

    def placement(self) -> Placement:
        return Placement(whole=[self.over.name])


def argmax(x: Tensor, over: Dimension) -> Tensor:
    """Finds the index of the largest element along a dimension, the first of those that tie.

    Where there is a nan, the first one is found. The dimension must be whole: where it is split, it
    is gathered first. The result carries no gradient.

    Args:
        x: A tensor of numbers.
        over: The dimension.

    Returns:
        An int32 tensor without the dimension.

    Raises:
        NamedMeshError: `x` does not have the dimension, or is bool.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.argmax(x, over=M), x=([B, M], [[1, 3, 2], [4, 4, 0]]))
        array([1, 0], dtype=int32)
    """
    check_has_dims("argmax", x, over)
    check_dtype_kind("argmax", "number", x)
    return ArgReduce((order_by_keys(x, nan_first=False),), "argmax", over).output


def argmin(x: Tensor, over: Dimension) -> Tensor:
    """Finds the index of the smallest element along a dimension, the first of those that tie.

    Where there is a nan, the first one is found. The dimension must be whole: where it is split, it
    is gathered first. The result carries no gradient.

    Args:
        x: A tensor of numbers.
        over: The dimension.

    Returns:
        An int32 tensor without the dimension.

    Raises:
        NamedMeshError: `x` does not have the dimension, or is bool.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=2 model=3")
        >>> nm.evaluate(lambda x: nm.argmin(x, over=M), x=([B, M], [[1, 3, 2], [4, 0, 0]]))
        array([0, 1], dtype=int32)
    """
    check_has_dims("argmin", x, over)
    check_dtype_kind("argmin", "number", x)
    return ArgReduce((order_by_keys(x, nan_first=True),), "argmin", over).output
