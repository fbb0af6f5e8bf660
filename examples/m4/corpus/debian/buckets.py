"""Buckets: all translations of a text in one place, whichever packages they come from.

A text goes to the bucket that its hash names, so that each bucket can be read into memory by
itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from examples.m4.corpus.debian.records import Group, parse_group
from examples.m4.corpus.messages import OTHER_SCRIPT, has_usual_length

BUCKETS = 64
_WORD = re.compile(r"[^a-z]+")
_STEPS = 20  # of the logarithm of a ratio of lengths, in a histogram


def normalize(english: str) -> str:
    """Return the words of an English text in lower case: equal texts have equal words.

    >>> normalize("Can't open file '%s'!")
    'can t open file s'
    """
    return _WORD.sub(" ", english.lower()).strip()


def hash_key(key: str) -> str:
    """Return the first 16 hexadecimal digits of a normalized text's SHA-256."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Habits:
    """The usual lengths and scripts of a language.

    Attributes:
        ratio: The median length of its texts, relative to English.
        other_script: Whether nearly all of it is in a script that is not Latin.
    """

    ratio: float
    other_script: bool

    def allows(self, source: str, english: str) -> bool:
        """Check that a translation is as long as usual, within a factor of 3, and in its script.

        Short texts may be six times off.
        """
        if not has_usual_length(source, english, self.ratio):
            return False
        return not self.other_script or bool(OTHER_SCRIPT.search(source))


def fill_buckets(groups: Iterable[Group], folder: pathlib.Path) -> dict[str, Habits]:
    """Write groups to the buckets of a folder; return what is usual in each language."""
    ratios: dict[str, Counter[int]] = {}
    other: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(open(folder / f"{number:02}.tsv", "w", encoding="utf-8"))
            for number in range(BUCKETS)
        ]
        for english, pairs in groups:
            number = int(hash_key(normalize(english))[:4], 16) % BUCKETS
            cells = [english]
            for language, source in pairs:
                cells += (language, source)
                bin_of_ratio = round(_STEPS * math.log(len(source) / len(english)))
                ratios.setdefault(language, Counter())[bin_of_ratio] += 1
                if not source.isascii() and OTHER_SCRIPT.search(source):
                    other[language] += 1
            files[number].write("\t".join(cells) + "\n")
    return {
        language: Habits(
            math.exp(_median(counts) / _STEPS),
            other[language] >= 0.8 * counts.total(),
        )
        for language, counts in ratios.items()
    }


def _median(counts: Counter[int]) -> int:
    """Return the median of values that are counted."""
    seen = 0
    for value in sorted(counts):
        seen += counts[value]
        if 2 * seen >= counts.total():
            break
    return value


def read_bucket(path: pathlib.Path) -> Iterator[Group]:
    """Iterate over the groups of a bucket's file."""
    with open(path, encoding="utf-8", newline="\n") as file:
        yield from map(parse_group, file)


def merge_bucket(path: pathlib.Path, habits: dict[str, Habits]) -> None:
    """Merge the groups of a bucket, each text once and each of its translations once, in place.

    Args:
        path: The bucket's file.
        habits: What is usual in each language; what is not is left out.
    """
    merged: dict[str, dict[str, dict[str, str]]] = {}
    for english, pairs in read_bucket(path):
        languages = merged.setdefault(english, {})
        for language, source in pairs:
            if habits[language].allows(source, english):
                languages.setdefault(language, {}).setdefault(source.casefold(), source)
    write_bucket(
        path,
        (
            (english, sorted(_flatten(merged[english])))
            for english in sorted(merged, key=lambda english: (normalize(english), english))
        ),
    )


def write_bucket(path: pathlib.Path, groups: Iterable[Group]) -> None:
    """Write the groups of a bucket that have a pair, in place of those that are there."""
    lines = [
        "\t".join([english, *itertools.chain.from_iterable(pairs)]) + "\n"
        for english, pairs in groups
        if pairs
    ]
    path.write_text("".join(lines), encoding="utf-8")


def _flatten(languages: dict[str, dict[str, str]]) -> Iterator[tuple[str, str]]:
    return ((code, source) for code, sources in languages.items() for source in sources.values())
