"""A distribution of a few packages in a folder, which apt reads like any other."""

from __future__ import annotations

import gzip
import hashlib
import pathlib
import subprocess
from dataclasses import dataclass, field


@dataclass
class Deb:
    """A package to be made.

    Attributes:
        name: Its name.
        files: The contents of its files, by path.
        description: Its description, in English.
    """

    name: str
    files: dict[str, bytes]
    description: str = "a package\n It does things.\n"

    @property
    def md5(self) -> str:
        """The digest by which translations name the description."""
        return hashlib.md5(self.description.encode()).hexdigest()


@dataclass
class Repository:
    """A distribution in a folder.

    Attributes:
        folder: The folder.
        debs: Its packages.
        translations: Descriptions by language and package.
    """

    folder: pathlib.Path
    debs: list[Deb]
    translations: dict[str, dict[str, str]] = field(default_factory=dict)

    def write(self) -> pathlib.Path:
        """Write all of it; return a list of sources with it."""
        pool = self.folder / "pool"
        pool.mkdir(parents=True, exist_ok=True)
        packages, contents = "", ""
        for deb in self.debs:
            packages += self._build(deb, pool)
            contents += "".join(f"{path}    misc/{deb.name}\n" for path in sorted(deb.files))
        english = "".join(self._describe(deb, "en", deb.description) for deb in self.debs)
        files = {
            "main/binary-all/Packages": packages,
            f"main/binary-{architecture()}/Packages": packages,
            "main/Contents-all": contents,
            f"main/Contents-{architecture()}": "",
            "main/i18n/Translation-en": english,
        }
        for language, texts in self.translations.items():
            files[f"main/i18n/Translation-{language}"] = "".join(
                self._describe(deb, language, texts[deb.name])
                for deb in self.debs
                if deb.name in texts
            )
        self._write_release(files)
        sources = self.folder / "sources.list"
        sources.write_text(f"deb [trusted=yes] copy:{self.folder} stable main\n")
        return sources

    def path(self, name: str) -> pathlib.Path:
        """The file of a package."""
        return self.folder / "pool" / f"{name}_1.0_all.deb"

    def _build(self, deb: Deb, pool: pathlib.Path) -> str:
        """Build a package; return its paragraph in the list of packages."""
        tree = self.folder / "trees" / deb.name
        for path, content in deb.files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
        (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
        control = (
            f"Package: {deb.name}\nVersion: 1.0\nArchitecture: all\n"
            "Maintainer: Nobody <nobody@example.org>\n"
        )
        (tree / "DEBIAN" / "control").write_text(f"{control}Description: {deb.description}")
        path = self.path(deb.name)
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "--build", tree, path],
            check=True,
            capture_output=True,
        )
        content = path.read_bytes()
        first = deb.description.partition("\n")[0]
        return (
            f"{control}Filename: pool/{path.name}\nSize: {len(content)}\n"
            f"SHA256: {hashlib.sha256(content).hexdigest()}\n"
            f"Description: {first}\nDescription-md5: {deb.md5}\n\n"
        )

    def _describe(self, deb: Deb, language: str, text: str) -> str:
        return f"Package: {deb.name}\nDescription-md5: {deb.md5}\nDescription-{language}: {text}\n"

    def _write_release(self, files: dict[str, str]) -> None:
        """Write the lists, compressed, and the file that has their digests."""
        root = self.folder / "dists" / "stable"
        lines = []
        for name, text in files.items():
            content = gzip.compress(text.encode(), mtime=0)
            for path, data in ((name, text.encode()), (f"{name}.gz", content)):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(data)
                lines.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {path}\n")
        (root / "Release").write_text(
            "Origin: Test\nCodename: stable\nSuite: stable\nVersion: 1\n"
            f"Architectures: all {architecture()}\nComponents: main\n"
            "Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n" + "".join(lines)
        )


def architecture() -> str:
    """The architecture of this machine, as apt names it."""
    return subprocess.run(
        ["dpkg", "--print-architecture"], check=True, capture_output=True, text=True
    ).stdout.strip()
