"""A smaller corpus with as much different English as possible: fewer translations of each text."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from dataclasses import dataclass

from examples.m4.corpus.debian.records import Group

_SCALE = 1 << 53


@dataclass(frozen=True)
class Thinning:
    """The number of translations of each English text to keep.

    Attributes:
        most: So many of each text.
        share: One more of this share of the texts.
        counts: The pairs of each language: those of small languages are more often kept.
    """

    most: int
    share: float
    counts: Counter[str]

    def select(self, group: Group) -> list[tuple[str, str]]:
        """Select the pairs of a group that are kept, in order; the same in every run."""
        english, pairs = group
        most = self.most + (_uniform(english) < self.share)
        if len(pairs) <= most:
            return pairs
        # Drawn without replacement, each in proportion to its weight.
        order = sorted(
            pairs,
            key=lambda pair: math.log(_uniform(english, *pair)) * self.counts[pair[0]] ** 0.5,
            reverse=True,
        )
        return sorted(order[:most])


def thin_to(pairs: int, sizes: Counter[int], counts: Counter[str]) -> Thinning:
    """Find how many translations of each text make so many pairs.

    Args:
        pairs: The pairs to keep, about.
        sizes: How many texts have how many translations.
        counts: The pairs of each language.

    Returns:
        The thinning.
    """
    most, kept = 0, 0
    while most < max(sizes, default=0):
        more = sum(texts for size, texts in sizes.items() if size > most)
        if kept + more > pairs:
            return Thinning(most, (pairs - kept) / more, counts)
        most, kept = most + 1, kept + more
    return Thinning(most, 0.0, counts)


def _uniform(*texts: str) -> float:
    """Return a number between 0 and 1 that the texts decide."""
    digest = hashlib.blake2b("\t".join(texts).encode(), digest_size=8).digest()
    return ((int.from_bytes(digest) >> 11) + 0.5) / _SCALE
