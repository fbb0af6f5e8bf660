"""What decoding methods share: the task they are given, and hypotheses in another order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import namedmesh as nm
from namedmesh.layers.mistakes import Mistake, raise_mistakes
from namedmesh.signature.nest import flatten, unflatten

IMPOSSIBLE = -1e9  # the score of what cannot be chosen
StepFunction = Callable[[nm.Tensor, Any], tuple[nm.Tensor, Any]]


@dataclass(frozen=True)
class DecodingTask:
    """What `decode` hands to its method.

    Attributes:
        step: Maps the last token of each sequence and the cache to logits and the next cache.
        cache: The cache before the first step.
        first: The tokens that the sequences follow, int32.
        T: The dimension of steps.
        end: The token that ends a sequence, or None.
    """

    step: StepFunction
    cache: Any
    first: nm.Tensor
    T: nm.Dimension
    end: int | None

    def score(self, tokens: nm.Tensor, cache: Any) -> tuple[nm.Tensor, nm.Dimension, Any]:
        """Score what follows the tokens of one step."""
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
            check_tokens("decode", W, end=self.end)
        return nm.cast(nm.transpose(logits, [*tokens.shape, W]), "float32"), W, cache


def reorder(structure: Any, parent: nm.Tensor, N: nm.Dimension) -> Any:
    """Give each hypothesis what another one had."""
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
