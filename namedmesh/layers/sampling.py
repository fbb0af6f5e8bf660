"""Greedy decoding and sampling: every sequence goes its own way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import namedmesh as nm
from namedmesh.layers.explain import explain_mistakes
from namedmesh.layers.hypotheses import IMPOSSIBLE, DecodingTask
from namedmesh.layers.mistakes import Mistake, is_number, raise_mistakes

ChooseTokens = Callable[[nm.Tensor, nm.Dimension, nm.Tensor], nm.Tensor]


@dataclass(frozen=True)
class Greedy:
    """Take the likeliest token at every step; a method of `decode`.

    The `scores` are the log probabilities of the sequences.

    Example:
        >>> from namedmesh.layers import decode
        >>> B, T, V = nm.dims("batch=1 step=3 vocab=4")
        >>> step = lambda tokens, cache: (nm.one_hot(tokens + 1, V), cache)
        >>> count = lambda first: decode(step, (), first, T, Greedy())["sequences"]
        >>> nm.evaluate(count, first=([B], [0])).tolist()
        [[1, 2, 3]]
    """

    def __call__(self, task: DecodingTask) -> dict[str, nm.Tensor]:
        """Decode."""
        return _decode(task, lambda logits, W, step: nm.argmax(logits, W))


@explain_mistakes
@dataclass(frozen=True)
class Sample:
    """Draw the tokens of each sequence at random; a method of `decode`.

    The `scores` are the log probabilities of the sequences under the model itself.

    Attributes:
        key: A random key.
        temperature: What logits are divided by.
        top_k: Draw from that many of the likeliest tokens only.
        top_p: Draw from the likeliest tokens of that total probability only.

    Raises:
        NamedMeshError: If an option has a wrong value; all are listed.

    Example:
        >>> from namedmesh.layers import decode
        >>> B, T, V = nm.dims("batch=2 step=3 vocab=4")
        >>> step = lambda tokens, cache: (nm.one_hot(tokens, V), cache)
        >>> def draw(first):
        ...     method = Sample(nm.random.key(0), temperature=0.7, top_k=2)
        ...     return decode(step, (), first, T, method)["sequences"]
        >>> nm.trace(draw, nm.spec([B], "int32")).outputs[0].shape
        [batch=2, step=3]
    """

    key: nm.Tensor
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        mistakes: list[Mistake] = []
        if not is_number(self.temperature) or not 1e-4 <= self.temperature <= 1e4:
            fix = "pass a temperature from 0.0001 to 10,000, or decode greedily"
            mistakes.append((f"Sample: temperature={self.temperature!r}", fix))
        if self.top_k is not None and not (isinstance(self.top_k, int) and self.top_k >= 1):
            mistakes.append((f"Sample: top_k={self.top_k!r}", "pass a whole number from 1"))
        if self.top_p is not None and not (is_number(self.top_p) and 0 < self.top_p <= 1):
            problem = f"Sample: top_p={self.top_p!r} is not a probability"
            mistakes.append((problem, "pass a number above 0 and at most 1"))
        raise_mistakes("Sample", mistakes)

    def __call__(self, task: DecodingTask) -> dict[str, nm.Tensor]:
        """Decode."""
        return _decode(task, self._draw)

    def _draw(self, logits: nm.Tensor, W: nm.Dimension, step: nm.Tensor) -> nm.Tensor:
        """Draw a token for each sequence."""
        logits = logits * (1.0 / self.temperature)
        if self.top_k is not None:
            if self.top_k > W.size:
                problem = f"Sample: top_k={self.top_k} of {W}"
                raise nm.NamedMeshError(problem, fix=f"pass 1 to {W.size}")
            likeliest = nm.Dimension("likeliest", self.top_k)
            best, _ = nm.top_k(logits, W, likeliest)
            logits = nm.where(logits < nm.min(best, over=likeliest), IMPOSSIBLE, logits)
        if self.top_p is not None:
            ordered = nm.sort(nm.softmax(logits, over=W), W, descending=True)
            inside = nm.cumsum(ordered, W, exclusive=True) < self.top_p
            least = nm.min(nm.where(inside, ordered, 1.0), over=W)
            logits = nm.where(nm.softmax(logits, over=W) < least, IMPOSSIBLE, logits)
        return nm.random.categorical(nm.random.fold_in(self.key, step), logits, W)


def _decode(task: DecodingTask, choose: ChooseTokens) -> dict[str, nm.Tensor]:
    """Run the steps in one loop; choose maps logits, their vocabulary and the step to tokens."""
    rows, T, end = task.first.shape, task.T, task.end
    first = {
        "step": nm.zeros([], "int32"),
        "tokens": task.first,
        "ended": nm.full(rows, False, "bool"),
        "scores": nm.zeros(rows),
        "sequences": nm.zeros([*rows, T], "int32"),
        "cache": task.cache,
    }

    def unfinished(carry: dict[str, Any]) -> nm.Tensor:
        before_last = carry["step"] < T.size
        return before_last if end is None else before_last & ~nm.all(carry["ended"])

    def decode_step(carry: dict[str, Any]) -> dict[str, Any]:
        step, ended = carry["step"], carry["ended"]
        logits, W, cache = task.score(carry["tokens"], carry["cache"])
        tokens = nm.where(ended, 0, choose(logits, W, step))
        score = nm.sum(nm.log_softmax(logits, over=W) * nm.one_hot(tokens, W), over=W)
        return {
            "step": step + 1,
            "tokens": tokens,
            "ended": ended if end is None else ended | nm.equal(tokens, end),
            "scores": carry["scores"] + nm.where(ended, 0.0, score),
            "sequences": nm.where(nm.equal(nm.range(T), step), tokens, carry["sequences"]),
            "cache": cache,
        }

    last = nm.while_loop(unfinished, decode_step, first)
    return {"sequences": last["sequences"], "scores": last["scores"], "steps": last["step"]}
