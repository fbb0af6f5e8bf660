"""A corpus as a directory: train/<lang>.tsv, dev/<lang>.tsv and test/<lang>.tsv.

Each line of a file is one pair, `source<TAB>English`.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

from examples.m4.corpus.folders import fresh_directory, write_pairs
from examples.m4.corpus.holdout import Pairs, fold, hold_out
from examples.m4.corpus.lines import read_pairs
from examples.m4.corpus.parts import ALL, SHAPE, SPLITS, find_parts
from examples.m4.corpus.report import Report
from namedmesh.errors.errors import NamedMeshError


@dataclass
class Corpus:
    """Pairs (source, English) of every language; tests are by set, train and dev of all sets."""

    train: Pairs
    dev: Pairs
    tests: dict[str, Pairs]
    report: Report

    @property
    def languages(self) -> list[str]:
        """The languages, the one with the most train pairs first."""
        return sorted(self.train, key=lambda language: (-len(self.train[language]), language))


def read_corpus(
    root: str | os.PathLike,
    *,
    languages: Sequence[str] | None = None,
    sets: Sequence[str] | None = None,
    longest: int = 2000,
) -> Corpus:
    """Read the corpus at root, all or some languages and sets; the set at the root is "main".

    A directory of the root that has files but no train, dev or test is a test set. If the root has
    only files, dev and test are held out of them, the same whichever languages are asked for. Lines
    that are not a pair or have a side of more than `longest` characters are left out and reported,
    and so are languages without train pairs.
    """
    root = pathlib.Path(root)
    corpus = Corpus({}, {}, {}, Report(str(root)))
    known: dict[str, str] = {}
    read: dict[tuple[str, str], Pairs] = {}
    for part in find_parts(root, languages, sets):
        if not part.folder.is_dir():
            corpus.report.fault("no directory", part.folder.relative_to(root).as_posix())
            continue
        pairs: Pairs = {}
        for language, path in part.every if part.split == ALL else part.files:
            good = read_pairs(
                path, path.relative_to(root).as_posix(), corpus.report, longest, known
            )
            pairs.setdefault(language, []).extend(good)
        for split, some in (
            _split_pairs(pairs).items() if part.split == ALL else [(part.split, pairs)]
        ):
            read[part.set, split] = {
                code: good for code, good in some.items() if languages is None or code in languages
            }
    trained = {
        language
        for (_, split), pairs in read.items()
        if split == "train"
        for language, good in pairs.items()
        if good
    }
    if not trained:
        faults = corpus.report.fault_lines()
        raise NamedMeshError(
            f"the corpus {str(root)!r} has no language with a good train line", *faults, fix=SHAPE
        )
    for (name, split), pairs in read.items():
        _add(corpus, name, split, pairs, trained)
    return corpus


def write_corpus(corpus: Corpus, root: str | os.PathLike) -> None:
    """Write a corpus for read_corpus; test sets other than "main" become directories."""
    with fresh_directory(root) as folder:
        tests = {"test" if name == "main" else name: pairs for name, pairs in corpus.tests.items()}
        write_pairs(folder, {"train": corpus.train, "dev": corpus.dev} | tests)


def _split_pairs(pairs: Pairs) -> dict[str, Pairs]:
    """Split a set: at most a tenth of the English strings for dev, and a fifth for test."""
    strings = len({fold(english) for good in pairs.values() for _, english in good})
    return dict(
        zip(
            SPLITS,
            hold_out(pairs, dev=min(100, strings // 10), test=min(200, strings // 5)),
            strict=True,
        )
    )


def _add(corpus: Corpus, name: str, split: str, pairs: Pairs, trained: set[str]) -> None:
    """Add a split to a corpus, without the languages that have no train pairs."""
    for language, good in pairs.items():
        if good and language not in trained:
            corpus.report.fault("no train pairs for a language", f"{name} {split} {language}")
    kept = {language: good for language, good in pairs.items() if good and language in trained}
    corpus.report.sizes[name, split] = {language: len(good) for language, good in kept.items()}
    if split == "test":
        corpus.tests[name] = kept
        return
    into = corpus.train if split == "train" else corpus.dev
    for language, good in kept.items():
        into.setdefault(language, []).extend(good)
