"""Records: what was found in one package, as one file that is there completely or not at all."""

from __future__ import annotations

import gzip
import io
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from namedmesh.files import write_file

Group = tuple[str, list[tuple[str, str]]]  # an English text with (language, translation) pairs
Translations = Mapping[str, Mapping[str, set[str]]]  # of each English text by language


def write_record(
    path: pathlib.Path,
    facts: Mapping[str, Any],
    translations: Translations,
    pages: Sequence[tuple[str, str, str]] = (),
) -> None:
    """Write a record: facts, then pages, then a line for each English text with its translations.

    The same contents are the same bytes.
    """
    data = io.BytesIO()
    with gzip.GzipFile("", "wb", 6, data, mtime=0) as file:
        file.write((json.dumps({**facts, "pages": len(pages)}, sort_keys=True) + "\n").encode())
        for page in sorted(pages):
            file.write((json.dumps(page, ensure_ascii=False) + "\n").encode())
        for english in sorted(translations):
            cells = [english]
            for language in sorted(translations[english]):
                for source in sorted(translations[english][language]):
                    cells += [language, source]
            file.write(("\t".join(cells) + "\n").encode())
    write_file(str(path), data.getvalue(), "the record")


def read_facts(path: pathlib.Path) -> dict[str, Any]:
    """Read the facts of a record."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.loads(file.readline())


def read_pages(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    """Iterate over the manual pages of a record, as (language, page, text)."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        for _ in range(json.loads(file.readline())["pages"]):
            language, page, text = json.loads(file.readline())
            yield language, page, text


def read_translations(path: pathlib.Path) -> Iterator[Group]:
    """Iterate over the English texts of a record, each with (language, translation) pairs."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        for _ in range(json.loads(file.readline())["pages"]):
            file.readline()
        yield from map(parse_group, file)


def parse_group(line: str) -> Group:
    """Parse a line: an English text, then languages and translations alternately."""
    english, *cells = line.rstrip("\n").split("\t")
    return english, list(zip(cells[::2], cells[1::2], strict=True))
