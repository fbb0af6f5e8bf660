"""Beam search over the hypotheses of each sentence."""

from __future__ import annotations

from typing import Any

import namedmesh as nm
from namedmesh.layers.beam_past import FlatPast, OrdinaryPast
from namedmesh.layers.explain import explain_mistakes
from namedmesh.layers.hypotheses import IMPOSSIBLE, TokenDecoder, check_tokens
from namedmesh.layers.mistakes import is_number


@explain_mistakes
def length_penalty(length: nm.Tensor | float, alpha: float) -> Any:
    """Return what GNMT divides log probabilities by: ((5 + length) / 6) ** alpha.

    Args:
        length: The length of a sequence, a number or a float tensor.
        alpha: The exponent; 0 means no penalty.

    Returns:
        A number or a tensor, like length.

    Example:
        >>> length_penalty(7.0, 1.0)
        2.0
    """
    return ((length + 5.0) / 6.0) ** alpha


@explain_mistakes
def beam_search(
    decoder: TokenDecoder, *, alpha: float = 0.6, end: int = 1, start: int = 0
) -> dict[str, nm.Tensor]:
    """Search for the best sequences.

    Keeps the N best unfinished hypotheses of each sentence, and the N best finished ones. Ends when
    no unfinished one can become better than the finished; at the last step every hypothesis ends.
    A Decoder with flat=True never moves its cache; results are the same.

    Args:
        decoder: The decoder; its hypotheses are the width of the beam.
        alpha: The exponent of GNMT's length penalty, from 0 (none) to 10.
        end: The token that ends a sequence.
        start: The token that every sequence follows.

    Returns:
        `sequences` (GNT, best first, the end token included, zeros after it), their
        length-normalised log probabilities `scores` (GN; -1e9 where there are fewer sequences),
        and `steps`, how many were run.

    Raises:
        NamedMeshError: If alpha is out of range, or end or start is not in the vocabulary.

    Example:
        >>> from namedmesh.layers import Decoder, Transformer, config
        >>> model = Transformer(config("tiny"), group=2, source=8, target=6)
        >>> def translate(source, segments):
        ...     return beam_search(Decoder(model, source, segments, hypotheses=4, flat=True))
        >>> tokens = nm.spec([model.G, model.S], "int32")
        >>> nm.trace(translate, tokens, tokens).outputs[0].shape
        [group=2, hypothesis=4, step=6]
    """
    G, N, T, W = decoder.G, decoder.N, decoder.T, decoder.W
    if not is_number(alpha) or not 0 <= alpha <= 10:
        raise nm.NamedMeshError(
            f"beam_search: alpha={alpha!r}",
            fix="pass a number from 0 (no length normalisation) to 10",
        )
    check_tokens("beam_search", W, end=end, start=start)
    # Of twice as many candidates as hypotheses, at most half end, so the beam stays full.
    C, K = nm.Dimension("candidate", 2 * N.size), nm.Dimension("pool", 3 * N.size)
    past = (FlatPast if decoder.flat else OrdinaryPast)(decoder)
    only_first = nm.where(nm.equal(nm.range(N), 0), 0.0, IMPOSSIBLE)  # N: all start out equal
    first = {
        "step": nm.zeros([], "int32"),
        "tokens": nm.full([G, N], start, "int32"),
        "alive": nm.broadcast(only_first, [G, N]),
        "scores": nm.full([G, N], IMPOSSIBLE),
        "sequences": nm.zeros([G, N, T], "int32"),
        "past": past.start(),
    }

    def unfinished(carry: dict[str, Any]) -> nm.Tensor:
        best_possible = nm.max(carry["alive"], over=N) / length_penalty(float(T.size), alpha)
        settled = nm.min(carry["scores"], over=N) >= best_possible
        return (carry["step"] < T.size) & nm.logical_not(nm.all(settled))

    def search_step(carry: dict[str, Any]) -> dict[str, Any]:
        step = carry["step"]
        mask = past.mask(carry["past"], step)
        logits, cache = decoder(carry["tokens"], step, carry["past"]["cache"], mask)
        known = {**carry["past"], "cache": cache}
        ending = nm.equal(nm.range(W), end)
        allowed = ending | (step < T.size - 1)
        log_probabilities = carry["alive"] + nm.log_softmax(logits, over=W)
        scores = nm.where(allowed, log_probabilities, IMPOSSIBLE)  # GNW
        best, index = _choose_candidates(scores, N, W, C)  # GC
        parent, token = nm.floor_divide(index, W.size), nm.remainder(index, W.size)
        ends = nm.equal(token, end)

        possible = ends & (best > IMPOSSIBLE / 2)
        normalized = best / length_penalty(nm.cast(step + 1, "float32"), alpha)
        finished = nm.where(possible, normalized, IMPOSSIBLE)
        here = nm.equal(nm.range(T), step)
        ended = nm.where(here, token, nm.gather(past.sequences(known), parent, N))  # GCT
        pool = _join(carry["scores"], finished, K)
        top, chosen = nm.top_k(pool, K, N)  # GN
        sequences = nm.gather(_join(carry["sequences"], ended, K), chosen, K)

        alive, survivors = nm.top_k(nm.where(ends, IMPOSSIBLE, best), C, N)  # GN
        tokens, parents = nm.gather(token, survivors, C), nm.gather(parent, survivors, C)
        return {
            "step": step + 1,
            "tokens": tokens,
            "alive": nm.maximum(alive, IMPOSSIBLE),
            "scores": top,
            "sequences": nm.transpose(sequences, [G, N, T]),
            "past": past.follow(known, parents, tokens, step),
        }

    last = nm.while_loop(unfinished, search_step, first)
    return {"sequences": last["sequences"], "scores": last["scores"], "steps": last["step"]}


def _choose_candidates(
    scores: nm.Tensor, N: nm.Dimension, W: nm.Dimension, C: nm.Dimension
) -> tuple[nm.Tensor, nm.Tensor]:
    """Return the C best of all hypotheses and tokens (GNW), and their numbers n * W + w.

    The best of each hypothesis are chosen first, so that no tensor of size N * W is sorted.
    """
    own = nm.Dimension("own_candidate", min(C.size, W.size))
    best, token = nm.top_k(scores, W, own)  # GN own
    number = nm.range(N) * W.size + token
    together = nm.Dimension("own_candidates", N.size * own.size)
    groups = scores.shape.without(N.name).without(W.name)

    def flatten(tensor: nm.Tensor) -> nm.Tensor:
        return nm.reshape(nm.transpose(tensor, [*groups, N, own]), [N, own], together)

    top, place = nm.top_k(flatten(best), together, C)
    return top, nm.gather(flatten(number), place, together)


def _join(first: nm.Tensor, second: nm.Tensor, K: nm.Dimension) -> nm.Tensor:
    """Concatenate what finished earlier (GN ..) and what has just ended (GC ..) along K."""
    (N,) = [dim for dim in first.shape if dim not in second.shape.dims]
    (C,) = [dim for dim in second.shape if dim not in first.shape.dims]
    order = [dim if dim != N else C for dim in first.shape]
    earlier = nm.rename(first, N, K.resized(N.size))
    new = nm.rename(nm.transpose(second, order), C, K.resized(C.size))
    return nm.concat([earlier, new], K)
