"""Greedy decoding and sampling, as one loop that ends when every sequence has."""

from __future__ import annotations

from typing import Any

import namedmesh as nm
from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.tensor import Tensor
from namedmesh.layers.decoder import IMPOSSIBLE, Decoder, checked_tokens


def greedy(decoder: Decoder, *, end: int = 1, start: int = 0) -> dict[str, Tensor]:
    """The likeliest token at every step: sequences (GNT), their log probabilities (GN), and how many steps were run."""
    return _decoded(decoder, lambda logits, step: nm.argmax(logits, decoder.W), end, start)


def sample(
    decoder: Decoder,
    key: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    end: int = 1,
    start: int = 0,
) -> dict[str, Tensor]:
    """Tokens drawn at random for each hypothesis: from all, the likeliest top_k, or the likeliest of total probability top_p.

    Returns sequences (GNT), their log probabilities under the model itself (GN), and how many steps were run.
    """
    W = decoder.W
    if not isinstance(temperature, (int, float)) or not 1e-4 <= temperature <= 1e4:
        raise NamedMeshError(
            f"sample: temperature={temperature!r}",
            fix="give one from 0.0001 to 10,000, or decode greedily",
        )
    if top_k is not None and not (isinstance(top_k, int) and 1 <= top_k <= W.size):
        raise NamedMeshError(f"sample: top_k={top_k!r} of {W}", fix=f"give 1 to {W.size}")
    if top_p is not None and not (isinstance(top_p, (int, float)) and 0 < top_p <= 1):
        raise NamedMeshError(
            f"sample: top_p={top_p!r} is no probability", fix="give a number above 0 and at most 1"
        )

    def choose(logits: Tensor, step: Tensor) -> Tensor:
        logits = logits * (1.0 / temperature)
        if top_k is not None:
            best, _ = nm.top_k(logits, W, Dimension("likeliest", top_k))
            logits = nm.where(
                logits < nm.min(best, over=best.shape.named("likeliest")), IMPOSSIBLE, logits
            )
        if top_p is not None:
            ordered = nm.sort(nm.softmax(logits, over=W), W, descending=True)
            inside = nm.cumsum(ordered, W, exclusive=True) < top_p
            least = nm.min(nm.where(inside, ordered, 1.0), over=W)
            logits = nm.where(nm.softmax(logits, over=W) < least, IMPOSSIBLE, logits)
        return nm.random.categorical(nm.random.fold_in(key, step), logits, W)

    return _decoded(decoder, choose, end, start)


def _decoded(decoder: Decoder, choose: Any, end: int, start: int) -> dict[str, Tensor]:
    G, N, T, W = decoder.G, decoder.N, decoder.T, decoder.W
    checked_tokens("decoding", W, end=end, start=start)
    if decoder.flat:
        raise NamedMeshError(
            "sequences that do not share a past need no flat cache",
            fix="make the Decoder without flat=True",
        )
    first = {
        "step": nm.zeros([], "int32"),
        "tokens": nm.full([G, N], start, "int32"),
        "ended": nm.full([G, N], False, "bool"),
        "scores": nm.zeros([G, N]),
        "sequences": nm.zeros([G, N, T], "int32"),
        "cache": decoder.start(),
    }

    def going(carry: dict[str, Any]) -> Tensor:
        return (carry["step"] < T.size) & nm.logical_not(nm.all(carry["ended"]))

    def turn(carry: dict[str, Any]) -> dict[str, Any]:
        step, ended = carry["step"], carry["ended"]
        logits, cache = decoder(carry["tokens"], step, carry["cache"], nm.range(T) <= step, ended)
        tokens = nm.where(ended, 0, choose(logits, step))
        chosen = nm.sum(nm.log_softmax(logits, over=W) * nm.one_hot(tokens, W), over=W)
        return {
            "step": step + 1,
            "tokens": tokens,
            "ended": ended | nm.equal(tokens, end),
            "scores": carry["scores"] + nm.where(ended, 0.0, chosen),
            "sequences": nm.where(nm.equal(nm.range(T), step), tokens, carry["sequences"]),
            "cache": cache,
        }

    last = nm.while_loop(going, turn, first)
    return {"sequences": last["sequences"], "scores": last["scores"], "steps": last["step"]}
