"""Processes that share the work on a corpus, and end with the one that started them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager


@contextmanager
def open_pool(workers: int | None) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes; an exception, also that of ctrl-C, ends them at once.

    Args:
        workers: Processes; by default as many as cores.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            yield pool
        except BaseException:
            # Otherwise the pool would first finish every batch that was submitted.
            for process in multiprocessing.active_children():
                process.terminate()
            raise
