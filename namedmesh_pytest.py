"""The pytest plugin of namedmesh: golden files of collectives, and diffs without tracebacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

UPDATE = "NAMEDMESH_UPDATE_COLLECTIVES"  # which nm.testing reads, in workers of xdist too


def pytest_addoption(parser: Any) -> None:
    """Add the option that writes golden files."""
    group = parser.getgroup("namedmesh")
    text = "write the golden files of nm.testing.assert_collectives"
    group.addoption("--update-collectives", action="store_true", help=text)


def pytest_configure(config: Any) -> None:
    """Tell all processes that golden files are to be written."""
    if config.getoption("--update-collectives"):
        os.environ[UPDATE] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    """Show what came and went, instead of the frames that found it."""
    report = yield
    raised = call.excinfo
    differs = raised is not None and raised.typename == "CollectivesDiffer"
    if raised is not None and differs and not item.config.getoption("fulltrace"):
        frames = [one for one in raised.traceback if str(one.path) == str(item.path)]
        at = f"{item.path}:{frames[-1].lineno + 1}\n" if frames else ""
        report.longrepr = f"{at}{raised.value}"
    return report
