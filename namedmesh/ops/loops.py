"""Loops that end by a condition, whose length may be bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.operands import check_callable
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import trace_body
from namedmesh.ops.control import While, check_condition, cond, match_structure
from namedmesh.ops.scan import scan
from namedmesh.ops.shape import name_apart
from namedmesh.signature.nest import flatten, unflatten


def while_loop(
    test: Callable[..., Tensor], body: Callable[..., Any], *start: Any, most: int | None = None
) -> Any:
    """Repeat a function while a condition holds.

    The number of iterations is known only when the step runs, so the loop has no derivative, unless
    `most` is given.

    Args:
        test: Called with the carried values; return a bool scalar.
        body: Called with the carried values; return the next ones, one value or a tuple, nested as
            the first ones and of the same dimensions and dtypes.
        *start: The first values: tensors, numbers, or tuples, lists and dicts of them.
        most: A bound of the number of iterations: the loop ends there, and has a derivative. The
            values of so many iterations are stored for it; what is left over is not computed.

    Returns:
        The values of the last iteration: a single value itself, several as a tuple.

    Example:
        >>> def double_to_100(x):
        ...     return nm.while_loop(lambda x: x < 100, lambda x: x * 2, x)
        >>> nm.evaluate(double_to_100, x=([], 3))
        array(192, dtype=int32)
    """
    check_callable("while_loop", test, body)
    if most is not None:
        return _repeat_at_most(test, body, start, Dimension("iteration", most))
    leaves = [as_tensor("while_loop", leaf) for leaf in flatten(list(start))]
    specs = [(leaf.shape, leaf.dtype, leaf.label) for leaf in leaves]

    def arguments(carry: Sequence[Tensor]) -> list[Any]:
        return unflatten(list(start), iter(carry))

    def check_test(*carry: Tensor) -> Tensor:
        return check_condition("while_loop", test(*arguments(carry)))

    def check_carry(*carry: Tensor) -> list[Tensor]:
        following = body(*arguments(carry))
        return match_structure("while_loop: the body's carry", following, expected, "the carry")

    expected = arguments(leaves)[0] if len(start) == 1 else arguments(leaves)
    traced_test, _ = trace_body(check_test, specs)
    traced_body, _ = trace_body(check_carry, specs, outer=leaves)
    inputs = (*leaves, *traced_test.captured, *traced_body.captured)
    outputs = While(inputs, traced_test, traced_body).outputs
    carried = arguments(outputs)
    return carried[0] if len(start) == 1 else tuple(carried)


def _repeat_at_most(
    test: Callable[..., Tensor], body: Callable[..., Any], start: Sequence[Any], over: Dimension
) -> Any:
    """Repeat a function while a condition holds, in a loop along a dimension."""
    single = len(start) == 1
    leaves = [as_tensor("while_loop", leaf) for leaf in flatten(list(start))]
    first = unflatten(list(start), iter(leaves))

    def step(carry: list[Any], _: None) -> tuple[Any, None]:
        def go_on() -> list[Any]:
            following = body(*carry)
            following = [following] if single else [*following]
            what = "while_loop: the body's carry"
            tensors = match_structure(what, following, carry, "the carry")
            return unflatten(carry, iter(tensors))

        goes_on = check_condition("while_loop", test(*carry))
        return cond(goes_on, go_on, lambda: carry), None

    last, _ = scan(step, first, over=name_apart(over, "most", *leaves))
    return last[0] if single else tuple(last)
