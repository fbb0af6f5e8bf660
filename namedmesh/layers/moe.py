"""The position-wise mixture-of-experts layer (Algorithm 2 of the paper)."""

from __future__ import annotations

from collections.abc import Callable

import namedmesh as nm
from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.tensor import Tensor
from namedmesh.layers.dense import activated
from namedmesh.layers.dispatch import dispatcher
from namedmesh.layers.gating import ExpertRouting, Routing


def moe(
    x: Tensor,
    gate: Callable[[Tensor], Routing | ExpertRouting],
    dims: tuple[Dimension, Dimension, Dimension, Dimension, Dimension, Dimension],
    *,
    form: str = "gather",
    activation: str = "relu",
    gated: bool = False,
    routed: Tensor | None = None,
) -> tuple[Tensor, Routing | ExpertRouting]:
    """Experts (each a two-layer network) applied to the tokens that the gate sends them.

    dims are G, S, E, C, M, H. gate maps logits (GSE) to a routing: functools.partial of a gating function.
    routed is what the gate sees instead of x, e.g. x with jitter.
    Both AllToAlls are explicit: the buffers go from the group's devices to the expert's and back.
    """
    if len(dims) != 6:
        raise NamedMeshError(
            f"moe: {len(dims)} dims",
            str(x),
            fix="give six: group, sequence, expert, capacity, model, hidden",
        )
    G, S, E, C, M, H = dims
    wg = nm.param("wg", [M, E], nm.fan_in_init(M), whole=[E])
    wi = nm.param("wi", [E, M, H], nm.fan_in_init(M))
    wo = nm.param("wo", [E, H, M], nm.fan_in_init(H))
    routing = gate(nm.einsum([nm.cast(x if routed is None else routed, "float32"), wg], [G, S, E]))
    dispatch = dispatcher(routing, form)
    xe = nm.reshard(dispatch.expert_inputs(x, [E, G, C, M]), E)
    h = activated(activation)(nm.einsum([xe, nm.cast(wi, x.dtype)], [E, G, C, H]))
    if gated:
        h = h * nm.einsum(
            [xe, nm.cast(nm.param("wi_gate", [E, M, H], nm.fan_in_init(M)), x.dtype)], [E, G, C, H]
        )
    ye = nm.reshard(nm.einsum([h, nm.cast(wo, x.dtype)], [E, G, C, M]), G)
    return dispatch.outputs(ye, [G, S, M]), routing
