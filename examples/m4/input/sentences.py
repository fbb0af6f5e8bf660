"""The order of examples by their English: every sentence once before any comes back."""

from __future__ import annotations

import operator

import numpy as np

from examples.m4.input.sampling import permutation, random_bits, shares, walk
from namedmesh.errors.errors import NamedMeshError, check_size

_SMALLEST, _LARGEST = 1 << 3, 1 << 22  # weights of an example
_GOLDEN = 0x9E3779B97F4A7C15  # of 64 bits: steps that fall evenly, however many there are
_FITS = 40  # rounds in which the weights of languages are fitted


class SentenceSampler:
    """An endless stream of examples: English sentences in turn, each with one of its languages.

    Visit v is a permutation of all sentences, drawn by (seed, v). A sentence takes one of its
    examples by weight: at

        (phase + v * golden ratio) mod 1

    of the sum of their weights, so that its languages come evenly, the phase drawn by seed and
    sentence. The weight of an example is its language's, fitted so that languages have their shares
    by temperature as far as their sentences allow: a language that few sentences have can be chosen
    whenever they come, and no more often.

    Args:
        language: The number of each example's language.
        english: The number of each example's English sentence.
        examples: The examples to sample from.
        seed: The seed.
        temperature: Of the shares of languages.
        size: The examples of a chunk.
    """

    def __init__(
        self,
        language: np.ndarray,
        english: np.ndarray,
        examples: np.ndarray,
        *,
        seed: int,
        temperature: float,
        size: int,
    ):
        if not len(examples):
            raise NamedMeshError(
                "there is no example to sample from", fix="give at least one language with one pair"
            )
        self.seed, self.size = operator.index(seed), check_size(size, "a chunk of examples")
        order = np.argsort(english[examples], kind="stable")
        self._examples = np.asarray(examples)[order]
        changes = np.diff(english[self._examples], prepend=-1) != 0
        self._first = np.flatnonzero(changes)
        codes, owners = np.unique(language[self._examples], return_inverse=True)
        counts = np.bincount(owners)
        names = {str(code): int(count) for code, count in zip(codes, counts, strict=True)}
        wanted = np.array([*shares(names, temperature).values()])
        weights = fit_weights(owners, np.cumsum(changes) - 1, wanted)
        self._sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(weights[owners])])
        self._ends = np.append(self._first[1:], len(self._examples))
        self._phases = random_bits(len(self._first), self.seed, "phase")
        self._visit: tuple[int, np.ndarray] = -1, self._first

    @property
    def sentences(self) -> int:
        """The number of different English sentences."""
        return len(self._first)

    def chunk(self, number: int) -> np.ndarray:
        """Compute the examples of one chunk, in order."""
        first = number * self.size
        places = np.arange(first, first + self.size)
        sentences = walk(np.arange(self.sentences), first, first + self.size, self._order)
        visits = (places // self.sentences).astype(np.uint64)
        return self._choose(sentences, visits)

    def _order(self, visit: int) -> np.ndarray:
        """Return the order of sentences in a visit; the latest is kept, for the next chunk."""
        if self._visit[0] != visit:
            self._visit = visit, permutation(self.sentences, self.seed, "sentences", visit)
        return self._visit[1]

    def _choose(self, sentences: np.ndarray, visits: np.ndarray) -> np.ndarray:
        """Choose an example of each sentence at a visit."""
        low = self._sums[self._first[sentences]]
        high = self._sums[self._ends[sentences]]
        with np.errstate(over="ignore"):  # modulo 2**64 is what is wanted
            iterations = self._phases[sentences] + visits * np.uint64(_GOLDEN)
        # A share of the sum of weights in integers: 32 bits of the iteration times less than 2**32.
        parts = (iterations >> np.uint64(32)) * (high - low).astype(np.uint64) >> np.uint64(32)
        places = np.searchsorted(self._sums, low + parts.astype(np.int64), side="right") - 1
        return self._examples[places]


def fit_weights(owners: np.ndarray, sentences: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Fit a weight for each language, so that languages are drawn as often as wanted.

    Every sentence draws one of its examples in proportion to their weights. A language in few
    sentences may be drawn less often than wanted, even if it is drawn whenever it can be, and one
    that many sentences have alone more often. This is Sinkhorn's algorithm with bounds: with wide
    ones the differences from the shares wanted have the least sum that any choice can have.

    Args:
        owners: The number of each example's language.
        sentences: The number of each example's sentence.
        wanted: The share that each language is to have.

    Returns:
        The weight of each language, from 2**3 to 2**22.
    """
    count = sentences[-1] + 1
    weights = np.full(len(wanted), (_SMALLEST * _LARGEST) ** 0.5)
    for _ in range(_FITS):
        each = weights[owners]
        sums = np.bincount(sentences, each)
        drawn = np.bincount(owners, each / sums[sentences], len(wanted)) / count
        weights = np.clip(weights * np.clip(wanted / drawn, 0.2, 5.0), _SMALLEST, _LARGEST)
    return np.round(weights).astype(np.int64)
