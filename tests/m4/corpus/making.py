"""Files for the tests of the corpus: pairs, message catalogs and wheels."""

from __future__ import annotations

import hashlib
import pathlib
import struct
import zipfile

from examples.m4.corpus import Package


def write(root: pathlib.Path, files: dict[str, str | bytes]) -> pathlib.Path:
    """Writes files, each by its path under root."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def lines(pairs: list[tuple[str, str]]) -> str:
    return "".join(f"{source}\t{english}\n" for source, english in pairs)


def catalog(messages: dict[str, str], charset: str = "UTF-8") -> bytes:
    """A .mo file as the GNU gettext manual describes it: header, two tables, the strings."""
    entries = sorted({"": f"Content-Type: text/plain; charset={charset}\n", **messages}.items())
    encoded = [(key.encode(charset), value.encode(charset)) for key, value in entries]
    count, start = len(encoded), 28 + 16 * len(encoded)
    tables: list[bytes] = []
    strings = b""
    for column in (0, 1):
        for entry in encoded:
            tables.append(struct.pack("<II", len(entry[column]), start + len(strings)))
            strings += entry[column] + b"\0"
    header = struct.pack("<7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, start)
    return header + b"".join(tables) + strings


def wheel(
    folder: pathlib.Path, name: str, catalogs: dict[str, bytes], domains: tuple[str, ...] = ()
) -> Package:
    """Write the wheel of a package that has nothing but catalogs, and return the package."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nLicense-Expression: 0BSD\n"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, content in catalogs.items():
            archive.writestr(inside, content)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", metadata)
        archive.writestr(
            f"{name}-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return Package(name, "1.0", hashlib.sha256(path.read_bytes()).hexdigest(), domains)
