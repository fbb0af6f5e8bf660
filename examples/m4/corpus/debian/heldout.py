"""Held-out data: English sentences by a rule, the same whatever languages and sizes are asked.

A sentence of 5 to 30 words is held out if its hash says so, one in 32. The sentences that most
languages have are the dev and test sets; none of the others is trained on either. Another corpus
can name what is held out instead.
"""

from __future__ import annotations

import os
import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from examples.m4.corpus.debian.buckets import hash_key, normalize
from examples.m4.corpus.debian.records import Group
from examples.m4.corpus.holdout import Pairs
from examples.m4.corpus.languages import language_code
from examples.m4.corpus.lines import read_pairs
from examples.m4.corpus.parts import SPLITS, find_parts
from examples.m4.corpus.report import Report
from namedmesh.errors.errors import NamedMeshError

DEV, TEST = 250, 1000
WORDS = 5, 30
ONE_IN = 32
ALIKE = 0.5  # of a sentence's 4-grams, that make it a near-duplicate


def is_held_out(key: str) -> bool:
    """Return whether the rule holds out a normalized text."""
    words = key.count(" ") + 1
    return WORDS[0] <= words <= WORDS[1] and int(hash_key(key), 16) % ONE_IN == 0


@dataclass
class HeldOut:
    """The pairs that are held out.

    Attributes:
        dev: The dev pairs of each language.
        test: The test pairs of each language.
        by_rule: Whether all other sentences that the rule names are left out as well.
        reserved: Hashes of further normalized sentences that nobody may train on.
    """

    dev: Pairs
    test: Pairs
    by_rule: bool
    reserved: frozenset[str]
    _keys: set[str] = field(default_factory=set, repr=False)
    _sources: set[tuple[str, str]] = field(default_factory=set, repr=False)
    _grams: dict[str, list[int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for languages in (self.dev, self.test):
            for language, pairs in languages.items():
                self._keys.update(normalize(english) for _, english in pairs)
                self._sources.update((language, source.casefold()) for source, _ in pairs)
        for number, key in enumerate(sorted(self._keys)):
            for gram in {*_four_grams(key)}:
                self._grams.setdefault(gram, []).append(number)

    def select_train(self, group: Group) -> list[tuple[str, str]]:
        """Select the pairs of a group that may be trained on."""
        english, pairs = group
        key = normalize(english)
        if (
            key in self._keys
            or (self.by_rule and is_held_out(key))
            or hash_key(key) in self.reserved
            or self.is_near(key)
        ):
            return []
        return [
            (language, source)
            for language, source in pairs
            if (language, source.casefold()) not in self._sources
        ]

    def is_near(self, key: str) -> bool:
        """Check whether a text shares half of its word 4-grams with a held-out sentence."""
        grams = [*_four_grams(key)]
        shared: Counter[int] = Counter()
        for gram in grams:
            shared.update(self._grams.get(gram, ()))
        return bool(shared) and max(shared.values()) >= ALIKE * len(grams)


def hold_out_by_rule(groups: Iterable[Group], reserved: frozenset[str]) -> HeldOut:
    """Choose dev and test among the sentences that the rule holds out: those of most languages.

    Args:
        groups: Every group that the rule holds out; others do no harm.
        reserved: Hashes of sentences that are in no set at all.

    Returns:
        What is held out; of several translations of a sentence one.
    """
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for english, pairs in groups:
        key = normalize(english)
        if is_held_out(key) and hash_key(key) not in reserved:
            for language, source in pairs:
                found.setdefault(key, {}).setdefault(language, (source, english))
    order = sorted(found, key=lambda key: (-len(found[key]), hash_key(key)))
    chosen = sorted(order[: DEV + TEST], key=lambda key: hash_key(key)[::-1])
    dev = len(chosen) * DEV // (DEV + TEST)
    parts = [
        _by_language(found[key] for key in sorted(some)) for some in (chosen[:dev], chosen[dev:])
    ]
    return HeldOut(parts[0], parts[1], True, reserved)


def hold_out_as_in(root: str | os.PathLike, reserved: frozenset[str]) -> HeldOut:
    """Read what another corpus holds out: its dev and test pairs, which are ours then."""
    root, report, known = pathlib.Path(root), Report(str(root)), dict[str, str]()
    splits: dict[str, Pairs] = {split: {} for split in SPLITS}
    for part in find_parts(root, None, ["main"]):
        for code, path in part.files if part.split in ("dev", "test") else ():
            language = language_code(code, any=True) or code
            pairs = read_pairs(path, path.name, report, 2000, known)
            splits[part.split].setdefault(language, []).extend(pairs)
    if not splits["test"]:
        raise NamedMeshError(
            f"the corpus {str(root)!r} holds nothing out", fix="give one with dev/ and test/"
        )
    return HeldOut(splits["dev"], splits["test"], False, reserved)


def _by_language(sentences: Iterable[dict[str, tuple[str, str]]]) -> Pairs:
    pairs: Pairs = {}
    for languages in sentences:
        for language, pair in languages.items():
            pairs.setdefault(language, []).append(pair)
    return dict(sorted(pairs.items()))


def _four_grams(key: str) -> Iterator[str]:
    words = key.split()
    return (" ".join(words[place : place + 4]) for place in range(len(words) - 3))
