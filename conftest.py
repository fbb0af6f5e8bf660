"""Every test runs on eight virtual CPU devices, and an unplanned collective is an error."""

import gc
import inspect
import os
from collections import Counter

os.environ["NAMEDMESH_STRICT"] = "1"
# Collectives and numbers are the same, and compiling takes half of the time.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
)

import pytest

import namedmesh as nm
from namedmesh import layers
from namedmesh.runtime import use_cpu_devices
from tests.slow_tests import SLOW, THINNED

use_cpu_devices(8)


@pytest.fixture(autouse=True)
def _names_of_examples(doctest_namespace: dict[str, object]) -> None:
    """Examples in docstrings need not import namedmesh, nor the layers that they use."""
    public = {name: value for name, value in vars(layers).items() if not inspect.ismodule(value)}
    doctest_namespace.update({"nm": nm}, **public)


def pytest_collection_finish() -> None:
    """Let the collector leave alone what stays to the end, and come less often: 8% of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of `tests/slow_tests.py` as slow."""
    starts = tuple(f"tests/{start}" for start in SLOW)
    seen: Counter[str] = Counter()
    for item in items:
        name = item.nodeid.partition("[")[0]
        every = THINNED.get(name.removeprefix("tests/"), 1)
        if item.nodeid.startswith(starts) or seen[name] % every:
            item.add_marker(pytest.mark.slow)
        seen[name] += 1
