"""Twenty mistakes in models of other libraries, where these are installed."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import pytest

from benchmarks.inspect_models import mistakes

LIBRARIES = {"nnx": "flax", "equinox": "equinox", "haliax": "haliax", "penzai": "penzai"}


def test_there_are_twenty_of_all_kinds():
    kinds = {kind for kind, _, _ in mistakes.CASES.values()}
    assert len(mistakes.CASES) == 20
    assert len(kinds) == 11


@pytest.mark.slow
@pytest.mark.parametrize("name", mistakes.CASES)
def test_a_mistake_is_found_at_its_line_and_without_it_nothing(name):
    library = name.partition("_")[0]
    pytest.importorskip(LIBRARIES.get(library) or library)
    target = mistakes.CASES[name][1]
    if target is not None:
        pytest.importorskip("jax_plugins.xla_cuda12" if jax.__version__ < "0.11" else "jax_plugins")
    # Sixteen devices, and perhaps Keras' backend: a process of its own.
    words = [sys.executable, "-m", "benchmarks.inspect_models.mistakes", name]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ}, check=False)
    assert done.returncode == 0, done.stderr
    rows = [mistakes.json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["at_its_line"], one["clean"]) for one in rows] == [(True, [])] * 2, rows
