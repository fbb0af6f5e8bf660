"""The position-wise mixture-of-experts layer (Algorithm 2 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import namedmesh as nm
from namedmesh.layers.dispatch import make_dispatch
from namedmesh.layers.linear import feed_forward, get_activation
from namedmesh.layers.mistakes import claim_name
from namedmesh.layers.regularization import dropout
from namedmesh.layers.routing import ExpertRouting, Routing
from namedmesh.layers.weights import get_weights


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
    routing = gate(score_experts(x if routed is None else routed, (G, S, E), M))
    dispatch = make_dispatch(routing, form)
    reshard = get_weights().reshard  # an AllToAll
    expert_inputs = reshard(dispatch.to_experts(x, [E, G, C, M]), E)
    y = run_experts(expert_inputs, (E, M, H), None, activation, gated, (rate, dropout_key))
    outputs = dispatch.to_tokens(reshard(y, G), [G, S, M])
    if shared is not None:
        with nm.scope("shared"):
            outputs = outputs + feed_forward(x, M, shared, activation=activation, gated=gated)
    return outputs, routing


def score_experts(x: nm.Tensor, dims: Sequence[nm.Dimension], M: nm.Dimension) -> nm.Tensor:
    """Return the router's scores of the experts, the last of the dimensions."""
    E = dims[-1]
    wg = get_weights().make("wg", [M, E], nm.fan_in_init(M), whole=[E])
    # The router is float32 whatever the dtype of x: rounded gates would tie.
    return nm.einsum([nm.cast(x, "float32"), nm.cast(wg, "float32")], dims)


def run_experts(
    x: nm.Tensor,
    dims: tuple[nm.Dimension, nm.Dimension, nm.Dimension],
    choose: Callable[[nm.Tensor], nm.Tensor] | None,
    activation: str,
    gated: bool,
    noise: tuple[float, nm.Tensor | None],
) -> nm.Tensor:
    """Apply the experts' networks to their rows, of which the model dimension comes last.

    Args:
        x: The rows.
        dims: The dimensions E, M and H.
        choose: Returns the weights for the rows, given those of all experts; None for all.
        activation, gated: As in `moe`.
        noise: The dropout rate and key.
    """
    E, M, H = dims

    def multiply(x: nm.Tensor, name: str, over: nm.Dimension, to: nm.Dimension) -> nm.Tensor:
        weights = get_weights()
        weight = weights.make(name, [E, over, to], nm.fan_in_init(over), over=[over])
        weight = weight if choose is None else choose(weight)
        return weights.multiply(x, weight, [*x.shape.dims[:-1], to], name)

    h = get_activation(activation)(multiply(x, "wi", M, H))
    if gated:
        h = h * multiply(x, "wi_gate", M, H)
    return multiply(dropout(h, *noise), "wo", H, M)
