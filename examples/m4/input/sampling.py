"""The order of examples: languages by temperature, every example once before any repeats."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from namedmesh.errors.errors import NamedMeshError, check_size

REPEATS = ("pair", "english")  # what comes once before any of it comes back
_ONE = 1 << 32  # an example, in the fixed-point numbers of the quotas


def shares(counts: Mapping[str, int], temperature: float) -> dict[str, float]:
    """Compute the share of each language, proportional to (n_l / N) ** (1 / temperature).

    >>> shares({"de": 900, "gd": 100}, 1)
    {'de': 0.9, 'gd': 0.1}
    >>> shares({"de": 900, "gd": 100}, float("inf"))
    {'de': 0.5, 'gd': 0.5}
    """
    if (
        isinstance(temperature, bool)
        or not isinstance(temperature, int | float)
        or not temperature > 0
    ):
        raise NamedMeshError(
            f"the sampling temperature is {temperature!r}",
            fix="give a positive number: 1 is proportional to the data, 5 is usual, and infinity "
            "gives all languages the same share",
        )
    total = sum(counts.values())
    weights = {
        name: (count / total) ** (1 / temperature) if count else 0.0
        for name, count in counts.items()
    }
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def permutation(size: int, *key: int | str) -> np.ndarray:
    """Make an order that depends on the key alone, on any machine and with any numpy."""
    return np.argsort(random_bits(size, *key), kind="stable")


def walk(pool: np.ndarray, first: int, last: int, order: Callable[[int], np.ndarray]) -> np.ndarray:
    """Take items first to last of an endless walk: the pool in order(0), then in order(1), ..."""
    parts = [pool[:0]]
    while first < last:
        epoch, start = divmod(first, len(pool))
        parts.append(pool[order(epoch)[start : start + last - first]])
        first += len(parts[-1])
    return np.concatenate(parts)


class Sampler:
    """The endless stream of training examples, in chunks that can each be computed by themselves.

    Language l has the quota q_l = size * p_l of each chunk, in general a fraction. Its cursor
    before chunk k is

        cursor_l(k) = floor(k * q_l + phase_l),    0 <= phase_l < 1,

    so chunk k has its items cursor_l(k) to cursor_l(k + 1), either floor(q_l) or ceil(q_l) of them.
    This carries the fractions exactly: after k chunks no language is a whole example away from
    k * q_l, and a rare language with q_l = 0.01 comes in every hundredth chunk. The phase, drawn by
    seed and language, decides in which, so that rare languages do not all come at once. Quotas are
    fixed-point numbers, so that nothing drifts however large k is. A chunk has about size examples;
    the difference is at most the number of languages.

    The cursor walks through a permutation of the language's examples drawn by (seed, language,
    epoch), then through another: every example once before any repeats. The languages of a chunk
    are shuffled by (seed, chunk number); the examples of each keep the order of the walk, which is
    random already.
    """

    def __init__(
        self, pools: Mapping[str, np.ndarray], *, seed: int, temperature: float, size: int
    ):
        self.pools = {name: np.asarray(pool) for name, pool in sorted(pools.items()) if len(pool)}
        if not self.pools:
            raise NamedMeshError(
                "there is no example to sample from", fix="give at least one language with one pair"
            )
        self.seed, self.size = operator.index(seed), check_size(size, "a chunk of examples")
        self.shares = shares({name: len(pool) for name, pool in self.pools.items()}, temperature)
        self._quotas = {
            name: max(1, round(self.size * share * _ONE)) for name, share in self.shares.items()
        }
        self._phases = {
            name: int(random_bits(1, self.seed, "phase", name)[0]) % _ONE for name in self.pools
        }
        self._orders: dict[str, tuple[int, np.ndarray]] = {}

    def cursors(self, chunk: int) -> dict[str, int]:
        """Count the examples of each language before a chunk."""
        return {
            name: (chunk * self._quotas[name] + self._phases[name]) // _ONE for name in self.pools
        }

    def epochs(self, chunk: int) -> dict[str, float]:
        """Compute how many epochs of each language come before a chunk."""
        return {
            name: cursor / len(self.pools[name]) for name, cursor in self.cursors(chunk).items()
        }

    def chunk(self, number: int) -> np.ndarray:
        """Compute the examples of one chunk, in order."""
        first, last = self.cursors(number), self.cursors(number + 1)
        walks = [
            walk(pool, first[name], last[name], partial(self._order, name))
            for name, pool in self.pools.items()
        ]
        owners = np.repeat(np.arange(len(walks)), [len(one) for one in walks])
        places = permutation(len(owners), self.seed, "chunk", number)
        examples = np.empty(len(owners), np.int64)
        examples[places[np.lexsort((places, owners))]] = np.concatenate(walks)
        return examples

    def _order(self, name: str, epoch: int) -> np.ndarray:
        """Return the order of a language in one of its epochs; cache the latest."""
        if self._orders.get(name, (-1,))[0] != epoch:
            self._orders[name] = (
                epoch,
                permutation(len(self.pools[name]), self.seed, "order", name, epoch),
            )
        return self._orders[name][1]


def random_bits(size: int, *key: int | str) -> np.ndarray:
    """Draw 64 bits for each of so many items, by the key alone."""
    words = np.frombuffer(
        hashlib.blake2b(json.dumps(key).encode(), digest_size=16).digest(), dtype="<u8"
    )
    return np.random.Philox(key=words.astype(np.uint64)).random_raw(size)
