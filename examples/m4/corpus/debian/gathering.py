"""From records to a corpus: merged, held out, thinned and written, a bucket at a time."""

from __future__ import annotations

import contextlib
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from examples.m4.corpus.debian.buckets import (
    Habits,
    fill_buckets,
    merge_bucket,
    normalize,
    read_bucket,
    write_bucket,
)
from examples.m4.corpus.debian.heldout import HeldOut, hold_out_by_rule, is_held_out
from examples.m4.corpus.debian.manuals import align_pages, read_blocks
from examples.m4.corpus.debian.records import Group, read_pages, read_translations
from examples.m4.corpus.debian.thinning import thin_to
from examples.m4.corpus.debian.workers import open_pool
from examples.m4.corpus.parts import SPLITS

FEWEST = 200  # train pairs that a language needs, or it is left out
Counts = dict[str, dict[str, int]]  # of pairs by language and split


def gather(
    records: Sequence[pathlib.Path],
    scratch: pathlib.Path,
    *,
    manuals: bool,
    held: HeldOut | None,
    reserved: frozenset[str],
    workers: int | None,
) -> tuple[list[pathlib.Path], HeldOut]:
    """Merge the records into buckets of what may be trained on.

    Args:
        records: The records.
        scratch: A folder for the buckets.
        manuals: Whether manual pages are read.
        held: What is held out; by default by the rule.
        reserved: Hashes of sentences that nobody may train on.
        workers: Processes.

    Returns:
        The buckets, and what is held out.
    """
    habits = fill_buckets(read_groups(records, manuals), scratch)
    buckets = sorted(scratch.glob("*.tsv"))
    with open_pool(workers) as pool:
        candidates = [*pool.map(partial(_merge, habits), buckets)]
        if held is None:
            groups = (group for part in candidates for group in part)
            held = hold_out_by_rule(groups, reserved)
        list(pool.map(partial(_keep_train, held), buckets))
    return buckets, held


def read_groups(records: Sequence[pathlib.Path], manuals: bool) -> Iterator[Group]:
    """Iterate over all groups of records, those of manual pages last."""
    for path in records:
        yield from read_translations(path)
    if manuals:
        english = {}
        for path in records:
            for language, page, text in read_pages(path):
                if language == "en" and page not in english:
                    english[page] = read_blocks(text)
        for path in records:
            pages = (page for page in read_pages(path) if page[0] != "en")
            for language, source, original in align_pages(pages, english):
                yield original, [(language, source)]


def write_corpus_files(
    out: pathlib.Path,
    buckets: Sequence[pathlib.Path],
    held: HeldOut,
    languages: Sequence[str],
    pairs: int | None,
) -> Counts:
    """Write train, dev and test files.

    Args:
        out: The folder of the corpus.
        buckets: What may be trained on.
        held: What is held out.
        languages: The languages to write; all if empty.
        pairs: How many train pairs, about; all if none.

    Returns:
        The pairs of each language and split.
    """
    sizes, counts = Counter[int](), Counter[str]()
    for group in _read(buckets, languages):
        sizes[len(group[1])] += 1
        counts.update(language for language, _ in group[1])
    kept = {language for language, count in counts.items() if count >= FEWEST}
    thinning = thin_to(counts.total() if pairs is None else pairs, sizes, counts)
    written: Counts = {language: dict.fromkeys(SPLITS, 0) for language in sorted(kept)}
    for split in SPLITS:
        (out / split).mkdir()
    with contextlib.ExitStack() as stack:
        files = {
            language: stack.enter_context(
                open(out / "train" / f"{language}.tsv", "w", encoding="utf-8", newline="\n")
            )
            for language in written
        }
        for group in _read(buckets, languages):
            for language, source in thinning.select(group):
                if language in kept:
                    files[language].write(f"{source}\t{group[0]}\n")
                    written[language]["train"] += 1
    for split, parts in (("dev", held.dev), ("test", held.test)):
        for language in written:
            lines = [f"{source}\t{english}\n" for source, english in parts.get(language, ())]
            if lines:
                path = out / split / f"{language}.tsv"
                path.write_text("".join(lines), encoding="utf-8", newline="\n")
            written[language][split] = len(lines)
    return written


def list_languages(buckets: Sequence[pathlib.Path]) -> list[str]:
    """List the languages that have enough pairs to train on."""
    counts = Counter(language for _, pairs in _read(buckets, ()) for language, _ in pairs)
    return sorted(language for language, count in counts.items() if count >= FEWEST)


def _read(buckets: Sequence[pathlib.Path], languages: Sequence[str]) -> Iterator[Group]:
    """Iterate over the groups of buckets, with the pairs of some languages."""
    for path in buckets:
        for english, pairs in read_bucket(path):
            chosen = [pair for pair in pairs if not languages or pair[0] in languages]
            if chosen:
                yield english, chosen


def _merge(habits: dict[str, Habits], path: pathlib.Path) -> list[Group]:
    """Merge a bucket; return the groups that the rule holds out."""
    merge_bucket(path, habits)
    return [group for group in read_bucket(path) if is_held_out(normalize(group[0]))]


def _keep_train(held: HeldOut, path: pathlib.Path) -> None:
    """Keep of a bucket what may be trained on."""
    write_bucket(path, ((group[0], held.select_train(group)) for group in read_bucket(path)))
