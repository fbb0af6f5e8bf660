"""A function of tensors without a dimension, applied along it: all at once, or one by one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.op import with_dim
from namedmesh.ir.operands import check_callable, check_dimension
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import trace_body
from namedmesh.ops.scan import assign_stacks, batch_body, scan, take_assigned
from namedmesh.signature.nest import flatten, unflatten


def vmap(function: Callable[..., Any], over: Dimension, stack: bool = False) -> Callable[..., Any]:
    """Return a function that works along a dimension it does not know of.

    Ops broadcast by name, so most functions take a further dimension as they are. This is for those
    that name all dimensions of their results, as `nm.einsum` does, and for layers with weights of
    their own along the dimension. Ops that are not defined along other dimensions run in a loop:
    `nm.call_tf`, random bits of a key that has the dimension, an `nm.Op` of yours without `vmap`
    that is neither elementwise nor works by name. Branches, loops of unknown length, manual regions
    and moves to exact mesh axes (`nm.shard`) are refused.

    Args:
        function: Takes tensors, nested as you like, and return some.
        over: The dimension, which the function's arguments lose and its results have first.
        stack: Whether a variable made in the function has a slice for each element, stacked along
            the dimension. Otherwise all share it.

    Example:
        >>> E, M, H = nm.dims("expert=2 model=3 hidden=4")
        >>> def layer(x):
        ...     return nm.einsum([x, nm.param("w", [M, H])], [H])
        >>> program = nm.trace(nm.vmap(layer, over=E, stack=True), nm.spec([E, M]))
        >>> program.outputs[0].shape, program.parameters["w"].shape
        ([expert=2, hidden=4], [expert=2, model=3, hidden=4])
    """
    check_callable("vmap", function)
    check_dimension("vmap", over)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        given = [list(arguments), named]
        leaves = [as_tensor("vmap", leaf) for leaf in flatten(given)]
        specs = [(x.shape.without(over.name), x.dtype, x.label) for x in leaves]
        structures: list[Any] = []
        slices: dict[str, Tensor] = {}

        def body(*values: Tensor) -> list[Tensor]:
            positional, keywords = unflatten(given, iter(values))
            structures.append(function(*positional, **keywords))
            leaves = [as_tensor("vmap", leaf) for leaf in flatten(structures[0])]
            return [*leaves, *take_assigned(slices)]

        traced, _ = trace_body(body, specs, over if stack else None, leaves)
        values = (*leaves, *traced.stacked, *traced.captured)
        if not any(over.name in value.shape.names for value in values):
            raise NamedMeshError(
                f"vmap: no argument has {over}, so that all results would be equal",
                *(str(leaf) for leaf in leaves),
                fix=f"give a tensor that has {over.name}, stack=True for weights of its own, or "
                "nm.broadcast the result",
            )
        known = batch_body(traced, values, over)
        results = [with_dim(known[one], over, one.shape) for one in traced.outputs]
        rest = iter(results)
        made = unflatten(structures[0], rest)
        assign_stacks(slices, rest)
        return made

    return call


def map(function: Callable[[Any], Any], xs: Any, *, over: Dimension, remat: str = "none") -> Any:
    """Return what a function makes of one element after the other: `nm.vmap` in less memory.

    Args:
        function: Called with a slice of `xs`; return tensors, nested as you like.
        xs: Tensors that have the dimension, nested as you like.
        over: The dimension, which the results have first.
        remat: What is stored for the backward pass, as `nm.scan` has it.

    Example:
        >>> T = nm.Dimension("time", 3)
        >>> nm.evaluate(lambda x: nm.map(lambda x: x * x, x, over=T), x=([T], [1.0, 2.0, 3.0]))
        array([1., 4., 9.], dtype=float32)
    """
    check_callable("map", function)
    return scan(lambda _, row: ((), function(row)), (), xs, over=over, remat=remat)[1]
