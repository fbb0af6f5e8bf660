"""From packages to records: downloaded in small batches, read as streams, by several processes.

What has a record is not downloaded again, so that a stopped extraction goes on where it was.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial

from examples.m4.corpus.debian.apt import Apt, DebianPackage
from examples.m4.corpus.debian.debs import read_package
from examples.m4.corpus.debian.records import write_record
from examples.m4.corpus.debian.selection import Selection
from examples.m4.corpus.debian.workers import open_pool
from namedmesh.errors.errors import NamedMeshError

RULES = 1  # a change of what is extracted makes new records: raise this number
BATCH_PACKAGES, BATCH_BYTES = 12, 64 << 20  # that lie on disk at a time, for each process

NO_PAGES: frozenset[str] = frozenset()

Skipped = dict[str, str]  # why packages were skipped, by name


def extract_packages(
    apt: Apt,
    selection: Selection,
    folder: pathlib.Path,
    *,
    workers: int | None = None,
    report: Callable[[int], None] = lambda count: None,
) -> tuple[dict[str, pathlib.Path], Skipped]:
    """Make a record of every package.

    Args:
        apt: The distribution.
        selection: The packages.
        folder: Where records are kept.
        workers: Processes; by default two more than cores, since some wait for downloads.
        report: Called with the number of packages that are done.

    Returns:
        The records by package; and why packages were skipped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records = {
        name: folder / _record_name(package, selection.pages.get(name, NO_PAGES))
        for name, package in selection.packages.items()
    }
    missing = [
        package for name, package in selection.packages.items() if not records[name].exists()
    ]
    done, skipped = len(records) - len(missing), Skipped()
    report(done)
    batches = _batches(missing)
    workers = workers or (os.cpu_count() or 1) + 2
    with open_pool(workers) as pool:
        extract = partial(_extract_batch, apt, selection.pages, folder)
        running: set[Future] = {
            pool.submit(extract, batch) for batch in itertools.islice(batches, 2 * workers)
        }
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                count, failures = future.result()
                done, skipped = done + count, skipped | failures
                report(done)
            running |= {
                pool.submit(extract, batch) for batch in itertools.islice(batches, len(finished))
            }
    found = {name: path for name, path in records.items() if path.exists()}
    return found, dict(sorted(skipped.items()))


def _batches(packages: Sequence[DebianPackage]) -> Iterator[list[DebianPackage]]:
    """Group packages into batches that are small enough for the disk."""
    batch: list[DebianPackage] = []
    for package in packages:
        size = sum(one.size for one in batch) + package.size
        if batch and (len(batch) == BATCH_PACKAGES or size > BATCH_BYTES):
            yield batch
            batch = []
        batch.append(package)
    if batch:
        yield batch


def _extract_batch(
    apt: Apt,
    pages: Mapping[str, frozenset[str]],
    folder: pathlib.Path,
    batch: Sequence[DebianPackage],
) -> tuple[int, Skipped]:
    """Download and read a batch, in a process of its own; count what is done."""
    skipped = Skipped()
    with tempfile.TemporaryDirectory(prefix=".extracting-", dir=folder) as scratch:
        place = pathlib.Path(scratch)
        apt.download(batch, place)
        for package in batch:
            wanted = pages.get(package.name, NO_PAGES)
            try:
                path = _find_file(package, place) or _download_alone(apt, package, place)
                extract = read_package(path, wanted)
            except NamedMeshError as error:
                skipped[package.name] = error.problem
                continue
            facts = {
                "package": package.name,
                "version": package.version,
                "sha256": package.sha256,
                "bytes": package.size,
                "licence": extract.licence,
                "catalogs": extract.catalogs,
                "damaged catalogs": extract.damaged,
                "pairs": extract.pairs,
            }
            record = folder / _record_name(package, wanted)
            write_record(record, facts, extract.messages, extract.pages)
            path.unlink()
    return len(batch), skipped


def _download_alone(apt: Apt, package: DebianPackage, place: pathlib.Path) -> pathlib.Path:
    """Download one package that did not come with its batch; raise with apt's message."""
    said = apt.download([package], place).strip().splitlines()
    path = _find_file(package, place)
    if path is None:
        reason = next((line for line in said if line.startswith("E:")), "nothing was downloaded")
        raise NamedMeshError(f"apt could not download {package.name}: {reason}", fix="try again")
    return path


def _find_file(package: DebianPackage, place: pathlib.Path) -> pathlib.Path | None:
    """Return the downloaded file of a package."""
    return next(iter(place.glob(f"{package.name}_*.deb")), None)


def _record_name(package: DebianPackage, pages: frozenset[str]) -> str:
    """Return the name of a package's record: another for other contents or other rules."""
    wanted = hashlib.sha256("\n".join(sorted(pages)).encode()).hexdigest()
    state = hashlib.sha256(f"{RULES} {package.sha256} {wanted}".encode())
    return f"{package.name}_{state.hexdigest()[:16]}.gz"
