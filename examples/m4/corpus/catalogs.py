"""The default corpus: messages of programs in about 100 languages, from Python packages.

A message catalog maps English messages to translations; a pair is a translation and its English.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from examples.m4.corpus.archives import read_licence, read_wheel
from examples.m4.corpus.debian.heldout import HeldOut
from examples.m4.corpus.folders import fresh_directory, write_pairs
from examples.m4.corpus.holdout import Pair, Pairs, fold, hold_out
from examples.m4.corpus.messages import clean
from examples.m4.corpus.packages import MORE_PACKAGES, PACKAGES, Package, default_cache, fetch
from namedmesh.dims.errors import NamedMeshError

DEV, TEST = 100, 200
_DOWNLOADS = 4  # at the same time
FEWEST_TRAIN, FEWEST_TEST = 200, 10  # pairs that a language needs, or it is left out


def build_catalog_corpus(
    root: str | os.PathLike,
    *,
    packages: Sequence[Package] = PACKAGES,
    more: Sequence[Package] = MORE_PACKAGES,
    cache: str | os.PathLike | None = None,
    progress: Callable[[str], object] = print,
) -> None:
    """Write the corpus of the packages' catalogs to root; pip downloads what is not cached.

    Sentences of `packages` are held out. Those of `more` are trained on, in the languages that the
    others have, unless they are held out or nearly the same as one that is.
    """
    folder = pathlib.Path(cache) if cache is not None else default_cache()
    with fresh_directory(root) as out:
        with ThreadPoolExecutor(_DOWNLOADS) as pool:
            get = lambda package: fetch(package, folder, progress)
            wheels = dict(zip([*packages, *more], pool.map(get, [*packages, *more]), strict=True))
        sources: list[dict[str, object]] = []

        def read(some: Sequence[Package]) -> Pairs:
            messages: dict[str, list[Pair]] = {}
            for package in some:
                counts: dict[str, int] = {}
                for language, pairs in read_wheel(wheels[package], package.domains):
                    messages.setdefault(language, []).extend(pairs)
                    counts[language] = counts.get(language, 0) + len(pairs)
                sources.append(_describe_source(package, wheels[package], counts))
                progress(
                    f"read {package.name}: {sum(counts.values()):,} messages "
                    f"in {len(counts)} languages"
                )
            return {language: clean(messages[language]) for language in sorted(messages)}

        parts = _split(read(packages))
        _add_train(parts, read(more))
        write_pairs(out, parts, {"made from": sources})
    count = sum(map(len, parts["train"].values()))
    progress(f"wrote {count:,} train pairs in {len(parts['train'])} languages")


def _split(pairs: Pairs) -> dict[str, Pairs]:
    """Split pairs into train, dev and test; drop languages with too few."""
    train, dev, test = hold_out(pairs, dev=DEV, test=TEST)
    kept = [
        one
        for one in pairs
        if len(train[one]) >= FEWEST_TRAIN and len(test.get(one, ())) >= FEWEST_TEST
    ]
    if not kept:
        raise NamedMeshError(
            f"the packages' catalogs have no language with {FEWEST_TRAIN} train "
            f"and {FEWEST_TEST} test pairs",
            f"the largest have: {sorted(map(len, train.values()), reverse=True)[:5]} pairs",
            fix="name packages with more messages",
        )
    splits = {"train": train, "dev": dev, "test": test}
    return {
        name: {language: split[language] for language in kept if language in split}
        for name, split in splits.items()
    }


def _add_train(parts: dict[str, Pairs], more: Pairs) -> None:
    """Add pairs to those of train, apart from what is held out and what is there already."""
    train = parts["train"]
    held = HeldOut(parts["dev"], parts["test"], by_rule=False, reserved=frozenset())
    keys = {
        fold(english)
        for split in ("dev", "test")
        for pairs in parts[split].values()
        for _, english in pairs
    }
    groups: dict[str, list[tuple[str, str]]] = {}
    for language, pairs in more.items():
        if language in train:
            known = {(fold(source), fold(english)) for source, english in train[language]}
            for source, english in pairs:
                if (fold(source), fold(english)) not in known and fold(english) not in keys:
                    groups.setdefault(english, []).append((language, source))
    for english, pairs in groups.items():
        for language, source in held.select_train((english, pairs)):
            train[language].append((source, english))


def _describe_source(
    package: Package, wheel: pathlib.Path, counts: dict[str, int]
) -> dict[str, object]:
    """Describe where messages come from, for the record of the corpus."""
    return {
        "package": package.name,
        "version": package.version,
        "sha256": package.sha256,
        "licence": read_licence(wheel),
        "bytes": wheel.stat().st_size,
        "languages": len(counts),
        "messages": sum(counts.values()),
    }
