"""Explicit placement: which dimension holds which mesh axes, said in names and independent of any layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError, checked_identifier
from namedmesh.ir.context import Context
from namedmesh.ir.nest import unflatten
from namedmesh.ir.op import Op, Placement
from namedmesh.ir.operands import callback, dimension, operand, require, several, shown
from namedmesh.ir.program import Body, every_op, trace_body
from namedmesh.ir.tensor import Tensor


@dataclass(eq=False)
class Move(Op):
    """The same value elsewhere: the one op that states where its result lies.

    take: dimensions that take the axes the layout gives them.  give: dimensions that become whole.
    exact: exactly these axes and no others.  Without any of them the result lies as its primal does.
    """

    elementwise = True
    take: tuple[str, ...] = ()
    give: tuple[str, ...] = ()
    exact: Mapping[str, tuple[str, ...]] | None = None
    called: str = "cotangent"

    @property
    def kind(self) -> str:
        return self.called

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x):
        return tf.identity(x)

    def vjp(self, dy: Tensor):
        return [Move((dy,)).output]


def reshard(x: Tensor, *dims: Dimension) -> Tensor:
    """The dimensions become the holders of their axes.

    If another dimension held them this is an AllToAll; if none did, a free local slice; if the layout does
    not map them, nothing. So the same model text is right under every layout.
    """
    require("reshard", x, *dims)
    if not dims:
        raise NamedMeshError(
            "reshard: no dimension given", str(x), fix="name the dimension that takes its axes"
        )
    return Move((x,), take=tuple(dim.name for dim in dims), called="reshard").output


def replicate(x: Tensor, *dims: Dimension) -> Tensor:
    """The dimensions become whole on every device (all of them, when none is named): an AllGather of what was held."""
    require("replicate", x, *dims)
    return Move(
        (x,), give=tuple(dim.name for dim in dims) or x.shape.names, called="replicate"
    ).output


def split(x: Tensor, dim: Dimension) -> Tensor:
    """The paper's split: this dimension alone is split, over the axes the layout gives it."""
    if not isinstance(dim, Dimension):
        details = str(operand("split", x))
        raise NamedMeshError(
            f"split: {shown(dim)} is not a Dimension",
            details,
            fix="to cut a tensor into pieces use nm.chunk",
        )
    require("split", x, dim)
    others = tuple(name for name in x.shape.names if name != dim.name)
    return Move((x,), take=(dim.name,), give=others, called="split").output


def shard(x: Tensor, axes: Mapping[Dimension, str | Sequence[str]]) -> Tensor:
    """The paper's shard: exactly these dimensions lie on exactly these mesh axes, whatever the layout says."""
    if not isinstance(axes, Mapping):
        raise NamedMeshError(
            f"shard: {shown(axes)} does not map dimensions to mesh axes",
            str(operand("shard", x)),
            fix="write e.g. nm.shard(x, {B: 'data'})",
        )
    require("shard", x, *axes)
    exact = {dim.name: several(on) for dim, on in axes.items()}
    used = [
        checked_identifier(axis, "shard: mesh axis", str(x)) for on in exact.values() for axis in on
    ]
    twice = sorted({axis for axis in used if used.count(axis) > 1})
    if twice:
        raise NamedMeshError(
            f"shard: mesh axis {twice[0]!r} is given to two dimensions of {x.label}",
            str(x),
            fix="give each axis to one dimension",
        )
    return Move((x,), exact=exact, called="shard").output


@dataclass(eq=False)
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

    def lower(self, context: Context, *values):
        return context.run(self.body, values)

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        from namedmesh.ir.differentiate import body_vjp

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
    """Runs a function on each device's own piece along some dimensions, where no communication can happen.

    Inside, the dimensions in over are batch dimensions: no op may mix their elements (that is checked), so
    the result is the same under every layout. All other dimensions are whole inside.
    """
    callback("manual", function)
    for tensor in tensors:
        operand("manual", tensor)
    return _region(
        function, tensors, tuple(dimension("manual", dim, *tensors) for dim in several(over)), ()
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
        if isinstance(op, Move) and op.called != "cotangent":
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
                source=tensor.producer.source,
            )
    made = Manual((*tensors, *body.captured), body, over, summed).outputs
    return unflatten(structure, iter(made))
