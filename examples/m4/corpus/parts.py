"""The parts of a corpus directory: sets, their splits and the files of the languages."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from namedmesh.errors.errors import NamedMeshError, did_you_mean

SPLITS = ("train", "dev", "test")
ALL = "all"  # the split of a flat directory, before some of it is held out
SHAPE = (
    "a corpus is DIR/train/<lang>.tsv, DIR/dev/<lang>.tsv and DIR/test/<lang>.tsv, "
    "or DIR/<lang>.tsv alone, each line source<TAB>English"
)
_NAME = re.compile(r"([^.].*?)(-en)?\.tsv(\.gz)?")


@dataclass(frozen=True)
class Part:
    """One split of one set: a directory with a file, or more than one, for each language."""

    set: str
    split: str
    folder: pathlib.Path
    files: tuple[tuple[str, pathlib.Path], ...]
    every: tuple[
        tuple[str, pathlib.Path], ...
    ] = ()  # also the files of languages that were not asked for


def find_parts(
    root: pathlib.Path, languages: Sequence[str] | None, sets: Sequence[str] | None
) -> list[Part]:
    """Find the parts of a corpus, all or some languages and sets; raise if one is missing."""
    if not root.is_dir():
        what = "is a file, not a directory" if root.exists() else "does not exist"
        raise NamedMeshError(f"the corpus {str(root)!r} {what}", fix=SHAPE)
    parts = _parts(root)
    _check("set", sets, {part.set for part in parts}, root)
    parts = [part for part in parts if sets is None or part.set in sets]
    _check("language", languages, {language for part in parts for language, _ in part.files}, root)
    return [_restrict(part, languages) for part in parts]


def _parts(root: pathlib.Path) -> list[Part]:
    folders = sorted(path for path in root.iterdir() if path.is_dir() and path.name not in SPLITS)
    parts = _split("main", root)
    for folder in folders:
        parts += _split(folder.name, folder) or _unsplit(folder.name, "test", folder)
    if not any(part.split == "train" for part in parts):
        parts = _unsplit("main", ALL, root) + parts
    return parts


def _split(name: str, folder: pathlib.Path) -> list[Part]:
    if not any((folder / split).is_dir() for split in SPLITS):
        return []
    return [Part(name, split, folder / split, _files(folder / split)) for split in SPLITS]


def _unsplit(name: str, split: str, folder: pathlib.Path) -> list[Part]:
    files = _files(folder)
    return [Part(name, split, folder, files)] if files else []


def _files(folder: pathlib.Path) -> tuple[tuple[str, pathlib.Path], ...]:
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return tuple(
        (match[1], path)
        for path in paths
        if (match := _NAME.fullmatch(path.name)) and path.is_file()
    )


def _restrict(part: Part, languages: Sequence[str] | None) -> Part:
    files = tuple(file for file in part.files if languages is None or file[0] in languages)
    return Part(part.set, part.split, part.folder, files, part.files)


def _check(what: str, asked: Sequence[str] | None, there: set[str], root: pathlib.Path) -> None:
    for name in asked or ():
        if name not in there:
            raise NamedMeshError(
                f"the corpus {str(root)!r} has no {what} {name!r}", fix=did_you_mean(name, there)
            )
