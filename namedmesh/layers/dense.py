"""Dense layers: a named contraction with a weight, and the feed-forward networks made of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import namedmesh as nm
from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.ir.operands import check_has_dims
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.initializers import Initializer

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": nm.relu,
    "gelu": nm.gelu,
    "swish": nm.swish,
}


def activated(name: str) -> Callable[[Tensor], Tensor]:
    """An activation function by name."""
    if name not in ACTIVATIONS:
        raise NamedMeshError(
            f"{name!r} is not an activation", fix=did_you_mean(str(name), ACTIVATIONS)
        )
    return ACTIVATIONS[name]


def dense(
    x: Tensor,
    over: Sequence[Dimension],
    to: Sequence[Dimension],
    *,
    name: str = "w",
    bias: bool = False,
    init: Initializer | None = None,
) -> Tensor:
    """x contracted over some dimensions with a weight that brings new ones; computed in the dtype of x."""
    for dims, role in ((over, "over"), (to, "to")):
        if isinstance(dims, Dimension):
            raise NamedMeshError(
                f"dense: {role}={dims} is one dimension", fix=f"give a list: [{dims.name}]"
            )
    for dim in over:
        check_has_dims("dense", x, dim)
    weight = nm.param(name, [*over, *to], init or nm.fan_in_init(*over))
    kept = [dim for dim in x.shape if dim not in over]
    y = nm.einsum([x, nm.cast(weight, x.dtype)], [*kept, *to])
    if bias:
        y = y + nm.cast(nm.param(f"{name}_bias", list(to), nm.constant_init(0.0)), x.dtype)
    return y


def feed_forward(
    x: Tensor, model: Dimension, hidden: Dimension, *, activation: str = "relu", gated: bool = False
) -> Tensor:
    """Two dense layers with an activation between them; gated multiplies by a third (GLU and its kin)."""
    h = activated(activation)(dense(x, [model], [hidden], name="wi"))
    if gated:
        h = h * dense(x, [model], [hidden], name="wi_gate")
    return dense(h, [hidden], [model], name="wo")
