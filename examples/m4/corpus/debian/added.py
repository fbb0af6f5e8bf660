"""Pairs of other corpora beside those of packages: more English, of other kinds."""

from __future__ import annotations

import hashlib
import pathlib

from examples.m4.corpus.debian.prose import clean_paragraphs
from examples.m4.corpus.debian.records import write_record
from examples.m4.corpus.files import read_corpus
from examples.m4.corpus.languages import standard_code

ADDED = "corpus"  # what the names of such sources begin with


def add_corpus(root: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Make a record of a corpus's train pairs; what it holds out itself is not read.

    Pairs are cleaned as prose is, and languages have the codes of packages: deu and de are one.

    Args:
        root: The corpus.
        folder: Where the record is written.

    Returns:
        The record.
    """
    found: dict[str, dict[str, set[str]]] = {}
    for name, pairs in read_corpus(root).train.items():
        language = standard_code(name)
        if language is None:
            continue
        for source, english in pairs:
            for theirs, ours in clean_paragraphs(source, english):
                found.setdefault(ours, {}).setdefault(language, set()).add(theirs)
    digest = hashlib.sha256(repr(sorted(found)).encode()).hexdigest()
    facts = {
        "package": f"{ADDED} {root.resolve().name}",
        "version": digest[:16],
        "licence": "as its own folder says",
        "pairs": sum(len(sources) for by in found.values() for sources in by.values()),
    }
    path = folder / f"added_{digest[:16]}.gz"
    write_record(path, facts, found)
    return path
