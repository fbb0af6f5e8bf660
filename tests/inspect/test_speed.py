"""nm.inspect takes little of the time that the compiler took, and linear time for large modules."""

from __future__ import annotations

import time

import jax
import pytest

import namedmesh as nm
from namedmesh.inspect import inspect as code
from tests.inspect import steps
from tests.inspect.large_module import write_module


def measure(size: int) -> float:
    """Processor seconds for a module of so many bytes, and check what is seen of it."""
    text, layers = write_module(size)
    start = time.process_time()
    seen = nm.inspect(text)
    seconds = time.process_time() - start
    assert (seen.count("AllGather", "forward"), seen.count("AllReduce")) == (layers, layers)
    assert {one.source.line for one in seen.collectives} == set(range(1, 301))
    assert seen.findings == ()
    return seconds


@pytest.mark.slow
def test_ten_megabytes_take_less_than_five_seconds():
    assert min(measure(10 * 2**20) for _ in range(3)) < 5


def test_twice_the_module_takes_about_twice_the_time():
    half, whole = (min(measure(size) for _ in range(3)) for size in (2**20, 2**21))
    assert whole < 3.2 * half


@pytest.mark.slow
def test_reading_takes_less_than_a_tenth_of_compiling():
    step, *arguments = steps.step()
    best = 1.0
    for _ in range(3):
        jax.clear_caches()
        lowered = step.lower(*arguments)
        start = time.process_time()
        compiled = lowered.compile()
        middle = time.process_time()
        nm.inspect(compiled)
        best = min(best, (time.process_time() - middle) / (middle - start))
    assert best < 0.1
    assert code.LARGEST_TEXT > 10 * 2**20
