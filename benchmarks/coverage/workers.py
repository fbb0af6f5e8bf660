"""Processes that fill rows of the table."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from benchmarks.coverage.entry import COLUMNS
from benchmarks.coverage.run import Cell, run_op
from namedmesh.runtime import use_cpu_devices

OPS_PER_PROCESS = 12  # compiled programs stay in its memory


def start_worker() -> None:
    """Give a process its devices."""
    use_cpu_devices(8)


def fill_rows(
    names: Sequence[str], layouts: int, seed: int, workers: int
) -> Iterator[tuple[str, dict[str, Cell]]]:
    """Fill rows in several processes; an op that ends its process is found and noted."""
    left = list(names)
    with _start_pool(workers) as pool:
        rows = {pool.submit(run_op, name, layouts, seed): name for name in names}
        try:
            for row in as_completed(rows):
                yield rows[row], row.result()
                left.remove(rows[row])
        except BrokenProcessPool:
            pass
    for name in left:  # one of them ended the process it ran in
        with _start_pool(1) as pool:
            try:
                yield name, pool.submit(run_op, name, layouts, seed).result()
            except BrokenProcessPool:
                yield name, {column: {"failed": "it ended the process"} for column in COLUMNS}


def _start_pool(workers: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, start_worker)
