"""The text in a distribution's messages: cleaned, with one placeholder at most."""

from __future__ import annotations

import html
import re
import unicodedata

from examples.m4.corpus.holdout import fold

LONGEST = 400  # characters a side
_ACCELERATOR = re.compile(r"\s*\([&_~]\w\)|&(?=\w)|(?<!\w)[_~](?=\w)")
_ENTITY = re.compile(r"&#?\w{2,8};")
_DOTS = (".", "…", "。", "।")
_LAST_DOTS = re.compile(rf"\s*[{''.join(_DOTS)}]+$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ufffd\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_PLACEHOLDER = re.compile(
    r"%(?:\d+\$)?[-+#0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|q|j|z|t|L)?[a-zA-Z]"
    r"|%\(\w+\)[-\d.]*[a-zA-Z]|%L?\d+|\{\w*\}|%\{\w+\}|\$\{?\w+\}?"
)
_CODE = re.compile(
    r"<[A-Za-z/!?][^>]*>|://|www\.|\S@\S+\.\w|[\\`|^{}]|::|==|=\"|\w\(\)|\w_\w|--\w|/\w+/|\w=\w"
    r"|[;{}]$|^[#.@/]|\.\w+\(|&\w+;"
)
_SUSPECT = re.compile(r"[<@\\`|^{}:=_;#&()./-]")  # one of these is in all code
_LETTER = re.compile(r"[^\W\d_]")
_ASCII_LETTER = re.compile(r"[A-Za-z]")


def tidy(text: str) -> str:
    """Make a message one line of NFC text, without marks of accelerators and dots at the end.

    >>> tidy("Save _As...")
    'Save As'
    """
    if not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
    if "&" in text:
        text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    if "&" in text or "_" in text or "~" in text:
        text = _ACCELERATOR.sub("", text)
        if text.count("_") == 1:  # in a word: of two, one is code
            text = text.replace("_", "")
    if not text.isprintable():
        text = _CONTROL.sub(" ", text)
    text = " ".join(text.split())
    return _LAST_DOTS.sub("", text) if text[-1:] in _DOTS else text


def is_english(text: str) -> bool:
    """Return whether a tidy message is English text: mostly letters, no markup, code or address."""
    if not 2 <= len(text) <= LONGEST or len(_PLACEHOLDER.findall(text)) > 1:
        return False
    plain = _PLACEHOLDER.sub("", text)
    if _is_code(plain):
        return False
    letters = len(_LETTER.findall(plain))
    ascii_letters = len(_ASCII_LETTER.findall(plain))
    visible = len(plain) - plain.count(" ")
    return ascii_letters >= 2 and ascii_letters >= 0.9 * letters and letters >= 0.6 * visible


def is_translation(source: str, english: str) -> bool:
    """Return whether a tidy message translates English text that passed `is_english`.

    It has the same placeholder, and is neither the English itself nor mostly words of it.
    """
    if not 1 <= len(source) <= LONGEST or not 0.15 <= len(source) / len(english) <= 4:
        return False
    if "%" in english or "{" in english or "$" in english or "%" in source or "{" in source:
        theirs, ours = _PLACEHOLDER.findall(source), _PLACEHOLDER.findall(english)
        if len(theirs) != len(ours) or {*theirs} != {*ours}:
            return False
        plain = _PLACEHOLDER.sub("", source)
    else:
        plain = source
    if _is_code(plain) or not _LETTER.search(plain):
        return False
    if not source.isascii():
        return True
    words = {*source.casefold().split()}
    if len(words & {*english.casefold().split()}) > 0.6 * len(words):
        return False
    return fold(source) != fold(english)


def _is_code(text: str) -> bool:
    """Return whether there is markup, code or an address in a text."""
    return bool(_SUSPECT.search(text) and _CODE.search(text))
