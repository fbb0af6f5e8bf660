"""Beam search, in the ordinary form and in the paper's flat form (appendix A.1), with equal results."""

from __future__ import annotations

from typing import Any

import namedmesh as nm
from namedmesh.dims.dimension import Dimension
from namedmesh.dims.errors import NamedMeshError
from namedmesh.ir.tensor import Tensor
from namedmesh.layers.decoder import IMPOSSIBLE, Decoder, checked_tokens


def length_penalty(length: Tensor | float, alpha: float) -> Any:
    """What GNMT divides log probabilities by: ((5 + length) / 6) ** alpha."""
    return ((length + 5.0) / 6.0) ** alpha


class OrdinaryPast:
    """Every hypothesis has its past to itself: sequences and cache are put in the new order after every step."""

    def __init__(self, decoder: Decoder):
        self.decoder = decoder

    def start(self) -> dict[str, Any]:
        """Nothing decoded yet."""
        d = self.decoder
        return {"cache": d.start(), "tokens": nm.zeros([d.G, d.N, d.T], "int32")}

    def mask(self, past: dict[str, Any], step: Tensor) -> Tensor:
        """Which steps attention sees: T."""
        return nm.range(self.decoder.T) <= step

    def sequences(self, past: dict[str, Any]) -> Tensor:
        """What each hypothesis consists of: GNT."""
        return past["tokens"]

    def followed(
        self, past: dict[str, Any], parent: Tensor, tokens: Tensor, step: Tensor
    ) -> dict[str, Any]:
        """The past of the hypotheses that continue those of numbers parent (GN) by tokens (GN)."""
        d = self.decoder
        order = lambda tensor: _picked(tensor, parent, d.N)
        cache = {
            name: {key: order(one) for key, one in both.items()}
            for name, both in past["cache"].items()
        }
        return {
            "cache": cache,
            "tokens": nm.where(nm.equal(nm.range(d.T), step), tokens, order(past["tokens"])),
        }


class FlatPast:
    """The hypotheses of a sentence are one interleaved sequence that is only ever appended to; a 0/1 mask says what is whose."""

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        self.diagonal = nm.equal(nm.range(decoder.N), nm.range(decoder.slot))  # N slot

    def start(self) -> dict[str, Any]:
        """All hypotheses begin with the start token in the first slot."""
        d = self.decoder
        first = nm.equal(nm.range(d.T), 0) & nm.equal(nm.range(d.slot), 0)
        return {
            "cache": d.start(),
            "written": nm.zeros([d.T, d.G, d.slot], "int32"),
            "mask": nm.broadcast(first, [d.G, d.N, d.T, d.slot]),
        }

    def mask(self, past: dict[str, Any], step: Tensor) -> Tensor:
        """Which steps of which slots attention sees: GNT slot."""
        return past["mask"]

    def sequences(self, past: dict[str, Any]) -> Tensor:
        """What each hypothesis consists of: GNT, read through the mask; what was written at step t + 1 was chosen at t."""
        d = self.decoder
        inputs = nm.sum(nm.where(past["mask"], past["written"], 0), over=d.slot)
        return nm.transpose(nm.shift(inputs, d.T, -1) if d.T.size > 1 else inputs, [d.G, d.N, d.T])

    def followed(
        self, past: dict[str, Any], parent: Tensor, tokens: Tensor, step: Tensor
    ) -> dict[str, Any]:
        """The past of the hypotheses that continue those of numbers parent (GN) by tokens (GN): only the mask is reordered."""
        d = self.decoder
        following = nm.equal(nm.range(d.T), step + 1)
        mask = _picked(past["mask"], parent, d.N) | (following & self.diagonal)
        slots = nm.rename(tokens, d.N, d.slot)
        return {
            "cache": past["cache"],
            "written": nm.where(following, slots, past["written"]),
            "mask": mask,
        }


