"""Wheels read as files: message catalogs and licences. Nothing is installed or run."""

from __future__ import annotations

import email
import gettext
import io
import pathlib
import re
import struct
import zipfile
from collections.abc import Iterator

from examples.m4.corpus.holdout import Pair
from examples.m4.corpus.languages import language_code
from namedmesh.errors.errors import NamedMeshError

CATALOG = re.compile(r"(?:.*/)?([^/]+)/LC_MESSAGES/([^/]+)\.mo")


class _Catalog(gettext.GNUTranslations):
    """A .mo file; the standard library only looks messages up, here they are listed."""

    def messages(self) -> Iterator[Pair]:
        """Iterate over the messages without a plural, as (translation, English)."""
        for key, translation in self._catalog.items():  # type: ignore[attr-defined]
            if isinstance(key, str) and key and translation:
                yield translation, key.rpartition("\x04")[2]


def read_catalog(content: bytes) -> list[Pair]:
    """Read the (translation, English) messages of a .mo file; none if it is damaged."""
    try:
        return list(_Catalog(io.BytesIO(content)).messages())
    except (OSError, ValueError, LookupError, struct.error):
        return []


def read_wheel(
    path: pathlib.Path, domains: tuple[str, ...] = ()
) -> Iterator[tuple[str, list[Pair]]]:
    """Iterate over the catalogs of a wheel, all or some domains, as (language, messages)."""
    with _open_wheel(path) as wheel:
        for name in sorted(wheel.namelist()):
            match = CATALOG.fullmatch(name)
            if (
                match
                and (not domains or match[2] in domains)
                and (language := language_code(match[1]))
            ):
                yield language, read_catalog(wheel.read(name))


def read_licence(path: pathlib.Path) -> str:
    """Read the licence that the metadata of a wheel names."""
    with _open_wheel(path) as wheel:
        name = next(
            (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")), None
        )
        metadata = email.message_from_bytes(wheel.read(name) if name else b"")
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier", [])
        if line.startswith("License")
    ]
    stated = (
        metadata.get("License-Expression")
        or ", ".join(classifiers)
        or metadata.get("License")
        or ""
    )
    return stated.strip().partition("\n")[0] or "not stated"


def _open_wheel(path: pathlib.Path) -> zipfile.ZipFile:
    """Open a wheel, which is a zip file."""
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile:
        raise NamedMeshError(
            f"{path.name} is not a wheel: it is not a zip file",
            fix="delete it from the cache, and run again",
        ) from None
