"""A Llama-style layer, and steps that everybody writes, send no more than the least they need."""

import pytest

from benchmarks.llama_plans import ROWS, count_bytes


@pytest.mark.parametrize("name", ROWS)
def test_a_layer_sends_the_least_bytes(name):
    assert count_bytes(ROWS[name]) <= 1.001 * ROWS[name].minimum
