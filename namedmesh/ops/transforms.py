"""Functions of functions: a value with its gradient, and derivatives along a direction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.differentiate import grad, zeros_like
from namedmesh.ir.format import format_value
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.operands import check_callable
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.matrices import eye
from namedmesh.ops.shape import name_apart, reshape
from namedmesh.ops.vmap import vmap
from namedmesh.signature.nest import flatten, unflatten


def value_and_grad(
    function: Callable[..., Any], wrt: int | Sequence[int] | None = None, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that returns what a function returns, and its gradients.

    Args:
        function: Returns a floating point scalar.
        wrt: The number of the argument to differentiate with respect to, or several; by default
            `nm.parameters()`, as a dict by name.
        has_aux: Whether the function returns (scalar, anything else).

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> square = nm.value_and_grad(lambda x: nm.sum(x * x), wrt=0)
        >>> nm.evaluate(lambda x: square(x), x=([M], [1.0, 3.0]))
        (array(10., dtype=float32), array([2., 6.], dtype=float32))
    """
    check_callable("value_and_grad", function)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> tuple[Any, Any]:
        targets = _choose("value_and_grad", arguments, wrt)
        value = function(*arguments, **named)
        if has_aux and not (isinstance(value, tuple) and len(value) == 2):
            raise NamedMeshError(
                f"value_and_grad: the function returned {format_value(value)}",
                fix="return (scalar, anything else), or leave has_aux out",
            )
        loss: Any = value[0] if has_aux else value
        return value, grad(loss, targets)

    return call


def _choose(what: str, arguments: Sequence[Any], wrt: int | Sequence[int] | None) -> Any:
    """Return the arguments to differentiate with respect to, or None for every parameter."""
    if wrt is None:
        return None
    numbers = [wrt] if isinstance(wrt, int) else list(wrt)
    for number in numbers:
        if not isinstance(number, int) or not -len(arguments) <= number < len(arguments):
            raise NamedMeshError(
                f"{what}: wrt={format_value(number)} is none of {len(arguments)} arguments",
                fix="give the arguments by position, and wrt as their numbers from 0",
            )
    return arguments[wrt] if isinstance(wrt, int) else tuple(arguments[i] for i in numbers)


def jvp(function: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Return a function's results, and how they change along a direction.

    Args:
        function: Takes tensors and returns some, nested as you like.
        primals: Its arguments: a tuple or list, one entry for each.
        tangents: The direction: floating point tensors, nested as the arguments are.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> def change(x, v):
        ...     return nm.jvp(lambda x: x * x, (x,), (v,))[1]
        >>> nm.evaluate(change, x=([M], [1.0, 3.0]), v=([M], [1.0, 10.0]))
        array([ 2., 60.], dtype=float32)
    """
    check_callable("jvp", function)
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise NamedMeshError(
            "jvp: arguments and tangents are not tuples", fix="write nm.jvp(f, (x,), (v,))"
        )
    inputs = [as_tensor("jvp", leaf) for leaf in flatten(list(primals))]
    direction = [as_tensor("jvp", leaf) for leaf in flatten(list(tangents))]
    _check_direction(inputs, direction)
    # By the derivative of the derivative, which is linear in the cotangent.
    # Tensors of its own: what the function reads besides its arguments does not change.
    moved = [x + zeros_like(x) for x in inputs]
    structure = function(*unflatten(list(primals), iter(moved)))
    results = [as_tensor("jvp", leaf) for leaf in flatten(structure)]
    floating = [result for result in results if result.floating]
    cotangents = [zeros_like(result) for result in floating]
    back = grad(floating, moved, cotangent=cotangents)
    changes = iter(grad(back, cotangents, cotangent=direction) if floating else ())
    tangents = (next(changes) if one.floating else zeros_like(one) for one in results)
    return structure, unflatten(structure, tangents)


def hvp(function: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """Return a function's second derivative along a direction: Hessian times vector.

    Args:
        function: Takes tensors and returns a floating point scalar.
        primals: Its arguments: a tuple or list, one entry for each.
        tangents: The direction: floating point tensors, nested as the arguments are.

    Returns:
        How the gradient changes along the direction, nested as the arguments are.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> def curvature(x, v):
        ...     return nm.hvp(lambda x: nm.sum(x * x * x), (x,), (v,))[0]
        >>> nm.evaluate(curvature, x=([M], [1.0, 3.0]), v=([M], [1.0, 10.0]))
        array([  6., 180.], dtype=float32)
    """
    check_callable("hvp", function)
    gradient = lambda *arguments: grad(function(*arguments), list(arguments))
    return jvp(gradient, primals, tangents)[1]


def jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the derivative of every element of a result with respect to every element of `x`.

    Args:
        function: Takes a floating point tensor and returns one.
        x: Its argument.

    Returns:
        A tensor with the dimensions of the result, then those of `x`; a name that both have is the
        result's with `_out` behind it.

    Example:
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: nm.jacobian(lambda x: x * x, x), x=([M], [1.0, 3.0]))
        array([[2., 0.],
               [0., 6.]], dtype=float32)
    """
    check_callable("jacobian", function)
    moved = x + zeros_like(x)
    y = as_tensor("jacobian", function(moved))
    if not len(y.shape):
        return grad(y, moved)
    both = [dim for dim in y.shape if dim.name in x.shape.names]
    count = y.shape.elements
    element = name_apart(Dimension("element", count), "numbered", x, y)
    place = name_apart(Dimension("place", count), "numbered", x, y)
    unit = eye(element, place, y.dtype)
    one = vmap(lambda unit: grad(y, moved, cotangent=reshape(unit, place, y.shape)), over=element)
    dims = [name_apart(dim, "out", x) if dim in both else dim for dim in y.shape]
    return reshape(one(unit), element, dims)


def _check_direction(inputs: Sequence[Tensor], direction: Sequence[Tensor]) -> None:
    """Raise unless there is a tangent like every argument."""
    unlike = [
        f"{x} and {v.dtype}{v.shape}"
        for x, v in zip(inputs, direction, strict=False)
        if x.shape != v.shape or x.dtype != v.dtype or not x.floating
    ]
    if not inputs or len(inputs) != len(direction) or unlike:
        raise NamedMeshError(
            f"jvp: {len(direction)} tangents do not fit {len(inputs)} arguments",
            *unlike,
            fix="give a floating point tensor of the same dims and dtype for each",
        )
