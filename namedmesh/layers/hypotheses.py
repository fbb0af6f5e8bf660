"""What beam search and sampling ask of a decoder."""

from __future__ import annotations

from typing import Any, Protocol

import namedmesh as nm
from namedmesh.layers.mistakes import Mistake, raise_mistakes

IMPOSSIBLE = -1e9  # the score of what cannot be chosen


class TokenDecoder(Protocol):
    """Scores the next token of several hypotheses (N) of each sentence (G), step by step.

    `Decoder` is one; any object with these attributes and methods can be searched.

    Attributes:
        G: The dimension of sentences.
        N: The dimension of a sentence's hypotheses.
        T: The dimension of steps.
        W: The dimension of the vocabulary.
        slot: The dimension of hypotheses in the cache: N itself unless flat.
        flat: Whether the hypotheses of a sentence share one cache; see `Decoder`.

    Example:
        A model that prefers higher tokens, whatever came before:

        >>> from namedmesh.layers import greedy
        >>> class Counter:
        ...     G, N, T, W = nm.dims("group=1 hypothesis=1 step=3 word=4")
        ...     slot, flat = N, False
        ...     def start(self):
        ...         return {}
        ...     def __call__(self, tokens, step, cache, mask, ended=None):
        ...         scores = nm.cast(nm.range(self.W), "float32")
        ...         return nm.broadcast(scores, [self.G, self.N, self.W]), cache
        >>> program = nm.trace(lambda: greedy(Counter())["sequences"])
        >>> program.evaluate({})[1].numpy().tolist()
        [[[3, 3, 3]]]
    """

    G: nm.Dimension
    N: nm.Dimension
    T: nm.Dimension
    W: nm.Dimension
    slot: nm.Dimension
    flat: bool

    def start(self) -> dict[str, Any]:
        """Return the cache before the first step.

        Returns:
            Tensors by any names.
        """
        ...

    def __call__(
        self,
        tokens: nm.Tensor,
        step: nm.Tensor,
        cache: dict[str, Any],
        mask: nm.Tensor,
        ended: nm.Tensor | None = None,
    ) -> tuple[nm.Tensor, dict[str, Any]]:
        """Score what follows the tokens of one step.

        Args:
            tokens: The last token of each hypothesis, GN int32.
            step: The step's number, int32.
            cache: The cache so far.
            mask: Which steps (and slots, when flat) count, bool.
            ended: Which hypotheses have ended, GN bool, or None.

        Returns:
            Scores, GNW float32, and the new cache.
        """
        ...


def check_tokens(owner: str, vocab: nm.Dimension, **tokens: int) -> None:
    """Check that tokens belong to a vocabulary of at least two.

    Args:
        owner: The function whose arguments they are.
        vocab: The vocabulary's dimension.
        tokens: The tokens by name.

    Raises:
        NamedMeshError: If any is not in the vocabulary; all are listed.

    Example:
        >>> check_tokens("greedy", nm.Dimension("vocab", 10), end=1, start=0)
    """
    mistakes: list[Mistake] = []
    for name, token in tokens.items():
        if not isinstance(token, int) or not 0 <= token < vocab.size or vocab.size < 2:
            problem = f"{owner}: {name}={token!r} is not a token of {vocab}"
            mistakes.append((problem, f"pass 0 to {vocab.size - 1}"))
    raise_mistakes(owner, mistakes)