def beam_search(
    decoder: Decoder, *, alpha: float = 0.6, end: int = 1, start: int = 0
) -> dict[str, Tensor]:
    """The best finished sequences (GNT, best first), their scores (GN, length-normalised), and how many steps were run.

    Keeps the N best unfinished hypotheses of each sentence, and the N best finished. Ends when no unfinished one can
    become better than the finished; at the longest length every hypothesis ends. A Decoder with flat=True never moves its cache.
    """
    G, N, T, W = decoder.G, decoder.N, decoder.T, decoder.W
    if not isinstance(alpha, (int, float)) or not 0 <= alpha <= 10:
        raise NamedMeshError(
            f"beam_search: alpha={alpha!r}",
            fix="give a number from 0 (no length normalisation) to 10",
        )
    checked_tokens("beam_search", W, end=end, start=start)
    C, K = Dimension("candidate", 2 * N.size), Dimension("pool", 3 * N.size)
    past = (FlatPast if decoder.flat else OrdinaryPast)(decoder)
    highest = nm.where(nm.equal(nm.range(N), 0), 0.0, IMPOSSIBLE)  # one hypothesis to begin with
    first = {
        "step": nm.zeros([], "int32"),
        "tokens": nm.full([G, N], start, "int32"),
        "alive": nm.broadcast(highest, [G, N]),
        "scores": nm.full([G, N], IMPOSSIBLE),
        "sequences": nm.zeros([G, N, T], "int32"),
        "past": past.start(),
    }

    def going(carry: dict[str, Any]) -> Tensor:
        hope = nm.max(carry["alive"], over=N) / length_penalty(float(T.size), alpha)
        settled = nm.min(carry["scores"], over=N) >= hope
        return (carry["step"] < T.size) & nm.logical_not(nm.all(settled))

    def turn(carry: dict[str, Any]) -> dict[str, Any]:
        step = carry["step"]
        logits, cache = decoder(
            carry["tokens"], step, carry["past"]["cache"], past.mask(carry["past"], step)
        )
        known = {**carry["past"], "cache": cache}
        ending = nm.equal(nm.range(W), end)
        allowed = ending | (step < T.size - 1)
        scores = nm.where(
            allowed, carry["alive"] + nm.log_softmax(logits, over=W), IMPOSSIBLE
        )  # GNW
        best, index = _best(scores, N, W, C)  # GC
        parent, token = nm.floor_divide(index, W.size), nm.remainder(index, W.size)
        over = nm.equal(token, end)

        finished = nm.where(
            over & (best > IMPOSSIBLE / 2),
            best / length_penalty(nm.cast(step + 1, "float32"), alpha),
            IMPOSSIBLE,
        )
        ended = nm.where(
            nm.equal(nm.range(T), step), token, nm.gather(past.sequences(known), parent, N)
        )  # GCT
        pool = _joined(carry["scores"], finished, K)
        top, chosen = nm.top_k(pool, K, N)  # GN
        sequences = nm.gather(_joined(carry["sequences"], ended, K), chosen, K)

        alive, kept = nm.top_k(nm.where(over, IMPOSSIBLE, best), C, N)  # GN
        tokens, parents = nm.gather(token, kept, C), nm.gather(parent, kept, C)
        return {
            "step": step + 1,
            "tokens": tokens,
            "alive": nm.maximum(alive, IMPOSSIBLE),
            "scores": top,
            "sequences": nm.transpose(sequences, [G, N, T]),
            "past": past.followed(known, parents, tokens, step),
        }

    last = nm.while_loop(going, turn, first)
    return {"sequences": last["sequences"], "scores": last["scores"], "steps": last["step"]}


def _best(scores: Tensor, N: Dimension, W: Dimension, C: Dimension) -> tuple[Tensor, Tensor]:
    """The C best of all hypotheses and tokens (GNW), by way of the best of each hypothesis, and their numbers n * W + w."""
    own = Dimension("own_candidate", min(C.size, W.size))
    best, token = nm.top_k(scores, W, own)  # GN own
    number = nm.range(N) * W.size + token
    both = Dimension("own_candidates", N.size * own.size)
    side = lambda tensor: nm.reshape(
        nm.transpose(tensor, [*scores.shape.without(N.name).without(W.name), N, own]),
        [N, own],
        both,
    )
    top, place = nm.top_k(side(best), both, C)
    return top, nm.gather(side(number), place, both)


def _picked(tensor: Tensor, parent: Tensor, N: Dimension) -> Tensor:
    """A tensor's hypotheses in another order: parent (GN) says which one comes where."""
    given = Dimension("parent", N.size)
    return nm.transpose(
        nm.rename(nm.gather(tensor, nm.rename(parent, N, given), N), given, N), tensor.shape
    )


def _joined(first: Tensor, second: Tensor, K: Dimension) -> Tensor:
    """What is finished and what has just ended, side by side (GK ..)."""
    (N,) = [dim for dim in first.shape if dim not in second.shape.dims]
    (C,) = [dim for dim in second.shape if dim not in first.shape.dims]
    order = [dim if dim != N else C for dim in first.shape]
    return nm.concat(
        [
            nm.rename(first, N, K.resized(N.size)),
            nm.rename(nm.transpose(second, order), C, K.resized(C.size)),
        ],
        K,
    )
