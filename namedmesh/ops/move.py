"""Explicit placement: which dimension holds which mesh axes, said in names and independent of any layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError, check_identifier
from namedmesh.ir.context import Context
from namedmesh.ir.differentiate import Cotangent
from namedmesh.ir.format import format_value
from namedmesh.ir.op import Op
from namedmesh.ir.operands import as_tuple, check_has_dims, check_tensor
from namedmesh.ir.tensor import Tensor


class Move(Op):
    """The same value elsewhere: an op that states where its result lies.

    take: dimensions that take the axes the layout gives them.  give: dimensions that become whole.
    exact: exactly these axes and no others.
    """

    elementwise = True
    states_place = True
    kept_by_dots = True
    rule = "move"
    take: tuple[str, ...] = ()
    give: tuple[str, ...] = ()
    exact: Mapping[str, tuple[str, ...]] | None = None
    called: str = "reshard"

    @property
    def kind(self) -> str:
        return self.called

    @property
    def taken_dims(self) -> tuple[str, ...]:
        return (*self.take, *(self.exact or ()))

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context: Context, x: Any) -> Any:
        return context.tf.identity(x)

    def vjp(self, dy: Tensor):
        return [Cotangent((dy,)).output]


def reshard(x: Tensor, *dims: Dimension) -> Tensor:
    """The dimensions become the holders of their axes.

    If another dimension held them this is an AllToAll; if none did, a free local slice; if the layout does
    not map them, nothing. So the same model text is right under every layout.
    """
    check_has_dims("reshard", x, *dims)
    if not dims:
        raise NamedMeshError(
            "reshard: no dimension given", str(x), fix="name the dimension that takes its axes"
        )
    return Move((x,), take=tuple(dim.name for dim in dims), called="reshard").output


def replicate(x: Tensor, *dims: Dimension) -> Tensor:
    """The dimensions become whole on every device (all of them, when none is named): an AllGather of what was held."""
    check_has_dims("replicate", x, *dims)
    return Move(
        (x,), give=tuple(dim.name for dim in dims) or x.shape.names, called="replicate"
    ).output


def split(x: Tensor, dim: Dimension) -> Tensor:
    """The paper's split: this dimension alone is split, over the axes the layout gives it."""
    if not isinstance(dim, Dimension):
        details = str(check_tensor("split", x))
        raise NamedMeshError(
            f"split: {format_value(dim)} is not a Dimension",
            details,
            fix="to cut a tensor into pieces use nm.chunk",
        )
    check_has_dims("split", x, dim)
    others = tuple(name for name in x.shape.names if name != dim.name)
    return Move((x,), take=(dim.name,), give=others, called="split").output


def shard(x: Tensor, axes: Mapping[Dimension, str | Sequence[str]]) -> Tensor:
    """The paper's shard: exactly these dimensions lie on exactly these mesh axes, whatever the layout says."""
    if not isinstance(axes, Mapping):
        raise NamedMeshError(
            f"shard: {format_value(axes)} does not map dimensions to mesh axes",
            str(check_tensor("shard", x)),
            fix="write e.g. nm.shard(x, {B: 'data'})",
        )
    check_has_dims("shard", x, *axes)
    exact = {dim.name: as_tuple(on) for dim, on in axes.items()}
    used = [
        check_identifier(axis, "shard: mesh axis", str(x)) for on in exact.values() for axis in on
    ]
    twice = sorted({axis for axis in used if used.count(axis) > 1})
    if twice:
        raise NamedMeshError(
            f"shard: mesh axis {twice[0]!r} is given to two dimensions of {x.label}",
            str(x),
            fix="give each axis to one dimension",
        )
    return Move((x,), exact=exact, called="shard").output
