"""Writing a corpus: completely or not at all, replacing only a corpus that we wrote."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from examples.m4.corpus.holdout import Pairs
from namedmesh.errors.errors import NamedMeshError

MARK = "corpus.json"  # marks a directory that we wrote


@contextmanager
def fresh_directory(root: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yield a directory to fill, which becomes root at the end and replaces a corpus of ours."""
    root = pathlib.Path(root).absolute()
    empty = root.is_dir() and not any(root.iterdir())
    if root.exists() and not empty and not (root / MARK).is_file():
        raise NamedMeshError(
            f"{str(root)!r} exists and is not a corpus that we wrote",
            fix="name a new directory",
        )
    root.parent.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent))
    try:
        (work / "new").mkdir()
        yield work / "new"
        if root.exists():
            root.rename(work / "old")
        (work / "new").rename(root)
    finally:
        shutil.rmtree(work)


def write_pairs(
    folder: pathlib.Path, parts: Mapping[str, Pairs], facts: Mapping | None = None
) -> None:
    """Write each part as a directory of <lang>.tsv files, and corpus.json with facts and counts."""
    for name, pairs in parts.items():
        (folder / name).mkdir()
        for language, good in pairs.items():
            with open(
                folder / name / f"{language}.tsv", "w", encoding="utf-8", newline="\n"
            ) as file:
                file.writelines(f"{source}\t{english}\n" for source, english in good)
    languages = sorted({language for pairs in parts.values() for language in pairs})
    counts = {
        language: {name: len(pairs.get(language, ())) for name, pairs in parts.items()}
        for language in languages
    }
    record = {**(facts or {}), "pairs": counts}
    (folder / MARK).write_text(
        json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
