"""The packages worth downloading, by a rule: those with many catalogs for their size."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from examples.m4.corpus.archives import CATALOG
from examples.m4.corpus.debian.apt import Apt, DebianPackage
from namedmesh.errors.errors import NamedMeshError, did_you_mean

PAGE = re.compile(r"(?:\./)?usr/share/man/(?:([^/]+)/)?(man[1-8]/[^/]+?)(?:\.(?:gz|xz|bz2|zst))?")
BYTES, BYTES_PER_CATALOG = 50_000_000, 1_400_000  # of a package, at most
PAGES = 20  # translated manual pages that a package needs, or it is not taken for them


@dataclass(frozen=True)
class Selection:
    """The packages to read.

    Attributes:
        packages: The packages, by name.
        pages: English manual pages that some package has in translation, by the package that has
            them in English.
    """

    packages: dict[str, DebianPackage]
    pages: dict[str, frozenset[str]]

    @property
    def size(self) -> int:
        """The bytes of all packages."""
        return sum(package.size for package in self.packages.values())


def select_packages(apt: Apt, *, manuals: bool = True) -> Selection:
    """Select packages by what is in them.

    A package is taken if it has at most 50 MB, and a catalog for every 1.4 MB. Packages with
    translated manual pages come with the packages that have those pages in English.

    Args:
        apt: The distribution.
        manuals: Whether manual pages are wanted.

    Returns:
        The packages, and the pages that are wanted in English.
    """
    there = apt.packages()
    catalogs: Counter[str] = Counter()
    translated: dict[str, set[str]] = {}
    english: dict[str, list[str]] = {}
    for path, owners in apt.files("/LC_MESSAGES/", "usr/share/man/"):
        if "/LC_MESSAGES/" in path:
            if CATALOG.fullmatch(path):
                catalogs.update(owners)
        elif manuals and path.startswith("usr/share/man/") and (page := PAGE.fullmatch(path)):
            if page[1]:
                for owner in owners:
                    translated.setdefault(owner, set()).add(page[2])
            else:
                english[page[2]] = owners
    chosen = {
        name
        for name, count in catalogs.items()
        if name in there and there[name].size <= min(BYTES, BYTES_PER_CATALOG * count)
    }
    pages: set[str] = set()
    for name, theirs in translated.items():
        if name in chosen or len(theirs) >= PAGES:
            pages |= theirs
            chosen.add(name)
    owned: dict[str, set[str]] = {}
    for page in pages & english.keys():
        owned.setdefault(english[page][0], set()).add(page)
    packages = {name: there[name] for name in sorted(chosen | owned.keys()) if name in there}
    return Selection(packages, {name: frozenset(theirs) for name, theirs in owned.items()})


def select_named(apt: Apt, names: Iterable[str]) -> Selection:
    """Select packages by their names, and every manual page in them.

    Args:
        apt: The distribution.
        names: The names.

    Returns:
        The packages; all their English pages are wanted.

    Raises:
        NamedMeshError: If the distribution has no such package.
    """
    there, names = apt.packages(), sorted(set(names))
    for name in names:
        if name not in there:
            raise NamedMeshError(
                f"the distribution has no package {name!r}", fix=did_you_mean(name, there)
            )
    pages: dict[str, set[str]] = {name: set() for name in names}
    for path, owners in apt.files("usr/share/man/"):
        if (page := PAGE.fullmatch(path)) and not page[1]:
            for name in pages.keys() & {*owners}:
                pages[name].add(page[2])
    wanted = {name: frozenset(theirs) for name, theirs in pages.items()}
    return Selection({name: there[name] for name in names}, wanted)
