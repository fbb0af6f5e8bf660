"""Reading one file of pairs, `source<TAB>English` a line: its good lines, and a fault reported for every other."""

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
    """The good pairs of a file, which faults call by name; known holds each English string once, however often it comes."""
    data, damage = _content(path)
    if damage:
        data = data[: data.rfind(b"\n") + 1]
    pairs: list[Pair] = []
    lines = _lines(data)
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
            report.fault(_fault(line, longest), f"{name}:{number}")
    if damage:
        report.fault(damage, f"{name}:{len(lines) + 1}")
    elif not data.strip():
        report.fault("empty file", name)
    return pairs


def _content(path: pathlib.Path) -> tuple[bytes, str]:
    """The bytes of a file, or what can be had of them and what is wrong."""
    pieces = []
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            while piece := file.read1(_BLOCK):  # read1: what came before the damage is not lost
                pieces.append(piece)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return b"".join(pieces), "damaged gzip"
    except OSError:
        return b"", "unreadable file"
    return b"".join(pieces), ""


def _lines(data: bytes) -> list[str | None]:
    """The lines of a file in NFC, None for one that is not UTF-8."""
    lines: list[str | None]
    try:
        lines = [*unicodedata.normalize("NFC", data.decode("utf-8-sig")).split("\n")]
    except UnicodeDecodeError:
        lines = [_decoded(line) for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    if lines[-1] == "":
        lines.pop()
    return lines


def _decoded(line: bytes) -> str | None:
    try:
        return unicodedata.normalize("NFC", line.decode())
    except UnicodeDecodeError:
        return None


def _fault(line: str, longest: int) -> str:
    tabs = line.strip("\r\n ").count("\t")
    if not line.strip():
        return "empty line"
    if max(map(len, line.split("\t"))) > longest:
        return f"over {longest:,} characters a side"
    if tabs != 1:
        return "no tab" if tabs == 0 else "more than one tab"
    return "nothing on one side of the tab"
