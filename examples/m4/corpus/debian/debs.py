"""A package's file read as a stream: catalogs, manual pages and the licence in it.

Nothing is installed, run, or written to disk.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import pathlib
import re
import subprocess
import tarfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from examples.m4.corpus.archives import CATALOG, read_catalog
from examples.m4.corpus.debian.cleaning import is_english, is_translation, tidy
from examples.m4.corpus.debian.selection import PAGE
from examples.m4.corpus.languages import language_code
from namedmesh.errors.errors import NamedMeshError

LARGEST = 64 << 20  # bytes of one catalog or page
OPENERS = {".gz": gzip.decompress, ".xz": lzma.decompress, ".bz2": bz2.decompress}
_COPYRIGHT = re.compile(r"(?:\./)?usr/share/doc/[^/]+/copyright")
_LICENCE = re.compile(r"^License:[ \t]*(\S.*)$", re.MULTILINE)
_COMMON = re.compile(r"/usr/share/common-licenses/([\w.+-]*\w)")


@dataclass
class Extract:
    """The messages and manual pages of a package.

    Attributes:
        messages: Translations by English message and language.
        pages: Manual pages as (language, page, text); the language of English is "en".
        licence: The names of its licences.
        catalogs: How many catalogs were read.
        damaged: How many could not be.
    """

    messages: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    pages: list[tuple[str, str, str]] = field(default_factory=list)
    licence: str = "not stated"
    catalogs: int = 0
    damaged: int = 0

    @property
    def pairs(self) -> int:
        """The number of pairs of messages."""
        return sum(len(each) for languages in self.messages.values() for each in languages.values())


def read_package(path: pathlib.Path, pages: Collection[str] = ()) -> Extract:
    """Read a package's file.

    Args:
        path: The file.
        pages: The English manual pages that are wanted; translated ones always are.

    Returns:
        What is in it.

    Raises:
        NamedMeshError: If the file is damaged.
    """
    extract = Extract()
    known: dict[str, str] = {}  # what each English message is when tidy; empty if it is no text
    for name, content in _members(path):
        if (match := CATALOG.fullmatch(name)) and (language := language_code(match[1], any=True)):
            _add_catalog(extract, language, content, known)
        elif match := PAGE.fullmatch(name):
            language = language_code(match[1].partition(".")[0], any=True) if match[1] else "en"
            if language and (language != "en" or match[2] in pages):
                text = _decompress(pathlib.PurePosixPath(name).suffix, content)
                extract.pages.append((language, match[2], text.decode("utf-8", "replace")))
        elif _COPYRIGHT.fullmatch(name):
            extract.licence = _find_licences(content.decode("utf-8", "replace"))
    return extract


def _add_catalog(extract: Extract, language: str, content: bytes, known: dict[str, str]) -> None:
    """Add the messages of one catalog that are text."""
    messages = read_catalog(content)
    extract.catalogs += bool(messages)
    extract.damaged += not messages
    for translation, message in messages:
        english = known.get(message)
        if english is None:
            english = tidy(message)
            english = known[message] = english if is_english(english) else ""
        if english:
            source = tidy(translation)
            if is_translation(source, english):
                extract.messages.setdefault(english, {}).setdefault(language, set()).add(source)


def _members(path: pathlib.Path) -> Iterator[tuple[str, bytes]]:
    """Iterate over the files in a package that are of use, as name and content."""
    command = ["dpkg-deb", "--fsys-tarfile", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding=None
    ) as process:
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                for member in archive:
                    wanted = member.isfile() and member.size <= LARGEST
                    name = member.name.removeprefix("./")
                    if wanted and (
                        name.endswith(".mo")
                        or name.startswith("usr/share/man/")
                        or _COPYRIGHT.fullmatch(name)
                    ):
                        file = archive.extractfile(member)
                        yield name, file.read() if file else b""
        except (tarfile.TarError, EOFError) as error:
            process.kill()
            said = (process.stderr.read() if process.stderr else b"").decode(errors="replace")
            reason = said.strip().splitlines()[-1:] or [str(error)]
            raise _damage(path, reason[0]) from None
        said = (process.stderr.read() if process.stderr else b"").decode(errors="replace")
    if process.returncode:
        raise _damage(path, (said.strip().splitlines() or ["dpkg-deb failed"])[-1])


def _damage(path: pathlib.Path, reason: str) -> NamedMeshError:
    return NamedMeshError(f"{path.name} is damaged: {reason}", fix="download it again")


def _decompress(suffix: str, content: bytes) -> bytes:
    """Decompress a manual page; nothing is left of a damaged one."""
    try:
        return OPENERS.get(suffix, bytes)(content)
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return b""


def _find_licences(text: str) -> str:
    """Name the licences of a copyright file: those it lists, or those it refers to."""
    listed = _LICENCE.findall(text) or _COMMON.findall(text)
    return ", ".join(dict.fromkeys(name.strip() for name in listed)) or "in the package"
