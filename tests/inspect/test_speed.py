"""nm.inspect takes time in proportion to the size of a module."""

from __future__ import annotations

import time

import namedmesh as nm
from tests.inspect.large_module import write_module


def measure(size: int) -> float:
    """Processor seconds for a module of so many bytes, and check what is seen of it."""
    text, layers = write_module(size)
    start = time.process_time()
    seen = nm.inspect(text)
    seconds = time.process_time() - start
    assert (seen.count("AllGather", "forward"), seen.count("AllReduce")) == (layers, layers)
    assert {one.source.line for one in seen.collectives} == set(range(1, 301))
    assert [one.kind for one in seen.findings] == ["whole activation"]  # nothing is split
    return seconds


def test_four_times_the_module_takes_about_four_times_the_time():
    small, large = (min(measure(size) for _ in range(3)) for size in (2**20, 2**22))
    assert large < 8 * small  # 16 if anything were quadratic
