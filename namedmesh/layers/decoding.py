"""Decoding with any model that scores the next token from the last one and a cache."""

from __future__ import annotations

from typing import Any

import namedmesh as nm
from namedmesh.layers.beam import Beam
from namedmesh.layers.explain import explain_mistakes
from namedmesh.layers.hypotheses import DecodingTask, StepFunction
from namedmesh.layers.mistakes import Mistake, raise_mistakes
from namedmesh.layers.sampling import Greedy, Sample


@explain_mistakes
def decode(
    step: StepFunction,
    cache: Any,
    first: nm.Tensor,
    steps: nm.Dimension,
    method: Greedy | Sample | Beam | None = None,
    *,
    end: int | None = None,
) -> dict[str, nm.Tensor]:
    """Write sequences token by token, as one loop that ends when every sequence has.

    The cache is whatever the step needs to know of the tokens before: nested tuples, lists and
    dicts of tensors. A beam reorders those that have its dimension of hypotheses, and leaves the
    others where they are. `Cache` keeps the keys and values of attention this way, in an ordinary
    or a flat form; the state of a recurrent network needs nothing but that dimension.

    Args:
        step: Maps the last token of each sequence (the dimensions of first, int32) and the cache
            to logits (with the vocabulary's dimension besides) and the next cache.
        cache: The cache before the first step.
        first: The tokens that the sequences follow, int32.
        steps: The dimension of the steps; its size is the longest that a sequence can get.
        method: How tokens are chosen: `Greedy`, `Sample` or `Beam`; greedily by default.
        end: The token that ends a sequence, or None if all have the same length.

    Returns:
        `sequences` (the dimensions of first, then steps; the end token included, zeros after it),
        their log probabilities `scores` (see the method), and `steps`, how many were run.

    Raises:
        NamedMeshError: If an argument is not what the others need, or the step does not return
            logits and a cache like the one it got.

    Example:
        A model whose state counts, and which prefers the token that is the count:

        >>> from namedmesh.layers import decode
        >>> B, T, V = nm.dims("batch=2 step=3 vocab=8")
        >>> def step(tokens, count):
        ...     logits = nm.cast(nm.equal(nm.range(V), count), "float32")
        ...     return nm.broadcast(logits, [B, V]), count + 1
        >>> program = nm.trace(lambda first: decode(step, 5, first, T), nm.spec([B], "int32"))
        >>> program.evaluate({}, first=[0, 0])[1]["sequences"].numpy().tolist()
        [[5, 6, 7], [5, 6, 7]]
    """
    mistakes: list[Mistake] = []
    if first.dtype != "int32" or steps.name in first.shape.names:
        problem = f"decode: first is {first.dtype}{first.shape}"
        mistakes.append((problem, f"pass int32 tokens without the dimension {steps.name}"))
    method = Greedy() if method is None else method
    if not isinstance(method, (Greedy, Sample, Beam)):
        fix = "pass Greedy(), Sample(key) or Beam(hypotheses)"
        mistakes.append((f"decode: method={method!r}", fix))
    if not callable(step):
        mistakes.append((f"decode: step={step!r} is not a function", "pass step(tokens, cache)"))
    raise_mistakes("decode", mistakes)
    return method(DecodingTask(step, cache, first, steps, end))
