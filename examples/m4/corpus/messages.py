"""Messages of programs as pairs for translation, without what only a program needs."""

from __future__ import annotations

import html
import re
import statistics
import unicodedata
from collections.abc import Iterable

from examples.m4.corpus.holdout import Pair, fold

LONGEST = 300  # characters per side; longer messages are pages of help
_ACCELERATOR = re.compile(r"\s*\([&_]\w\)|(?<!\w)&(?=\w)|(?<=\w)&(?=\w)|(?<!\w)_(?=\w)")
_ENTITY = re.compile(r"&#?\w+;")
_PROGRAM = re.compile(
    r"%[\w(.#+{-]|[{}<>\[\]\\`|=~^*@#_]|\$\w|://|www\.|--|::|\.\w{2,4}\b|\w/\w+/"
    r"|[\x00-\x1f\x7f\ufffd\u200e\u200f]"
)
_LETTER = re.compile(r"[^\W\d_]")
_ASCII_LETTER = re.compile(r"[A-Za-z]")
OTHER_SCRIPT = re.compile(
    r"[\u0370-\u1dff\u2c00-\ua71f\ua800-\ufaff\ufb13-\uffdf\U00010000-\U0003ffff]"
)


def normalize_message(text: str) -> str:
    """Make a message one line of NFC text, without marks of keyboard accelerators."""
    text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), unicodedata.normalize("NFC", text))
    return " ".join(_ACCELERATOR.sub("", text).split())


def is_text(source: str, english: str) -> bool:
    """Check that a message is text in both languages, without placeholders or markup."""
    if max(len(source), len(english)) > LONGEST or min(len(source), len(english)) < 2:
        return False
    if _PROGRAM.search(english) or _PROGRAM.search(source):
        return False
    letters = len(_LETTER.findall(english))
    if (
        letters < 2
        or len(_ASCII_LETTER.findall(english)) < 0.7 * letters
        or not _LETTER.search(source)
    ):
        return False
    return fold(source) != fold(english)


def clean(messages: Iterable[Pair]) -> list[Pair]:
    """Select the (source, English) messages of one language that are text, each once, in order."""
    pairs: dict[tuple[str, str], Pair] = {}
    for source, english in dict.fromkeys(messages):
        source, english = normalize_message(source), normalize_message(english)
        if is_text(source, english):
            pairs.setdefault((fold(source), fold(english)), (source, english))
    return _drop_odd_lengths(_drop_latin(list(pairs.values())))


def _drop_latin(pairs: list[Pair]) -> list[Pair]:
    """Drop Latin sources if nearly all others have another script: they are not translated."""
    other = [bool(OTHER_SCRIPT.search(source)) for source, _ in pairs]
    if sum(other) < 0.8 * len(pairs):
        return pairs
    return [pair for pair, kept in zip(pairs, other, strict=True) if kept]


def _drop_odd_lengths(pairs: list[Pair]) -> list[Pair]:
    """Drop pairs whose length ratio is three times (if short: six times) off the median."""
    if not pairs:
        return []
    median = statistics.median(len(source) / len(english) for source, english in pairs)
    return [pair for pair in pairs if has_usual_length(*pair, median)]


def has_usual_length(source: str, english: str, median: float) -> bool:
    """Check that a ratio of lengths is within a factor of 3 (if short: 6) of the median."""
    limit = 3 if len(english) >= 10 else 6
    return 1 / limit <= len(source) / len(english) / median <= limit
