"""Gating: the experts of each token, its place in their buffers, and its weight."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import namedmesh as nm
from namedmesh.layers.configuration import CHOICES
from namedmesh.layers.mistakes import Mistake, check_choice, raise_mistakes
from namedmesh.layers.routing import ExpertRouting, Routing

_CHOICES = CHOICES | {"score": ("softmax", "sigmoid")}


def top_k_gating(
    logits: nm.Tensor,
    seq: nm.Dimension,
    experts: nm.Dimension,
    capacity: nm.Dimension,
    *,
    k: int = 2,
    second: str = "random",
    normalize: str = "before_capacity",
    draws: Sequence[nm.Tensor] = (),
    padding: nm.Tensor | None = None,
    bias: nm.Tensor | None = None,
    score: str = "softmax",
    groups: tuple[int, int] | None = None,
) -> Routing:
    """Route every token to its k best experts: Algorithm 1 of the paper, and its relatives.

    With k=1 and normalize="none" this is the routing of the Switch Transformer.

    Args:
        logits: The router's scores, GSE.
        seq: The dimension S of a group's tokens.
        experts: The dimension E.
        capacity: The dimension C of an expert's buffer; see `expert_capacity`.
        k: The number of experts that each token chooses.
        second: `"random"` serves a later choice with probability 2 g / (sum of the chosen gates);
            `"all"` serves every one that has a place; `"none"` serves none.
        normalize: Scale the chosen gates to sum to one `"before_capacity"` or `"after_capacity"`
            those beyond capacity are dropped, or `"none"`.
        draws: Uniform random numbers for second="random": a GS tensor for each later choice.
        padding: Marks tokens that go nowhere and count nowhere, GS bool.
        bias: Added to an expert's gates where experts are chosen, E. The gradient of `aux_loss` is
            then that of the bias alone: the sign of an expert's load minus the mean load.
        score: Gates are the `"softmax"` of logits over experts, or the `"sigmoid"` of each.
        groups: The number of groups of experts, and of how many groups a token may choose from:
            those whose two best experts have the largest sum.

    Example:
        >>> G, S, E, C = nm.dims("group=2 seq=8 expert=4 capacity=4")
        >>> gate = lambda logits: top_k_gating(logits, S, E, C, second="all").weight
        >>> nm.trace(gate, logits=nm.spec([G, S, E])).outputs[0].shape
        [group=2, seq=8, choice=2]
    """
    _check_options(logits, experts, k, draws, second=second, normalize=normalize, score=score)
    S, E, C = seq, experts, capacity
    dtype = logits.dtype
    logits, *draws = _widen(logits, *draws)
    gates = nm.softmax(logits, over=E) if score == "softmax" else nm.sigmoid(logits)  # GSE
    real = None if padding is None else nm.cast(nm.logical_not(padding), gates.dtype)  # GS
    preferred = gates if bias is None else gates + nm.stop_gradient(bias)  # GSE
    if groups is not None:
        preferred = _limit_groups(preferred, E, *groups)
    masks = _choose_experts(preferred, E, k, real)  # GSE for each choice
    chosen = [nm.sum(gates * mask, over=E) for mask in masks]  # GS: g1, g2
    total = sum(chosen[1:], chosen[0])  # GS: g1 + g2
    before = normalize == "before_capacity"
    weights = [gate / (total + 1e-9) for gate in chosen] if before else chosen

    count, places, served, left_out = None, [], [], []  # count is the paper's c, GE
    for i, mask in enumerate(masks):
        earlier = nm.cumsum(mask, S, exclusive=True)  # GSE: tokens with this choice before s
        earlier = earlier if count is None else earlier + count
        count = nm.sum(mask, over=S) if count is None else count + nm.sum(mask, over=S)
        place = nm.sum(earlier * mask, over=E)  # GS: the position in the expert's buffer
        serve = chose = nm.sum(mask, over=E) > 0
        if i > 0 and second == "random":
            serve = serve & (chosen[i] / (total + 1e-9) * 2.0 > draws[i - 1])
        elif i > 0 and second == "none":
            serve = serve & False
        left_out.append(nm.cast(chose & nm.logical_not(serve), gates.dtype))
        serve = serve & (place < float(C.size))
        places.append(nm.cast(place, "int32"))
        served.append(nm.cast(serve, gates.dtype))
    weights = [weight * serve for weight, serve in zip(weights, served, strict=True)]
    if normalize == "after_capacity":
        remaining = sum(weights[1:], weights[0])
        weights = [weight / (remaining + 1e-9) for weight in weights]
    choices = (masks, places, weights, served, left_out)
    routing = _make_routing(logits, gates, choices, (S, E, C), real, dtype)
    return routing if bias is None else _balance_by_bias(routing, bias)


def expert_choice_gating(
    logits: nm.Tensor,
    seq: nm.Dimension,
    experts: nm.Dimension,
    capacity: nm.Dimension,
    padding: nm.Tensor | None = None,
) -> ExpertRouting:
    """Route to every expert the tokens of a group that score it highest.

    The load is even by construction, and nothing overflows. An expert sees the whole group, later
    tokens included, so this suits an encoder only.

    Args:
        logits, seq, experts, padding: As in `top_k_gating`.
        capacity: The dimension C of the tokens that each expert takes.

    Example:
        >>> G, S, E, C = nm.dims("group=2 seq=8 expert=4 capacity=4")
        >>> gate = lambda logits: expert_choice_gating(logits, S, E, C).token
        >>> nm.trace(gate, logits=nm.spec([G, S, E])).outputs[0].shape
        [group=2, expert=4, capacity=4]
    """
    S, E, C = seq, experts, capacity
    dtype = logits.dtype
    (logits,) = _widen(logits)
    gates = nm.softmax(logits, over=E)  # GSE
    real = nm.ones(gates.shape.without(E.name), gates.dtype)  # GS
    if padding is not None:
        real = nm.cast(nm.logical_not(padding), gates.dtype)
    weight, token = nm.top_k(gates * real, S, C)  # GCE
    groups = [dim for dim in weight.shape if dim not in (E, C)]
    token, weight = (nm.transpose(tensor, [*groups, E, C]) for tensor in (token, weight))  # GEC
    used = nm.stop_gradient(nm.cast(weight > 0, gates.dtype))  # GEC
    taken = nm.cast(nm.scatter_add(used, token, S, batch=groups) > 0, gates.dtype)  # GS
    count = nm.maximum(nm.sum(real), 1.0)
    left_out = nm.stack([1.0 - nm.sum(taken * real) / count], nm.Dimension("choice", 1))
    load = nm.sum(used, over=C) / nm.maximum(nm.sum(real, over=S), 1.0)
    aux_loss = nm.zeros([])
    z_loss = _z_loss(logits, E, real, count)
    floating = (aux_loss, z_loss, left_out, nm.zeros(left_out.shape), load)
    weight, *statistics = (nm.cast(tensor, dtype) for tensor in (weight, *floating))
    return ExpertRouting(token, weight, S, *statistics)


def _widen(*tensors: nm.Tensor) -> list[nm.Tensor]:
    """Return tensors in at least float32: 16 bits count no further than 256 (or 2048) places."""
    short = ("bfloat16", "float16")
    return [nm.cast(x, "float32") if x.dtype in short else x for x in tensors]


def _choose_experts(
    scores: nm.Tensor, E: nm.Dimension, k: int, real: nm.Tensor | None
) -> list[nm.Tensor]:
    """Return the one-hot mask (GSE) of each of the k best experts, zero for padding."""
    masks, left = [], scores
    for _ in range(k):
        mask = nm.one_hot(nm.argmax(left, E), E, scores.dtype)
        left = nm.where(mask > 0, -1e9, left)
        masks.append(mask if real is None else mask * real)
    return masks


def _limit_groups(scores: nm.Tensor, E: nm.Dimension, count: int, most: int) -> nm.Tensor:
    """Return the scores of the experts in a token's best groups, and very small ones elsewhere."""
    if E.size % count or not 1 <= most <= count:
        raise nm.NamedMeshError(
            f"gating: {most} of {count} groups of {E}",
            fix="pass a number of groups that divides the experts, and how many may be chosen from",
        )
    D, inside = nm.dims(f"expert_group={count} expert_in_group={E.size // count}")
    split = nm.reshape(scores, E, [D, inside])
    best, _ = nm.top_k(split, inside, nm.Dimension("best", min(2, inside.size)))
    masks = _choose_experts(nm.sum(best, over=best.shape.dims[-1]), D, most, None)
    allowed = nm.stop_gradient(sum(masks[1:], masks[0]))
    limited = nm.where(allowed > 0, split, -1e8)
    return nm.transpose(nm.reshape(limited, [D, inside], E), scores.shape)


