"""Greedy decoding and sampling, as one loop that ends when every sequence has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import namedmesh as nm
from namedmesh.layers.explain import explain_mistakes
from namedmesh.layers.hypotheses import IMPOSSIBLE, TokenDecoder, check_tokens
from namedmesh.layers.mistakes import Mistake, is_number, raise_mistakes


@explain_mistakes
def greedy(decoder: TokenDecoder, *, end: int = 1, start: int = 0) -> dict[str, nm.Tensor]:
    """Take the likeliest token at every step.

    Args:
        decoder: The decoder, not flat.
        end: The token that ends a sequence.
        start: The token that every sequence follows.

    Returns:
        `sequences` (GNT, the end token included, zeros after it), their log probabilities `scores`
        (GN), and `steps`, how many were run.

    Raises:
        NamedMeshError: If end or start is not in the vocabulary, or the decoder is flat.

    Example:
        >>> from namedmesh.layers import Decoder, Transformer, config
        >>> model = Transformer(config("tiny"), group=2, source=8, target=6)
        >>> translate = lambda source, segments: greedy(Decoder(model, source, segments))
        >>> tokens = nm.spec([model.G, model.S], "int32")
        >>> nm.trace(translate, tokens, tokens).outputs[0].shape
        [group=2, hypothesis=1, step=6]
    """
    return _decode(decoder, lambda logits, step: nm.argmax(logits, decoder.W), end, start)


@explain_mistakes
def sample(
    decoder: TokenDecoder,
    key: nm.Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    end: int = 1,
    start: int = 0,
) -> dict[str, nm.Tensor]:
    """Draw the tokens of each hypothesis at random.

    Args:
        decoder: The decoder, not flat.
        key: A random key.
        temperature: What logits are divided by.
        top_k: Draw from that many of the likeliest tokens only.
        top_p: Draw from the likeliest tokens of that total probability only.
        end: The token that ends a sequence.
        start: The token that every sequence follows.

    Returns:
        `sequences` (GNT, the end token included, zeros after it), their log probabilities under the
        model itself `scores` (GN), and `steps`, how many were run.

    Raises:
        NamedMeshError: If an option has a wrong value (all are listed), or the decoder is flat.

    Example:
        >>> from namedmesh.layers import Decoder, Transformer, config
        >>> model = Transformer(config("tiny"), group=2, source=8, target=6)
        >>> def translate(source, segments):
        ...     decoder = Decoder(model, source, segments, hypotheses=3)
        ...     return sample(decoder, nm.random.key(0), temperature=0.7, top_k=10)
        >>> tokens = nm.spec([model.G, model.S], "int32")
        >>> nm.trace(translate, tokens, tokens).outputs[0].shape
        [group=2, hypothesis=3, step=6]
    """
    W = decoder.W
    _check_sampling(W, temperature, top_k, top_p)

    def choose(logits: nm.Tensor, step: nm.Tensor) -> nm.Tensor:
        logits = logits * (1.0 / temperature)
        if top_k is not None:
            likeliest = nm.Dimension("likeliest", top_k)
            best, _ = nm.top_k(logits, W, likeliest)
            logits = nm.where(logits < nm.min(best, over=likeliest), IMPOSSIBLE, logits)
        if top_p is not None:
            ordered = nm.sort(nm.softmax(logits, over=W), W, descending=True)
            inside = nm.cumsum(ordered, W, exclusive=True) < top_p
            least = nm.min(nm.where(inside, ordered, 1.0), over=W)
            logits = nm.where(nm.softmax(logits, over=W) < least, IMPOSSIBLE, logits)
        return nm.random.categorical(nm.random.fold_in(key, step), logits, W)

    return _decode(decoder, choose, end, start)


def _check_sampling(
    W: nm.Dimension, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    """Raise unless every option of sample has a value it may have."""
    mistakes: list[Mistake] = []
    if not is_number(temperature) or not 1e-4 <= temperature <= 1e4:
        fix = "pass a temperature from 0.0001 to 10,000, or decode greedily"
        mistakes.append((f"sample: temperature={temperature!r}", fix))
    if top_k is not None and not (isinstance(top_k, int) and 1 <= top_k <= W.size):
        mistakes.append((f"sample: top_k={top_k!r} of {W}", f"pass 1 to {W.size}"))
    if top_p is not None and not (is_number(top_p) and 0 < top_p <= 1):
        problem = f"sample: top_p={top_p!r} is not a probability"
        mistakes.append((problem, "pass a number above 0 and at most 1"))
    raise_mistakes("sample", mistakes)


def _decode(
    decoder: TokenDecoder,
    choose: Callable[[nm.Tensor, nm.Tensor], nm.Tensor],
    end: int,
    start: int,
) -> dict[str, nm.Tensor]:
    """Run the decoder in one loop; choose maps logits (GNW) and the step to tokens (GN)."""
    G, N, T, W = decoder.G, decoder.N, decoder.T, decoder.W
    check_tokens("decoding", W, end=end, start=start)
    if decoder.flat:
        raise nm.NamedMeshError(
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

    def unfinished(carry: dict[str, Any]) -> nm.Tensor:
        return (carry["step"] < T.size) & nm.logical_not(nm.all(carry["ended"]))

    def decode_step(carry: dict[str, Any]) -> dict[str, Any]:
        step, ended = carry["step"], carry["ended"]
        logits, cache = decoder(carry["tokens"], step, carry["cache"], nm.range(T) <= step, ended)
        tokens = nm.where(ended, 0, choose(logits, step))
        score = nm.sum(nm.log_softmax(logits, over=W) * nm.one_hot(tokens, W), over=W)
        return {
            "step": step + 1,
            "tokens": tokens,
            "ended": ended | nm.equal(tokens, end),
            "scores": carry["scores"] + nm.where(ended, 0.0, score),
            "sequences": nm.where(nm.equal(nm.range(T), step), tokens, carry["sequences"]),
            "cache": cache,
        }

    last = nm.while_loop(unfinished, decode_step, first)
    return {"sequences": last["sequences"], "scores": last["scores"], "steps": last["step"]}
