"""The corpus of a distribution: messages of its programs, descriptions and manual pages.

Packages are selected, read into records, and gathered. A build that was stopped goes on where it
was, and the same records make the same files.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from examples.m4.corpus.debian.added import ADDED, add_corpus
from examples.m4.corpus.debian.apt import Apt
from examples.m4.corpus.debian.descriptions import read_descriptions
from examples.m4.corpus.debian.extraction import RULES, extract_packages
from examples.m4.corpus.debian.gathering import (
    FEWEST,
    Counts,
    gather,
    list_languages,
    write_corpus_files,
)
from examples.m4.corpus.debian.heldout import hold_out_as_in
from examples.m4.corpus.debian.records import read_facts, write_record
from examples.m4.corpus.debian.selection import select_named, select_packages
from examples.m4.corpus.folders import MARK, fresh_directory
from examples.m4.corpus.packages import default_cache
from examples.m4.corpus.parts import find_parts
from namedmesh.errors.errors import NamedMeshError, check_size, did_you_mean

SOURCES, DESCRIPTIONS = "sources.tsv", "descriptions of packages"
_COLUMNS = ("package", "version", "sha256", "bytes", "licence", "catalogs", "pages", "pairs")

Say = Callable[[str], object]


@dataclass(frozen=True)
class Wanted:
    """The contents of a corpus, as they are asked for.

    Attributes:
        languages: The codes of its languages; all if empty.
        pairs: How many train pairs, about; all if none.
        packages: The names of packages to read; by a rule if empty.
        descriptions: Whether descriptions of packages are read.
        manuals: Whether manual pages are read.
        add: Other corpora whose train pairs are added.
        held_out: A corpus whose dev and test pairs are held out, in place of the rule.
        reserved: A file with hashes of sentences that nobody may train on.
    """

    languages: Sequence[str] = ()
    pairs: int | None = None
    packages: Sequence[str] = ()
    descriptions: bool = True
    manuals: bool = True
    add: Sequence[str | os.PathLike] = ()
    held_out: str | os.PathLike | None = None
    reserved: str | os.PathLike | None = None


def build_debian_corpus(
    root: str | os.PathLike,
    wanted: Wanted = Wanted(),
    *,
    cache: str | os.PathLike | None = None,
    sources: str | os.PathLike | None = None,
    update: bool = False,
    workers: int | None = None,
    progress: Say = print,
) -> None:
    """Write the corpus of this machine's distribution to root.

    Args:
        root: A new folder, or one with a corpus that we wrote.
        wanted: What it is to hold.
        cache: Where lists and records are kept; by default in the user's cache.
        sources: A list of apt's sources to use; by default the machine's own.
        update: Whether newer lists are fetched, of newer packages. The lists that are there make
            the same corpus again.
        workers: Processes; by default two more than cores.
        progress: Called with a line for each thing that is done.

    Raises:
        NamedMeshError: If this machine has no apt, or its lists cannot be fetched.
    """
    for name, size in (("pairs", wanted.pairs), ("workers", workers)):
        if size is not None:
            check_size(size, name)
    folder = pathlib.Path(cache) if cache is not None else default_cache() / "debian"
    reserved = _read_reserved(wanted)
    held = hold_out_as_in(wanted.held_out, reserved) if wanted.held_out is not None else None
    for other in wanted.add:
        find_parts(pathlib.Path(other), None, None)  # raises for what is not a corpus
    with fresh_directory(root) as out:
        apt = Apt(folder / "apt", sources)
        if update or not apt.updated:
            progress("fetching the distribution's lists ...")
            apt.update()
        records, skipped = _extract(apt, wanted, folder / "records", workers, progress)
        with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
            place = pathlib.Path(scratch)
            for root in wanted.add:
                progress(f"reading {root} ...")
                records.append(add_corpus(pathlib.Path(root), place))
            progress("gathering translations of the same English ...")
            buckets, held = gather(
                records,
                place,
                manuals=wanted.manuals,
                held=held,
                reserved=reserved,
                workers=workers,
            )
            counts = write_corpus_files(out, buckets, held, wanted.languages, wanted.pairs)
            _check_languages(wanted, counts, buckets)
            _write_facts(out, apt, wanted, records, skipped, counts)
    progress(format_counts(counts))


def _extract(
    apt: Apt, wanted: Wanted, folder: pathlib.Path, workers: int | None, progress: Say
) -> tuple[list[pathlib.Path], dict[str, str]]:
    """Make the records; return them, and why packages were skipped."""
    selection = (
        select_named(apt, wanted.packages)
        if wanted.packages
        else select_packages(apt, manuals=wanted.manuals)
    )
    count = len(selection.packages)
    progress(f"{apt.origin}: {count:,} packages, {selection.size / 1e6:,.0f} MB")
    with _progress_bar(count) as report:
        records, skipped = extract_packages(apt, selection, folder, workers=workers, report=report)
    for name, reason in skipped.items():
        progress(f"skipped {name}: {reason}")
    if not records:
        raise NamedMeshError(
            "no package could be read", fix="run again where apt can reach its sources"
        )
    paths = [records[name] for name in sorted(records)]
    if wanted.descriptions and not wanted.packages:
        path = folder / f"descriptions_{RULES}_{apt.digest}.gz"
        if not path.exists():
            progress("reading descriptions of packages ...")
            found = read_descriptions(apt)
            facts = {
                "package": DESCRIPTIONS,
                "version": apt.origin,
                "licence": "in the packages",
                "pairs": sum(len(each) for by in found.values() for each in by.values()),
            }
            write_record(path, facts, found)
        paths.append(path)
    return paths, skipped


def _read_reserved(wanted: Wanted) -> frozenset[str]:
    """Read the hashes of sentences that nobody may train on."""
    if wanted.reserved is None:
        return frozenset()
    try:
        return frozenset(pathlib.Path(wanted.reserved).read_text().split())
    except OSError as error:
        raise NamedMeshError(
            f"cannot read {str(wanted.reserved)!r}: {error.strerror}",
            fix="give a file of hashes, one a line",
        ) from None


def _check_languages(wanted: Wanted, counts: Counts, buckets: Sequence[pathlib.Path]) -> None:
    """Raise for a language that was asked for and has no pairs, and if there is none."""
    if not counts:
        raise NamedMeshError(
            f"no language has {FEWEST} train pairs", fix="read more packages, or all"
        )
    for language in wanted.languages:
        if language not in counts:
            raise NamedMeshError(
                f"the packages have too little of language {language!r}",
                fix=did_you_mean(language, list_languages(buckets)),
            )


def _write_facts(
    out: pathlib.Path,
    apt: Apt,
    wanted: Wanted,
    records: Sequence[pathlib.Path],
    skipped: dict[str, str],
    counts: Counts,
) -> None:
    """Write what the corpus was made of: sources.tsv with licences, and corpus.json."""
    facts = [read_facts(path) for path in records]
    names = [str(fact["package"]) for fact in facts]
    others = [name for name in names if name == DESCRIPTIONS or name.startswith(f"{ADDED} ")]
    rows = [_COLUMNS, *([str(fact.get(name, "")) for name in _COLUMNS] for fact in facts)]
    text = "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
    (out / SOURCES).write_text(text, encoding="utf-8")
    record: dict[str, Any] = {
        "made from": f"{apt.origin}: translations are the work of the packages' translators, under "
        f"the licences of the packages, which {SOURCES} names",
        "lists": apt.digest,
        "rules": RULES,
        "packages": len(facts) - len(others),
        "other sources": others,
        "skipped": skipped,
        "pairs at most": wanted.pairs,
        "pairs": counts,
    }
    (out / MARK).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


def format_counts(counts: Counts) -> str:
    """Format the pairs of each language, the largest first, and of all."""
    from namedmesh.training import render_table  # here, since it imports jax

    header = ["language", "train", "dev", "test"]
    order = sorted(counts, key=lambda language: (-counts[language]["train"], language))
    rows = [[code, *(f"{counts[code][split]:,}" for split in header[1:])] for code in order]
    sums = [sum(each[split] for each in counts.values()) for split in header[1:]]
    rows.append([f"all {len(counts)}", *(f"{each:,}" for each in sums)])
    return render_table(header, rows, right=header[1:])


@contextlib.contextmanager
def _progress_bar(total: int) -> Iterator[Callable[[int], None]]:
    """Show how many packages are done: a bar on a terminal, a line now and then elsewhere."""
    from namedmesh.training import ProgressBar  # here, since it imports jax

    bars: list[ProgressBar] = []

    def report(count: int) -> None:
        if not bars:  # what is done already says nothing of the time that the rest takes
            bars.append(ProgressBar(count, total, unit="package"))
        bars[0].show(count, {})

    try:
        yield report
    finally:
        for bar in bars:
            bar.close()
