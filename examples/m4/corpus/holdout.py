"""Holding out: the same English strings for dev and test in every language, none left in train."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

Pair = tuple[str, str]
Pairs = dict[str, list[Pair]]


class _Letters(dict):
    """A str.translate table that drops punctuation, symbols, spaces and control characters."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if unicodedata.category(chr(code))[0] in "PSZC" else code
        return self[code]


_LETTERS = _Letters()


def fold(text: str) -> str:
    """Remove case, punctuation and spaces, to compare texts of train and test.

    >>> fold("Sign in, please!") == fold("sign-in please")
    True
    """
    return text.casefold().translate(_LETTERS)


def digest(text: str) -> str:
    """Hash a text; hashes order texts as if at random, the same in every process."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def hold_out(
    pairs: Mapping[str, Sequence[Pair]], *, dev: int, test: int, words: tuple[int, int] = (3, 25)
) -> tuple[Pairs, Pairs, Pairs]:
    """Split the pairs of each language into train, dev and test.

    Held out are English strings that most languages have, with a number of words between the two
    given. No language keeps a held-out English string in its train pairs, nor a source that
    translates one.
    """
    chosen = _choose(pairs, dev + test, words)
    dev_share = len(chosen) * dev // max(1, dev + test)
    places = {key: "dev" if index < dev_share else "test" for index, key in enumerate(chosen)}
    train: Pairs = {}
    held: dict[str, Pairs] = {"dev": {}, "test": {}}
    for language, all_pairs in pairs.items():
        keys = [fold(english) for _, english in all_pairs]
        seen: set[str] = set()
        sources: set[str] = set()
        for key, pair in zip(keys, all_pairs, strict=True):
            if key in places:
                sources.add(fold(pair[0]))
                if key not in seen:
                    seen.add(key)
                    held[places[key]].setdefault(language, []).append(pair)
        train[language] = [
            pair
            for key, pair in zip(keys, all_pairs, strict=True)
            if key not in places and fold(pair[0]) not in sources
        ]
    return train, held["dev"], held["test"]


def overlap(train: Mapping[str, Sequence[Pair]], held: Mapping[str, Sequence[Pair]]) -> int:
    """Count the train pairs, of any language, whose English side is held out."""
    keys = {fold(english) for pairs in held.values() for _, english in pairs}
    known: dict[str, bool] = {}
    for pairs in train.values():
        for _, english in pairs:
            if english not in known:
                known[english] = fold(english) in keys
    return sum(known[english] for pairs in train.values() for _, english in pairs)


def _choose(pairs: Mapping[str, Sequence[Pair]], count: int, words: tuple[int, int]) -> list[str]:
    """Choose folded English strings to hold out, at random from those that most languages have.

    Few of them start alike, so that what is held out is not all "Republic of ...".
    """
    languages: Counter[str] = Counter()
    beginnings: dict[str, str] = {}
    for all_pairs in pairs.values():
        here = {}
        for _, english in all_pairs:
            if words[0] <= len(split := english.split()) <= words[1]:
                here[fold(english)] = fold(" ".join(split[:2]))
        languages.update(here.keys())
        beginnings |= here
    orders = {key: digest(key) for key in languages}
    alike: Counter[str] = Counter()
    pool = []
    for key in sorted(languages, key=lambda key: (-languages[key], orders[key])):
        alike[beginnings[key]] += 1
        if alike[beginnings[key]] <= max(1, count // 50):
            pool.append(key)
    return sorted(pool[: 3 * count], key=orders.__getitem__)[:count]
