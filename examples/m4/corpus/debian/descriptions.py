"""Descriptions of packages in translation: a line and some paragraphs of prose each."""

from __future__ import annotations

from examples.m4.corpus.debian.apt import Apt
from examples.m4.corpus.debian.prose import clean_paragraphs
from examples.m4.corpus.languages import language_code

_KEY = "Description-md5"


def read_descriptions(apt: Apt) -> dict[str, dict[str, set[str]]]:
    """Read the translated descriptions of all packages.

    A translation belongs to the English text whose digest it names; it is read if it has as many
    paragraphs.

    Args:
        apt: The distribution.

    Returns:
        Translations by English sentence and language.
    """
    english = {
        fields[_KEY]: _split_paragraphs(fields["Description-en"])
        for language, fields in apt.descriptions()
        if language == "en" and "Description-en" in fields and _KEY in fields
    }
    found: dict[str, dict[str, set[str]]] = {}
    for locale, fields in apt.descriptions():
        language, text = language_code(locale), fields.get(f"Description-{locale}", "")
        ours = english.get(fields.get(_KEY, ""))
        theirs = _split_paragraphs(text)
        if language and ours and len(theirs) == len(ours):
            for source, original in zip(theirs, ours, strict=True):
                for sentence, meaning in clean_paragraphs(source, original):
                    found.setdefault(meaning, {}).setdefault(language, set()).add(sentence)
    return found


def _split_paragraphs(text: str) -> list[str]:
    """Return the first line of a description, then its paragraphs; lists are left out of them."""
    first, _, rest = text.partition("\n")
    paragraphs = [[]]
    for line in rest.split("\n"):
        if line.strip() == ".":
            paragraphs.append([])
        elif line[:1] not in (" ", "*", "-"):
            paragraphs[-1].append(line)
    return [first, *(" ".join(lines) for lines in paragraphs)]
