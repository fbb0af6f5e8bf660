"""The position-wise mixture-of-experts layer (Algorithm 2 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import namedmesh as nm
from namedmesh.layers.dispatch import make_dispatch
from namedmesh.layers.linear import feed_forward, get_activation
from namedmesh.layers.mistakes import claim_name
from namedmesh.layers.regularization import dropout
from namedmesh.layers.routing import ExpertRouting, Routing


def moe(
    x: nm.Tensor,
    gate: Callable[[nm.Tensor], Routing | ExpertRouting],
    dims: Sequence[nm.Dimension],
    *,
    form: str = "gather",
    activation: str = "relu",
    gated: bool = False,
    shared: nm.Dimension | None = None,
    routed: nm.Tensor | None = None,
    rate: float = 0.0,
    dropout_key: nm.Tensor | None = None,
) -> tuple[nm.Tensor, Routing | ExpertRouting]:
    """Send tokens to experts, each a network of two layers, and combine their outputs.

    Both AllToAlls are explicit: the buffers move from the group's devices to the expert's, and
    back.

    Args:
        x: Tokens, GSM.
        gate: A function from logits (GSE) to a routing, e.g. of `top_k_gating`.
        dims: The six dimensions G, S, E, C, M, H.
        form: The dispatch of tokens: `"gather"` or `"einsum"`.
        activation: The name of the activation function.
        gated: Whether to multiply the activations by a third layer (GLU and variants).
        shared: The hidden dimension of a network that serves every token, added to the experts'.
        routed: The gate's input instead of x, e.g. x with jitter.
        rate: The dropout rate of the experts' hidden layers.
        dropout_key: A random key for that, or None for evaluation.

    Returns:
        The combined outputs, GSM, and the routing.

    Example:
        >>> G, S, E, C, M, H = nm.dims("group=4 seq=8 expert=4 capacity=4 model=6 hidden=12")
        >>> def layer(x):
        ...     gate = lambda logits: top_k_gating(logits, S, E, C, second="all")
        ...     return moe(x, gate, (G, S, E, C, M, H))[0]
        >>> program = nm.trace(layer, nm.spec([G, S, M]))
        >>> nm.plan(program, nm.Mesh(all=4), "group:all, expert:all").count("AllToAll")
        2
    """
    if len(dims) != 6:
        raise nm.NamedMeshError(
            f"moe: {len(dims)} dimensions: {', '.join(map(str, dims))}",
            str(x),
            fix="pass six: group, sequence, expert, capacity, model, hidden",
        )
    G, S, E, C, M, H = dims
    claim_name("moe", "wg")
    wg = nm.param("wg", [M, E], nm.fan_in_init(M), whole=[E])
    wi = nm.param("wi", [E, M, H], nm.fan_in_init(M))
    wo = nm.param("wo", [E, H, M], nm.fan_in_init(H))
    # The router is float32 whatever the dtype of x: rounded gates would tie.
    logits = nm.einsum([nm.cast(x if routed is None else routed, "float32"), wg], [G, S, E])
    routing = gate(logits)
    dispatch = make_dispatch(routing, form)
    expert_inputs = nm.reshard(dispatch.to_experts(x, [E, G, C, M]), E)  # an AllToAll
    h = nm.einsum([expert_inputs, nm.cast(wi, x.dtype)], [E, G, C, H])
    h = get_activation(activation)(h)
    if gated:
        w_gate = nm.param("wi_gate", [E, M, H], nm.fan_in_init(M))
        h = h * nm.einsum([expert_inputs, nm.cast(w_gate, x.dtype)], [E, G, C, H])
    h = dropout(h, rate, dropout_key)
    expert_outputs = nm.einsum([h, nm.cast(wo, x.dtype)], [E, G, C, M])
    outputs = dispatch.to_tokens(nm.reshard(expert_outputs, G), [G, S, M])  # an AllToAll
    if shared is not None:
        with nm.scope("shared"):
            outputs = outputs + feed_forward(x, M, shared, activation=activation, gated=gated)
    return outputs, routing
