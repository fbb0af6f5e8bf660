"""Gating: which experts each token goes to, at which place in their buffers, and with what weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import namedmesh as nm
from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.ir.tensor import Tensor
from namedmesh.layers.config import CHOICES


@dataclass(frozen=True)
class ExpertRouting:
    """Expert choice: which token each place (C) of each expert (E) takes."""

    token: Tensor  # GEC int32, an index along S
    weight: Tensor  # GEC
    seq: Dimension  # S
    aux_loss: Tensor  # scalar zero: the load is even by construction
    z_loss: Tensor  # scalar: mean squared logsumexp of the logits
    dropped: Tensor  # K=1: the share of tokens that no expert took
    load: Tensor  # GE: the share of a group's tokens that each expert serves


@dataclass(frozen=True)
class Routing:
    """Token choice: where each choice (K) of each token (GS) goes. Weight zero means it goes nowhere."""

    expert: Tensor  # GSK int32
    place: Tensor  # GSK int32, in the expert's buffer
    weight: Tensor  # GSK, the combine weight
    seq: Dimension  # S
    capacity: Dimension  # C
    experts: Dimension  # E
    aux_loss: Tensor  # scalar: the paper's, averaged over groups (those with tokens)
    z_loss: Tensor  # scalar: mean squared logsumexp of the logits
    dropped: Tensor  # K: the share of tokens whose choice was not served
    load: Tensor  # GE: the share of a group's tokens that each expert serves


def capacity(
    seq: Dimension, experts: Dimension, factor: float = 2.0, name: str = "capacity"
) -> Dimension:
    """The places each expert has for a group's tokens: factor times the even share, at most all; two is the paper's."""
    if not isinstance(factor, (int, float)) or not 0 < factor < float("inf"):
        raise NamedMeshError(
            f"capacity: factor={factor!r}",
            f"of {seq} over {experts}",
            fix="give a positive number; two is the paper's",
        )
    return Dimension(name, min(max(1, int(factor * seq.size / experts.size)), seq.size))


def top_k_gating(
    logits: Tensor,
    seq: Dimension,
    experts: Dimension,
    capacity: Dimension,
    *,
    k: int = 2,
    second: str = "random",
    normalize: str = "before_capacity",
    draws: Sequence[Tensor] = (),
    padding: Tensor | None = None,
) -> Routing:
    """Algorithm 1 of the paper, and its relatives by explicit options.

    logits are GSE. k=1 with normalize="none" is switch routing. second="random" serves a later choice with
    probability 2 g / (sum of the chosen gates), by draws (uniform, a GS tensor per later choice); "all" serves
    every one. normalize says whether the chosen gates are made to sum to one, before or after those
    beyond capacity are dropped. padding (GS, bool) marks tokens that go nowhere and count nowhere.
    """
    _check(logits, experts, capacity, k, second, normalize, draws)
    gates = nm.softmax(logits, over=experts)  # GSE
    real = None if padding is None else nm.cast(nm.logical_not(padding), gates.dtype)  # GS
    masks, left = [], gates
    for _ in range(k):
        mask = nm.one_hot(nm.argmax(left, experts), experts, gates.dtype)  # GSE
        left = nm.where(mask > 0, -1.0, left)
        masks.append(mask if real is None else mask * real)
    chosen = [nm.sum(gates * mask, over=experts) for mask in masks]  # GS each
    total = sum(chosen[1:], chosen[0])
    weights = (
        [gate / (total + 1e-9) for gate in chosen]
        if normalize == "before_capacity"
        else list(chosen)
    )

    before, places, served = None, [], []
    for i, mask in enumerate(masks):
        count = nm.cumsum(mask, seq, exclusive=True)  # GSE: how many of this choice came before
        count = count if before is None else count + before
        before = nm.sum(mask, over=seq) if before is None else before + nm.sum(mask, over=seq)  # GE
        place = nm.sum(count * mask, over=experts)  # GS
        keep = (place < float(capacity.size)) & (nm.sum(mask, over=experts) > 0)
        if i > 0 and second == "random":
            keep = keep & (chosen[i] / (total + 1e-9) * 2.0 > draws[i - 1])
        places.append(nm.cast(place, "int32"))
        served.append(nm.cast(keep, gates.dtype))
    weights = [weight * kept for weight, kept in zip(weights, served, strict=True)]
    if normalize == "after_capacity":
        remaining = sum(weights[1:], weights[0])
        weights = [weight / (remaining + 1e-9) for weight in weights]
    return _routing(logits, gates, masks, places, weights, served, seq, experts, capacity, real)


def _routing(
    logits, gates, masks, places, weights, served, seq, experts, capacity, real
) -> Routing:
    """Puts the choices side by side and adds the losses and the statistics."""
    K = Dimension("choice", len(masks))
    tokens = (
        float(seq.size) if real is None else nm.maximum(nm.sum(real, over=seq), 1.0)
    )  # per group
    first = nm.sum(masks[0], over=seq) / tokens  # GE: c_e / S
    proxy = nm.sum(gates if real is None else gates * real, over=seq) / tokens  # GE: m_e
    aux = nm.mean(first * proxy, over=experts)  # per group
    aux = (
        nm.mean(aux)
        if real is None
        else nm.sum(aux) / nm.maximum(nm.sum(nm.max(real, over=seq)), 1.0)
    )
    kept = [mask * one for mask, one in zip(masks, served, strict=True)]
    count = float(served[0].shape.elements) if real is None else nm.maximum(nm.sum(real), 1.0)
    z_loss = _z_loss(logits, experts, real, count)
    dropped = nm.stack(
        [1.0 - nm.sum(one if real is None else one * real) / count for one in served], K
    )
    load = nm.sum(sum(kept[1:], kept[0]), over=seq) / tokens
    last = lambda tensors: nm.transpose(nm.stack(tensors, K), [*tensors[0].shape, K])  # GSK
    expert = last([nm.cast(nm.argmax(mask, experts), "int32") for mask in masks])
    return Routing(
        expert, last(places), last(weights), seq, capacity, experts, aux, z_loss, dropped, load
    )


def _z_loss(
    logits: Tensor, experts: Dimension, real: Tensor | None, count: Tensor | float
) -> Tensor:
    """The mean squared logsumexp of the real tokens, so many, which keeps logits small."""
    peak = nm.square(nm.logsumexp(logits, over=experts))  # GS
    return nm.sum(peak if real is None else peak * real) / count


def _check(logits, experts, capacity, k, second, normalize, draws) -> None:
    for option, value in (("second", second), ("normalize", normalize)):
        if value not in CHOICES[option]:
            raise NamedMeshError(
                f"gating: {value!r} is not a choice", fix=did_you_mean(str(value), CHOICES[option])
            )
    if not isinstance(capacity, Dimension):
        raise NamedMeshError(
            f"gating: capacity={capacity!r} is no Dimension",
            fix="make one with capacity(seq, experts)",
        )
    if not isinstance(k, int) or not 1 <= k <= experts.size:
        raise NamedMeshError(
            f"gating: k={k} of {experts}",
            str(logits),
            fix="choose at least one and at most all experts",
        )
    if second == "random" and len(draws) != k - 1:
        raise NamedMeshError(
            f"gating: second='random' needs {k - 1} tensors of draws and got {len(draws)}",
            str(logits),
            fix="pass draws=[nm.random.uniform(key, [G, S])], one per later choice, or second='all'",
        )


def expert_choice_gating(
    logits: Tensor,
    seq: Dimension,
    experts: Dimension,
    capacity: Dimension,
    padding: Tensor | None = None,
) -> ExpertRouting:
    """Every expert takes the tokens of a group that want it most: balanced by construction, nothing overflows."""
    gates = nm.softmax(logits, over=experts)
    real = nm.ones(gates.shape.without(experts.name), gates.dtype)  # GS
    if padding is not None:
        real = nm.cast(nm.logical_not(padding), gates.dtype)
    weight, token = nm.top_k(gates * real, seq, capacity)  # G, C where S was, E
    rest = [dim for dim in weight.shape if dim not in (experts, capacity)]
    token, weight = (nm.transpose(one, [*rest, experts, capacity]) for one in (token, weight))
    used = nm.stop_gradient(nm.cast(weight > 0, gates.dtype))  # GEC
    taken = nm.cast(nm.scatter_add(used, token, seq, batch=rest) > 0, gates.dtype)  # GS
    count = nm.maximum(nm.sum(real), 1.0)
    dropped = nm.stack([1.0 - nm.sum(taken * real) / count], Dimension("choice", 1))
    load = nm.sum(used, over=capacity) / nm.maximum(nm.sum(real, over=seq), 1.0)
    return ExpertRouting(
        token, weight, seq, nm.zeros([]), _z_loss(logits, experts, real, count), dropped, load
    )


def jitter(x: Tensor, key: Tensor, epsilon: float = 1e-2) -> Tensor:
    """The router's input times noise around one, for training."""
    return x * nm.random.uniform(key, x.shape, 1.0 - epsilon, 1.0 + epsilon, x.dtype)
