"""Reading one file of pairs, one `source<TAB>English` per line, and reporting its bad lines."""

from __future__ import annotations

import gzip
import pathlib
import unicodedata
import zlib

from examples.m4.corpus.holdout import Pair
from examples.m4.corpus.report import Report

_BLOCK = 1 << 16


def read_pairs(
    path: pathlib.Path, name: str, report: Report, longest: int, known: dict[str, str]
) -> list[Pair]:
    """Read the good pairs of a file, and report the other lines under its name.

    `known` holds one copy of each English string, however often it occurs.
    """
    data, damage = _read_content(path)
    if damage:
        data = data[: data.rfind(b"\n") + 1]
    pairs: list[Pair] = []
    lines = _split_lines(data)
    for number, line in enumerate(lines, 1):
        if line is None:
            report.fault("not UTF-8", f"{name}:{number}")
            continue
        source, _, english = line.partition("\t")
        source, english = source.strip(), english.strip()
        if (
            source
            and english
            and "\t" not in english
            and len(source) <= longest
            and len(english) <= longest
        ):
            pairs.append((source, known.setdefault(english, english)))
        else:
            report.fault(_find_fault(line, longest), f"{name}:{number}")
    if damage:
        report.fault(damage, f"{name}:{len(lines) + 1}")
    elif not data.strip():
        report.fault("empty file", name)
    return pairs


def _read_content(path: pathlib.Path) -> tuple[bytes, str]:
    """Read a file: its bytes, or those before the damage, and what is wrong."""
    pieces = []
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            while piece := file.read1(_BLOCK):  # read1 returns what comes before the damage
                pieces.append(piece)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return b"".join(pieces), "damaged gzip"
    except OSError:
        return b"", "unreadable file"
    return b"".join(pieces), ""


def _split_lines(data: bytes) -> list[str | None]:
    """Split a file into lines in NFC, None for one that is not UTF-8."""
    lines: list[str | None]
    try:
        lines = [*unicodedata.normalize("NFC", data.decode("utf-8-sig")).split("\n")]
    except UnicodeDecodeError:
        lines = [_decode_line(line) for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    if lines[-1] == "":
        lines.pop()
    return lines


def _decode_line(line: bytes) -> str | None:
    """Decode a line; None if it is not UTF-8."""
    try:
        return unicodedata.normalize("NFC", line.decode())
    except UnicodeDecodeError:
        return None


def _find_fault(line: str, longest: int) -> str:
    """Say what is wrong with a line."""
    tabs = line.strip("\r\n ").count("\t")
    if not line.strip():
        return "empty line"
    if max(map(len, line.split("\t"))) > longest:
        return f"over {longest:,} characters a side"
    if tabs != 1:
        return "no tab" if tabs == 0 else "more than one tab"
    return "nothing on one side of the tab"