def _make_routing(
    logits: nm.Tensor,
    gates: nm.Tensor,
    choices: tuple[list[nm.Tensor], ...],
    dims: tuple[nm.Dimension, nm.Dimension, nm.Dimension],
    real: nm.Tensor | None,
    dtype: str,
) -> Routing:
    """Stack the choices along K, and compute the losses and the statistics."""
    S, E, C = dims
    masks, places, weights, served, left_out = choices
    K = nm.Dimension("choice", len(masks))
    tokens = float(S.size) if real is None else nm.maximum(nm.sum(real, over=S), 1.0)  # G
    first_share = nm.sum(masks[0], over=S) / tokens  # GE: c_e / S
    mean_gates = nm.sum(gates if real is None else gates * real, over=S) / tokens  # GE: m_e
    aux = nm.mean(first_share * mean_gates, over=E)  # G
    if real is None:
        aux_loss = nm.mean(aux)
    else:  # groups of nothing but padding do not count
        aux_loss = nm.sum(aux) / nm.maximum(nm.sum(nm.max(real, over=S)), 1.0)
    served_masks = [mask * serve for mask, serve in zip(masks, served, strict=True)]
    count = float(served[0].shape.elements) if real is None else nm.maximum(nm.sum(real), 1.0)
    z_loss = _z_loss(logits, E, real, count)
    share = lambda tokens: nm.sum(tokens if real is None else tokens * real) / count
    left_out = nm.stack([share(tokens) for tokens in left_out], K)
    no_room = nm.stack([1.0 - share(tokens) for tokens in served], K) - left_out
    load = nm.sum(sum(served_masks[1:], served_masks[0]), over=S) / tokens

    def stack(choices: list[nm.Tensor]) -> nm.Tensor:
        return nm.transpose(nm.stack(choices, K), [*choices[0].shape, K])  # GSK

    expert = stack([nm.cast(nm.argmax(mask, E), "int32") for mask in masks])
    place, weight = stack(places), stack(weights)
    floating = (aux_loss, z_loss, left_out, no_room, load)
    weight, *statistics = (nm.cast(tensor, dtype) for tensor in (weight, *floating))
    return Routing(expert, place, weight, S, C, E, *statistics)


