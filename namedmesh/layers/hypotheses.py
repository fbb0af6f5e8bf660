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
        flat: Whether the hypotheses of a sentence share one cache; see `FlatPast`.
    """

    G: nm.Dimension
    N: nm.Dimension
    T: nm.Dimension
    W: nm.Dimension
    slot: nm.Dimension
    flat: bool

    def start(self) -> dict[str, Any]:
        """Return the cache before the first step."""
        ...

    def __call__(
        self,
        tokens: nm.Tensor,
        step: nm.Tensor,
        cache: dict[str, Any],
        mask: nm.Tensor,
        ended: nm.Tensor | None = None,
    ) -> tuple[nm.Tensor, dict[str, Any]]:
        """Return the scores of what follows tokens (GNW, float32), and the new cache."""
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
