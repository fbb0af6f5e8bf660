"""Manual pages in translation: paragraphs of pages that have the same structure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from examples.m4.corpus.debian.prose import clean_paragraphs

_BREAKS = {
    "TH", "SH", "SS", "TP", "TQ", "PP", "P", "LP", "IP", "HP", "RS", "RE", "nf", "fi", "br", "sp",
    "in", "EX", "EE", "UR", "UE", "Sh", "Ss", "Pp", "It", "Bl", "El", "Bd", "Ed", "Nm", "Nd", "Dd",
}  # fmt: skip
_HEADINGS = {"SH", "SS", "Sh", "Ss", "Nd"}
_FONTS = {"B", "I", "BR", "IR", "RB", "BI", "IB", "RI", "SM", "SB", "R"}
_VERBATIM = {"nf": "fi", "EX": "EE", "Bd": "Ed"}
_ESCAPES = (
    (re.compile(r"\\f(?:\[\w*\]|\(..|.)"), ""),
    (re.compile(r"\\s[+-]?\d"), ""),
    (re.compile(r"\\[&|^/,:%)]|\\c$"), ""),
    (re.compile(r"\\(?:\(aq|\[aq\])"), "'"),
    (re.compile(r"\\(?:\((?:lq|rq|dq)|\[(?:lq|rq|dq)\])"), '"'),
    (re.compile(r"\\(?:\(em|\[em\])"), "—"),
    (re.compile(r"\\(?:\(en|\[en\])"), "–"),
    (re.compile(r"\\(?:\(co|\[co\])"), "©"),
    (re.compile(r"\\(?:\(bu|\[bu\])"), "•"),
    (re.compile(r"\\[ ~0]"), " "),
    (re.compile(r"\\-"), "-"),
    (re.compile(r"\\e"), r"\\"),
)
Block = tuple[str, str]  # what begins a paragraph, and its text


def read_blocks(page: str) -> list[Block]:
    """Read the paragraphs of a page in roff; those to be shown as they are have no text."""
    blocks: list[Block] = []
    lines: list[str] = []
    kind, verbatim = "", ""

    def close() -> None:
        if kind:
            blocks.append((kind, "" if verbatim else _plain(" ".join(lines))))
        lines.clear()

    for line in page.splitlines():
        macro, _, rest = line[1:].strip().partition(" ") if line[:1] in (".", "'") else ("", "", "")
        if line[:2] in (".\\", "'\\"):
            continue
        if macro in _BREAKS:
            close()
            kind = macro
            if macro == verbatim:
                verbatim = ""
            verbatim = _VERBATIM.get(macro, verbatim)
            if macro in _HEADINGS:
                lines.append(" ".join(_arguments(rest)))
                close()
                kind = f"after {macro}"
        elif macro in _FONTS:
            joined = "" if len(macro) > 1 and macro not in ("SM", "SB") else " "
            lines.append(joined.join(_arguments(rest)))
        elif line[:1] not in (".", "'"):
            lines.append(line)
    close()
    return blocks


def align_pages(
    translated: Iterable[tuple[str, str, str]], english: dict[str, list[Block]]
) -> Iterator[tuple[str, str, str]]:
    """Iterate over sentences of translated pages, as (language, sentence, English).

    A page counts if its paragraphs begin as those of the English page do.

    Args:
        translated: Pages as (language, page, text).
        english: The blocks of English pages.
    """
    for language, page, text in translated:
        ours = english.get(page)
        theirs = read_blocks(text) if ours else []
        if ours and [kind for kind, _ in ours] == [kind for kind, _ in theirs]:
            for (_, original), (_, source) in zip(ours, theirs, strict=True):
                if original and source:
                    for sentence, meaning in clean_paragraphs(source, original):
                        yield language, sentence, meaning


def _arguments(text: str) -> list[str]:
    """Return the arguments of a macro, without their quotes."""
    return [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', text)]


def _plain(text: str) -> str:
    """Text without roff's escapes."""
    for pattern, replacement in _ESCAPES:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())