def _balance_by_bias(routing: Routing, bias: nm.Tensor) -> Routing:
    """Return a routing whose aux_loss keeps its value and has the gradient of the bias alone."""
    groups = [dim for dim in routing.load.shape if dim != routing.experts]
    load = nm.mean(nm.cast(routing.load, "float32"), over=groups)  # E
    excess = nm.stop_gradient(nm.sign(load - nm.mean(load)))
    pull = nm.sum(nm.cast(bias, "float32") * excess)
    pull = nm.cast(pull - nm.stop_gradient(pull), routing.aux_loss.dtype)
    return dataclasses.replace(routing, aux_loss=nm.stop_gradient(routing.aux_loss) + pull)


def _z_loss(
    logits: nm.Tensor, E: nm.Dimension, real: nm.Tensor | None, count: nm.Tensor | float
) -> nm.Tensor:
    """Return the mean squared logsumexp of real tokens, a loss that keeps logits small."""
    squares = nm.square(nm.logsumexp(logits, over=E))  # GS
    return nm.sum(squares if real is None else squares * real) / count


def _check_options(
    logits: nm.Tensor, experts: nm.Dimension, k: int, draws: Sequence[nm.Tensor], **choices: str
) -> None:
    """Raise unless every option of top_k_gating has a value it may have."""
    mistakes: list[Mistake] = []
    for option, value in choices.items():
        mistakes += check_choice("gating: ", option, value, _CHOICES[option])
    if not 1 <= k <= experts.size:
        problem = f"gating: k={k} of {experts}"
        mistakes.append((problem, "choose at least one and at most all experts"))
    elif choices["second"] == "random" and len(draws) != k - 1:
        problem = f"gating: second='random' needs {k - 1} draws and got {len(draws)}"
        fix = "pass draws=[nm.random.uniform(key, [G, S])], one for each later choice"
        mistakes.append((problem, f"{fix}, or second='all'"))
    raise_mistakes("gating", mistakes, str(logits))
