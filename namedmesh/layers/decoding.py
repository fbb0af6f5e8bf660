"""Decoding with any model that scores the next token from the last one and a cache."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Optional

import namedmesh as nm
from namedmesh.ir.operands import as_tuple
from namedmesh.layers.mistakes import Count, Mistake, Within, check_option, raise_mistakes
from namedmesh.signature.nest import flatten, unflatten

IMPOSSIBLE = -1e9  # the score of what cannot be chosen
Temperature = Annotated[
    float, Within(lambda value: 1e-4 <= value <= 1e4, "a temperature from 0.0001 to 10,000")
]
Probability = Annotated[float, Within(lambda value: 0 < value <= 1, "a probability above 0")]
_SAMPLE_OPTIONS: dict[str, Any] = {
    "temperature": Temperature,
    "top_k": Optional[Count],  # noqa: UP045 - Annotated has no |
    "top_p": Optional[Probability],  # noqa: UP045
}
StepFunction = Callable[[nm.Tensor, Any], tuple[nm.Tensor, Any]]


@dataclass(frozen=True)
class DecodingTask:
    """The arguments of `decode`, for its method; T is the dimension of steps."""

    step: StepFunction
    cache: Any
    first: nm.Tensor
    T: nm.Dimension
    end: int | Sequence[int] | None

    def is_end(self, tokens: nm.Tensor) -> nm.Tensor:
        """Return which tokens end a sequence."""
        ends = [nm.equal(tokens, end) for end in as_tuple(self.end)]
        return functools.reduce(nm.logical_or, ends)

    def score(self, tokens: nm.Tensor, cache: Any) -> tuple[nm.Tensor, nm.Dimension, Any]:
        """Return the scores of the tokens that follow, their vocabulary and the new cache."""
        results = self.step(tokens, cache)
        if not isinstance(results, tuple) or len(results) != 2:
            raise nm.NamedMeshError(
                f"decode: the step returned a {type(results).__name__}, not logits and a cache",
                fix="return (logits, cache)",
            )
        logits, cache = results
        rows, shape = {*tokens.shape}, {*getattr(logits, "shape", ())}
        if not rows <= shape or len(shape - rows) != 1:
            raise nm.NamedMeshError(
                "decode: the step's logits do not have the tokens' dimensions and a vocabulary",
                f"tokens: {tokens.shape}",
                f"logits: {getattr(logits, 'shape', logits)}",
                fix="return logits with one dimension more than the tokens",
            )
        (W,) = shape - rows
        if self.end is not None:
            for end in as_tuple(self.end):
                check_tokens("decode", W, end=end)
        return nm.cast(nm.transpose(logits, [*tokens.shape, W]), "float32"), W, cache


def reorder(structure: Any, parent: nm.Tensor, N: nm.Dimension) -> Any:
    """Give each hypothesis the state of its parent."""
    new = nm.Dimension(f"new_{N.name}", N.size)
    index = nm.rename(parent, N, new)

    def reorder_one(tensor: nm.Tensor) -> nm.Tensor:
        if not isinstance(tensor, nm.Tensor) or N not in tensor.shape:
            return tensor
        missing = [dim for dim in parent.shape if dim not in tensor.shape]
        if missing:
            raise nm.NamedMeshError(
                f"decode: a cache has {N}, but not {', '.join(map(str, missing))}",
                str(tensor),
                fix="give what differs between hypotheses every dimension of the tokens",
            )
        return nm.transpose(nm.rename(nm.gather(tensor, index, N), new, N), tensor.shape)

    return unflatten(structure, iter([reorder_one(leaf) for leaf in flatten(structure)]))


def check_tokens(owner: str, vocab: nm.Dimension, **tokens: int) -> None:
    """Check that tokens belong to a vocabulary of at least two."""
    mistakes: list[Mistake] = []
    for name, token in tokens.items():
        if not isinstance(token, int) or not 0 <= token < vocab.size or vocab.size < 2:
            problem = f"{owner}: {name}={token!r} is not a token of {vocab}"
            mistakes.append((problem, f"pass 0 to {vocab.size - 1}"))
    raise_mistakes(owner, mistakes)


DecodingMethod = Callable[[DecodingTask], dict[str, nm.Tensor]]
ChooseTokens = Callable[[nm.Tensor, nm.Dimension, nm.Tensor], nm.Tensor]


@dataclass(frozen=True)
class Greedy:
    """Take the likeliest token at every step; a method of `decode`.

    The `scores` are the log probabilities of the sequences.

    Example:
        >>> B, T, V = nm.dims("batch=1 step=3 vocab=4")
        >>> step = lambda tokens, cache: (nm.one_hot(tokens + 1, V), cache)
        >>> count = lambda first: decode(step, (), first, T, Greedy())["sequences"]
        >>> nm.evaluate(count, first=([B], [0])).tolist()
        [[1, 2, 3]]
    """

    def __call__(self, task: DecodingTask) -> dict[str, nm.Tensor]:
        """Decode a task of `decode`."""
        return _run_loop(task, lambda logits, W, step: nm.argmax(logits, W))


@dataclass(frozen=True)
class Sample:
    """Draw the tokens of each sequence at random; a method of `decode`.

    The `scores` are the log probabilities of the sequences under the model itself.

    Attributes:
        key: A random key.
        temperature: The divisor of logits: a number, or a tensor of one for all sequences or for
            each, which a step takes as an input.
        top_k: Draw from that many of the likeliest tokens only.
        top_p: Draw from the likeliest tokens of that total probability only: a number, or a tensor.

    Example:
        >>> B, T, V = nm.dims("batch=2 step=3 vocab=4")
        >>> step = lambda tokens, cache: (nm.one_hot(tokens, V), cache)
        >>> draw = lambda first: decode(step, (), first, T, Sample(nm.random.key(0), top_k=2))
        >>> nm.trace(draw, nm.spec([B], "int32")).outputs[0].shape
        [batch=2, step=3]
    """

    key: nm.Tensor
    temperature: Temperature | nm.Tensor = 1.0
    top_k: Count | None = None
    top_p: Probability | nm.Tensor | None = None

    def __post_init__(self) -> None:
        mistakes: list[Mistake] = []
        for name, hint in _SAMPLE_OPTIONS.items():
            value = getattr(self, name)
            if name == "top_k" or not (isinstance(value, nm.Tensor) and value.floating):
                mistakes += check_option("Sample: ", name, value, hint)
        raise_mistakes("Sample", mistakes)

    def __call__(self, task: DecodingTask) -> dict[str, nm.Tensor]:
        """Decode a task of `decode`."""
        return _run_loop(task, self.choose)

    def choose(self, logits: nm.Tensor, W: nm.Dimension, step: nm.Tensor) -> nm.Tensor:
        """Draw a token for each sequence, for a loop of your own.

        Args:
            logits: Scores of the tokens that may follow.
            W: Their dimension.
            step: The number of the step, which is drawn for; int32.
        """
        temperature = self.temperature
        if isinstance(temperature, nm.Tensor):  # what is colder than allowed takes the likeliest
            temperature = nm.maximum(nm.cast(temperature, "float32"), 1e-4)
        logits = logits * (1.0 / temperature)
        best, likeliest = logits, W
        if self.top_k is not None:
            if self.top_k > W.size:
                problem = f"Sample: top_k={self.top_k} of {W}"
                raise nm.NamedMeshError(problem, fix=f"pass 1 to {W.size}")
            likeliest = nm.Dimension("likeliest", self.top_k)
            best, _ = nm.top_k(logits, W, likeliest)
            logits = nm.where(logits < nm.min(best, over=likeliest), IMPOSSIBLE, logits)
        if self.top_p is not None:
            if likeliest is W:
                best = nm.sort(logits, W, descending=True)
            # Of the likeliest alone, in order: a split vocabulary is not gathered to be sorted.
            ordered = nm.exp(best - nm.logsumexp(logits, over=W))
            inside = nm.cumsum(ordered, likeliest, exclusive=True) < self.top_p
            least = nm.min(nm.where(inside, best, -IMPOSSIBLE), over=likeliest)
            logits = nm.where(logits < least, IMPOSSIBLE, logits)
        return nm.random.categorical(nm.random.fold_in(self.key, step), logits, W)


def decode(
    step: StepFunction,
    cache: Any,
    first: nm.Tensor,
    steps: nm.Dimension,
    method: DecodingMethod | None = None,
    *,
    end: int | Sequence[int] | None = None,
) -> dict[str, nm.Tensor]:
    """Write sequences token by token, as one loop that ends when every sequence has.

    The cache is what the step must know of the tokens before: nested tuples, lists and dicts of
    tensors, such as a `Cache` of attention or a recurrent state. A beam reorders the tensors that
    have its dimension of hypotheses.

    Args:
        step: Maps the last token of each sequence (the dimensions of first, int32) and the cache
            to logits (with the vocabulary's dimension besides) and the next cache.
        cache: The cache before the first step.
        first: The tokens that the sequences follow, int32.
        steps: The dimension of steps: the longest a sequence can get.
        method: `Greedy` by default, `Sample` or `Beam`.
        end: The token that ends a sequence, several such, or None if all have the same length.

    Returns:
        `sequences` (the dimensions of first, then steps; the end token included, zeros after it),
        their log probabilities `scores` (see the method), and the number of `steps` that were run.
        But for a beam, also the `log_probabilities` of each token, which the scores are sums of.

    Example:
        >>> B, T, V = nm.dims("batch=2 step=3 vocab=8")
        >>> def step(tokens, count):
        ...     logits = nm.cast(nm.equal(nm.range(V), count), "float32")
        ...     return nm.broadcast(logits, [B, V]), count + 1
        >>> count = lambda first: decode(step, 5, first, T)["sequences"]
        >>> nm.evaluate(count, first=([B], [0, 0])).tolist()
        [[5, 6, 7], [5, 6, 7]]
    """
    method = Greedy() if method is None else method
    mistakes: list[Mistake] = []
    if not callable(step):
        fix = "pass a function of the last tokens and the cache"
        mistakes.append((f"decode: step={step!r} is not a function", fix))
    if not isinstance(steps, nm.Dimension):
        fix = "pass a dimension, e.g. nm.Dimension('step', 64)"
        mistakes.append((f"decode: steps={steps!r} is not a Dimension", fix))
    elif not isinstance(first, nm.Tensor):
        mistakes.append((f"decode: first={first!r} is not a Tensor", "pass int32 tokens"))
    elif first.dtype != "int32" or steps.name in first.shape.names:
        problem = f"decode: first is {first.dtype}{first.shape}"
        mistakes.append((problem, f"pass int32 tokens without the dimension {steps.name}"))
    if not callable(method) or isinstance(method, type):
        fix = "pass Greedy(), Sample(key) or Beam(hypotheses)"
        mistakes.append((f"decode: method={method!r}", fix))
    raise_mistakes("decode", mistakes)
    return method(DecodingTask(step, cache, first, steps, end))


def _run_loop(task: DecodingTask, choose: ChooseTokens) -> dict[str, nm.Tensor]:
    """Run the steps in one loop; choose maps logits, their vocabulary and the step to tokens."""
    rows, T, end = task.first.shape, task.T, task.end
    first = {
        "step": nm.zeros([], "int32"),
        "tokens": task.first,
        "ended": nm.full(rows, False, "bool"),
        "scores": nm.zeros(rows),
        "sequences": nm.zeros([*rows, T], "int32"),
        "log_probabilities": nm.zeros([*rows, T]),
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
        score, here = nm.where(ended, 0.0, score), nm.equal(nm.range(T), step)
        return {
            "step": step + 1,
            "tokens": tokens,
            "ended": ended if end is None else ended | task.is_end(tokens),
            "scores": carry["scores"] + score,
            "sequences": nm.where(here, tokens, carry["sequences"]),
            "log_probabilities": nm.where(here, score, carry["log_probabilities"]),
            "cache": cache,
        }

    last = nm.while_loop(unfinished, decode_step, first)
    names = ("sequences", "scores", "log_probabilities")
    return {**{name: last[name] for name in names}, "steps": last["step"]}
