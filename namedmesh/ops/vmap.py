"""vmap: a function of tensors without a dimension, applied along that dimension all at once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.differentiate import repeat_op
from namedmesh.ir.literal import as_tensor
from namedmesh.ir.op import Body, Op
from namedmesh.ir.operands import check_callable, check_dimension
from namedmesh.ir.recorder import recording
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import Trace, current, trace_body
from namedmesh.ops.broadcast import broadcast, sum
from namedmesh.ops.constants import range
from namedmesh.ops.convolution import Conv, ConvWindow
from namedmesh.ops.custom import CustomVjp
from namedmesh.ops.einsum import Einsum
from namedmesh.ops.elementwise import Elementwise
from namedmesh.ops.gather import Gather, gather
from namedmesh.ops.jax_code import JaxCall
from namedmesh.ops.kernel import Kernel
from namedmesh.ops.logic import where
from namedmesh.ops.mathematics import clip
from namedmesh.ops.recompute import Recompute
from namedmesh.ops.scan import Scan
from namedmesh.ops.shape import transpose
from namedmesh.ops.slices import DynamicSlice, DynamicUpdate
from namedmesh.signature.nest import flatten, unflatten

# What broadcasts its operands by name: one that lacks the dimension stays without it.
_BY_NAME = (Elementwise, Einsum, Gather)


def vmap(function: Callable[..., Any], over: Dimension, stack: bool = False) -> Callable[..., Any]:
    """Make a function that works along a dimension it does not know of.

    Ops broadcast by name, so most functions take a further dimension as they are. This is for those
    that name all dimensions of their results, as `nm.einsum` does, and for layers that have
    weights of their own along the dimension. Every op of the function is recorded with it:
    plans, layouts and derivatives are those of the ops.

    Args:
        function: Takes tensors, nested as you like, and returns some.
        over: The dimension. The function sees tensors without it, and arguments that lack it as
            they are.
        stack: Whether a variable made in the function has a slice for each element, stacked along
            the dimension. Otherwise all share it.

    Returns:
        A function of the same arguments whose results have the dimension first.

    Raises:
        NamedMeshError: The function has a loop whose end is not known, a branch, a manual region,
            a move (`nm.reshard`, `nm.replicate`) or a call of TensorFlow, or draws random numbers
            with a key that has the dimension.

    Example:
        >>> import namedmesh as nm
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

        def body(*values: Tensor) -> list[Tensor]:
            positional, keywords = unflatten(given, iter(values))
            structures.append(function(*positional, **keywords))
            return [as_tensor("vmap", leaf) for leaf in flatten(structures[0])]

        traced, _ = trace_body(body, specs, over if stack else None, leaves)
        values = (*leaves, *traced.stacked, *traced.captured)
        known = _replay(traced, values, over)
        return unflatten(
            structures[0], iter([_with(known[one], over, one.shape) for one in traced.outputs])
        )

    return call


def _replay(body: Body, values: Sequence[Tensor], over: Dimension) -> dict[Tensor, Tensor]:
    """Record the ops of a body with a further dimension; returns what stands for each tensor.

    What has the dimension has it first, before the dimensions that the body knows, in its order.
    """
    known = {
        inner: _first(value, over, inner.shape)
        for inner, value in zip(body.arguments, values, strict=True)
    }
    for op in body.ops:
        if op.given:
            continue
        inputs = tuple(known[x] for x in op.inputs)
        if any(over in x.shape for x in inputs):
            with current("vmap").at(op.source, derived=op.derived, scope=op.scope):
                outputs = _batch_op(op, inputs, over)
        else:
            outputs = repeat_op(op, inputs).outputs
        for old, new in zip(op.outputs, outputs, strict=True):
            if new.name is None and old.name is not None:
                new.describe(name=old.name)
            known[old] = _first(new, over, old.shape)
    return known


def _first(x: Tensor, over: Dimension, shape: Shape) -> Tensor:
    """Put the dimension first, where a tensor has it."""
    return transpose(x, [over, *shape]) if over in x.shape else x


def _with(x: Tensor, over: Dimension, shape: Shape) -> Tensor:
    """Return a tensor with the dimension first, also where it does not depend on it."""
    return x if over in x.shape else broadcast(x, [over, *shape])


