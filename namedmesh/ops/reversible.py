"""Residual layers whose backward pass computes what they were given from what they made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.ir.differentiate import body_vjp, repeat_ops, zeros_like
from namedmesh.ir.op import Body
from namedmesh.ir.operands import check_callable, check_dimension, check_same_sizes
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current, trace_body
from namedmesh.ops.control import match_structure
from namedmesh.ops.custom import custom_vjp
from namedmesh.ops.scan import scan
from namedmesh.signature.nest import flatten, unflatten


def reversible(
    functions: Sequence[Callable[[Tensor], Tensor]],
    x: Tensor,
    y: Tensor,
    *,
    over: Dimension,
) -> tuple[Tensor, Tensor]:
    """Repeat reversible residual layers, of which the backward pass stores nothing.

    For each function `x, y = y, x + f(y)`, again and again along a dimension. The backward pass
    goes from the last values back, and computes each function once more; with the rounding of
    `(x + f(y)) - f(y)` gradients differ a little from those of stored activations.

    Args:
        functions: Such as attention and a dense layer: each returns a tensor like its argument.
        x: The first half of the activations.
        y: The second half, of the same dimensions and dtype.
        over: The dimension of the layers, along which their variables are stacked.

    Returns:
        Both halves after the last layer.

    Example:
        >>> L, M = nm.dims("layer=3 model=2")
        >>> def layers(x):
        ...     return nm.reversible([lambda y: y * 2.0], x, x, over=L)
        >>> nm.evaluate(layers, x=([M], [1.0, 2.0]))
        (array([ 7., 14.], dtype=float32), array([17., 34.], dtype=float32))
    """
    check_callable("reversible", *functions)
    check_dimension("reversible", over)
    check_same_sizes("reversible", x, y)
    (x,) = match_structure("reversible: the first half", x, y, "the second half")
    bodies: list[Body] = []
    for function in functions:
        alike = lambda y, function=function: match_structure(
            "reversible: a function's result", function(y), y, "its argument"
        )
        bodies.append(trace_body(alike, [(y.shape, y.dtype, y.label)], over)[0])
    weights = [[list(body.stacked), list(body.captured)] for body in bodies]

    def forward(x: Tensor, y: Tensor, *tensors: Tensor) -> tuple[Any, Any]:
        rows, shared = zip(*unflatten(weights, iter(tensors)), strict=True)

        def step(carry: Any, rows: Any) -> tuple[Any, None]:
            first, second = carry
            for body, row, captured in zip(bodies, rows, shared, strict=True):
                _, known = repeat_ops(body, [second, *row, *captured])
                first, second = second, first + known[body.outputs[0]]
            return (first, second), None

        results, _ = scan(step, (x, y), list(rows), over=over)
        return results, (*results, *tensors)

    def backward(saved: Any, cotangents: Any) -> list[Tensor | None]:
        rows, shared = zip(*unflatten(weights, iter(saved[2:])), strict=True)

        def step(carry: Any, rows: Any) -> tuple[Any, Any]:
            (first, second), (dx, dy), sums = carry
            gradients: list[Any] = []
            totals: list[Any] = []
            layers = [*zip(bodies, rows, shared, sums, strict=True)]
            for body, row, captured, total in reversed(layers):
                values = [first, *row, *map(current("reversible").bring, captured)]
                for value, argument in zip(values, body.inputs, strict=False):
                    value.describe(origin=argument)
                wanted = [i for i, value in enumerate(values) if value.floating]
                result: dict[Tensor, Tensor] = {}
                watch = lambda known, _, result=result: result.update(known)
                found = iter(body_vjp(body, values, [dy], wanted, watch=watch))
                slopes = [next(found) if value.floating else None for value in values]
                first, second = second - result[body.outputs[0]], first
                dx, dy = dy, dx + slopes[0]
                gradients.insert(0, slopes[1 : 1 + len(row)])
                pairs = zip(total, slopes[1 + len(row) :], strict=True)
                totals.insert(0, [None if dw is None else one + dw for one, dw in pairs])
            return ((first, second), (dx, dy), totals), gradients

        zeros = [[zeros_like(x) if x.floating else None for x in some] for some in shared]
        start = (saved[:2], cotangents, zeros)
        last, made = scan(step, start, list(rows), over=over, reverse=True)
        pairs = zip(made, last[2], strict=True)
        return [*last[1], *(slope for pair in pairs for some in pair for slope in some)]

    return custom_vjp(forward, backward)(x, y, *flatten(weights))
