"""Manual regions: a function that every device runs on its own piece, without any communication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.differentiate import body_vjp
from namedmesh.ir.nest import unflatten
from namedmesh.ir.op import Body, Op, Placement, every_op
from namedmesh.ir.operands import as_tuple, check_callable, check_dimension, check_tensor
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import trace_body


class Manual(Op):
    """A region each device runs on its own piece, without any communication; sums over summed are finished after it."""

    manual = True
    body: Body
    over: tuple[Dimension, ...]
    summed: tuple[Dimension, ...] = ()

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The region, for passes that look at every op."""
        return (self.body,)

    def results(self):
        return [(tensor.shape, tensor.dtype) for tensor in self.body.outputs]

    def lower(self, context: Context, *values: Any) -> Any:
        return context.run(self.body, values)

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        count = len(self.inputs)
        found: dict[int, Tensor] = {}
        for lacking, wanted in grouped_by_lack(self.inputs, self.over).items():

            def backward(*values, wanted=wanted):
                return body_vjp(self.body, values[:count], values[count:], wanted)

            made = _region(backward, (*self.inputs, *cotangents), self.over, lacking)
            found.update(zip(wanted, made, strict=True))
        return [found.get(i) for i in range(count)]

    def flops(self) -> int:
        return sum(op.flops() for op in self.body.ops)

    def placement(self) -> Placement:
        batch = {dim.name for dim in self.over}
        named = {name for tensor in (*self.inputs, *self.outputs) for name in tensor.shape.names}
        return Placement(
            whole=frozenset(named - batch), reduced=frozenset(dim.name for dim in self.summed)
        )


def grouped_by_lack(
    tensors: Sequence[Tensor], over: Sequence[Dimension]
) -> dict[tuple[Dimension, ...], list[int]]:
    """The places of the floating point tensors, by which of some dimensions they lack: their cotangents are sums over those."""
    groups: dict[tuple[Dimension, ...], list[int]] = {}
    for i, tensor in enumerate(tensors):
        if tensor.floating:
            groups.setdefault(tuple(dim for dim in over if dim not in tensor.shape), []).append(i)
    return groups


def manual(
    function: Callable[..., Any], *tensors: Tensor, over: Dimension | Sequence[Dimension]
) -> Any:
    """Runs a function on each device's own piece of some dimensions, without any communication.

    Inside, no op may mix the elements of the dimensions in `over` (that is checked), so the result
    is the same under every layout. All other dimensions are whole inside: they are gathered before.
    The gradient of a tensor that lacks a dimension of `over` is an AllReduce after the region.

    Args:
        function: Called with the tensors; returns tensors, nested as you like, that all have the
            dimensions in `over`. It may use tensors from outside.
        *tensors: What it is called with.
        over: One dimension or several that may stay split inside.

    Returns:
        What the function returns.

    Raises:
        NamedMeshError: An op in the function mixes elements of a dimension in `over` or moves a
            tensor, or a result lacks one of these dimensions.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=8 model=4")
        >>> def sort_rows(x):
        ...     return nm.manual(lambda x: nm.sort(x, M), x, over=B)
        >>> program = nm.trace(sort_rows, x=nm.spec([B, M]))
        >>> nm.plan(program, nm.Mesh(data=8), "batch:data").collectives
        []
    """
    check_callable("manual", function)
    for tensor in tensors:
        check_tensor("manual", tensor)
    return _region(
        function,
        tensors,
        tuple(check_dimension("manual", dim, *tensors) for dim in as_tuple(over)),
        (),
    )


def _region(
    function: Callable[..., Any],
    tensors: Sequence[Tensor],
    over: tuple[Dimension, ...],
    summed: tuple[Dimension, ...],
) -> Any:
    """A manual region whose results are sums over the dimensions in summed, and have all others of over."""
    body, structure = trace_body(function, [(t.shape, t.dtype, t.label) for t in tensors])
    names, sums = {dim.name for dim in over}, {dim.name for dim in summed}
    for op in every_op(body.ops):
        asked = op.placement()
        mixed = (asked.whole | (asked.reduced - sums) | set(asked.renames)) & names
        if op.rule == "move":
            raise op.error(
                "nothing moves inside a manual region",
                *map(str, op.inputs),
                fix="move the tensor before the region",
            )
        if mixed:
            name = sorted(mixed)[0]
            raise op.error(
                f"mixes elements of dimension {name}, over which the region is split",
                *map(str, op.inputs),
                fix=f"leave {name} out of over=, or do this outside the region",
            )
    for tensor in body.outputs:
        lost = sorted(names - sums - {*tensor.shape.names})
        if lost and not any(x.shape.named(lost[0]) for x in (*tensors, *body.captured)):
            raise NamedMeshError(
                f"manual: over={lost[0]} is a dimension of none of the tensors",
                *map(str, tensors),
                fix=f"leave {lost[0]} out of over=",
            )
        if lost:
            raise NamedMeshError(
                f"manual: the result {tensor.label} lacks dimension {lost[0]}, over which the region is split",
                str(tensor),
                fix=f"compute it outside the region, or nm.broadcast it to include {lost[0]}",
                source=tensor.source,
            )
    made = Manual((*tensors, *body.captured), body, over, summed).outputs
    return unflatten(structure, iter(made))
