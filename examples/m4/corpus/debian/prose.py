"""Paragraphs in two languages as pairs of sentences, where both have as many."""

from __future__ import annotations

import re
from collections.abc import Iterator

from examples.m4.corpus.debian.cleaning import is_english, is_translation, tidy

_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<! etc\.)(?<! vs\.)\s+(?=[^\W\d_a-z])")
_OTHER_END = re.compile(
    r"(?<=[.!?։؟])\s+(?=[^\W\d_])|(?<=[。！？।။។])\s*(?=\S)"  # with no space in some scripts
)


def split_sentences(source: str, english: str) -> list[tuple[str, str]]:
    """Split a paragraph and its translation; if their numbers differ they stay whole.

    >>> split_sentences("Eins. Zwei, e.g. drei.", "One. Two, e.g. three.")
    [('Eins.', 'One.'), ('Zwei, e.g. drei.', 'Two, e.g. three.')]
    """
    ours = _END.split(english)
    for rule in (_END, _OTHER_END):
        theirs = rule.split(source)
        if len(theirs) == len(ours):
            return list(zip(theirs, ours, strict=True))
    return [(source, english)]


def clean_paragraphs(source: str, english: str) -> Iterator[tuple[str, str]]:
    """Iterate over the sentences of a paragraph and its translation that are text, tidy."""
    for theirs, ours in split_sentences(" ".join(source.split()), " ".join(english.split())):
        theirs, ours = tidy(theirs), tidy(ours)
        if is_english(ours) and is_translation(theirs, ours):
            yield theirs, ours
