"""Twenty mistakes in models of other libraries, where these are installed."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import pytest

from benchmarks.inspect_models import further, mistakes

MODULES = {name: module for module in (mistakes, further) for name in module.CASES}
LIBRARIES = {"nnx": "flax", "equinox": "equinox", "haliax": "haliax", "penzai": "penzai"}


def test_there_are_twenty_of_all_kinds():
    kinds = {kind for kind, _, _ in mistakes.CASES.values()}
    assert len(mistakes.CASES) == 20
    assert len(kinds) == 11


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_a_mistake_is_found_at_its_line_and_without_it_nothing(name):
    library = name.partition("_")[0]
    if library != "plain":
        pytest.importorskip(LIBRARIES.get(library) or library)
    kind, target, _ = MODULES[name].CASES[name]
    if target is not None:
        pytest.importorskip("jax_plugins.xla_cuda12" if jax.__version__ < "0.11" else "jax_plugins")
    # Sixteen devices, and perhaps Keras' backend: a process of its own.
    words = [sys.executable, "-m", MODULES[name].__name__, name]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ}, check=False)
    assert done.returncode == 0, done.stderr
    rows = [mistakes.json.loads(line) for line in done.stdout.splitlines()]
    found = [(one["at_its_line"] or not kind, one["found"], one["clean"]) for one in rows]
    assert found == [(True, True, [])] * 2, rows