def _batch_op(op: Op, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
    """Record one op on operands of which some have the dimension."""
    if isinstance(op, (Recompute, Kernel)):  # results of ops that are recorded already
        return inputs[: op.count]
    if isinstance(op, CustomVjp):
        return _batch_custom(op, inputs, over)
    if isinstance(op, Scan):
        return _batch_scan(op, inputs, over)
    if isinstance(op, JaxCall):
        return op.along(over, inputs)
    if isinstance(op, (DynamicSlice, DynamicUpdate)):
        return [_batch_window(op, inputs, over)]
    if op.bodies or op.states_place or type(op).__module__.endswith(("random_bits", "custom")):
        raise op.error(
            f"vmap over {over} does not know what {op.kind} is along another dimension",
            *map(str, inputs),
            fix="do this outside of the function, or give it the dimension by name",
        )
    if not isinstance(op, _BY_NAME):
        inputs = tuple(_with(x, over, old.shape) for x, old in zip(inputs, op.inputs, strict=True))
    changes: dict[str, Any] = {
        field.name: Shape([over, *value])
        for field in dataclasses.fields(op)
        if field.init and isinstance(value := getattr(op, field.name), Shape)
    }
    if isinstance(op, (Conv, ConvWindow)):
        changes["kept"] = (*op.kept, over.name)
    return dataclasses.replace(op, inputs=inputs, **changes).outputs


def _batch_window(
    op: DynamicSlice | DynamicUpdate, inputs: tuple[Tensor, ...], over: Dimension
) -> Tensor:
    """Record a window whose start may differ from element to element."""
    *values, start = inputs
    values = [_with(x, over, old.shape) for x, old in zip(values, op.inputs, strict=False)]
    if over not in start.shape:
        return dataclasses.replace(op, inputs=(*values, start)).output
    start = clip(start, 0, op.dim.size - op.window.size)
    if isinstance(op, DynamicSlice):
        found = gather(values[0], start + range(op.window), op.dim)
    else:
        rows = range(op.dim) - start
        inside = (rows >= 0) & (rows < op.window.size)
        found = where(inside, gather(values[1], rows, op.window), values[0])
    return transpose(found, [over, *op.output.shape])


def _batch_custom(op: CustomVjp, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
    """Record a function with a derivative of its own, whose derivative is batched as well."""
    count, arguments = op.count, op.inputs[op.count : op.count + op.arguments]
    given = inputs[count : count + op.arguments]
    results = tuple(
        _with(x, over, old.shape) for x, old in zip(inputs, op.inputs[:count], strict=False)
    )

    def backward(saved: Any, dy: Any) -> list[Tensor | None]:
        present: list[bool] = []

        def alone(saved: Any, dy: Any) -> list[Tensor]:
            returned = op.backward(saved, dy)
            several = list(returned) if isinstance(returned, (tuple, list)) else [returned]
            present.extend(one is not None for one in several)
            return [one for one in several if one is not None]

        found = iter(vmap(alone, over)(saved, dy))
        cotangents = [next(found) if there else None for there in present]
        pairs = zip(cotangents, given, arguments, strict=True)
        return [
            one if one is None or over in x.shape else transpose(sum(one, over), old.shape)
            for one, x, old in pairs
        ]

    inputs = (*results, *inputs[count:])
    return dataclasses.replace(op, inputs=inputs, backward=backward).outputs


def _batch_scan(op: Scan, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
    """Record a loop whose carries all have the dimension."""
    carries = [_with(x, over, old.shape)
               for x, old in zip(inputs[: op.carries], op.inputs, strict=False)]  # fmt: skip
    inputs = (*carries, *inputs[op.carries :])
    inner = Trace(current("vmap"))
    arguments = [
        inner.placeholder(
            Shape([over, *old.shape]) if over in x.shape else old.shape, x.dtype, old.label
        )
        for x, old in zip(inputs, op.body.arguments, strict=True)
    ]
    with recording(inner):
        known = _replay(op.body, arguments, over)
        outputs = [
            _with(known[one], over, one.shape) if i < op.carries else known[one]
            for i, one in enumerate(op.body.outputs)
        ]
    first = len(op.body.inputs)
    captured = inputs[first:]
    if inner.captures:
        raise NamedMeshError("vmap: a loop reads what it did not read before", fix="report this")
    body = Body(
        tuple(inner.ops), tuple(arguments[:first]), tuple(arguments[first:]), captured,
        tuple(outputs), op.body.stacked,
    )  # fmt: skip
    return dataclasses.replace(op, inputs=inputs, body=body, overwrites=()).outputs
