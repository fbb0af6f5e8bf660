"""Reports opened in a real browser: the system's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import namedmesh as nm
from tests.report.models import LAYOUT, MESH, largest_plan, small_plan, small_program

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The system's Chromium."""
    if not BROWSER:
        pytest.skip("there is no Chromium on this machine")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def reports(tmp_path_factory) -> dict[str, Path]:
    """Reports of a small step, audited, of two of its plans, and of 600 billion weights."""
    folder = tmp_path_factory.mktemp("reports")
    paths = {name: folder / f"{name}.html" for name in ("small", "two", "largest")}
    step = nm.compile(small_program(), mesh=MESH, layout=LAYOUT)
    nm.report(small_plan(), paths["small"], target="h200", audit=step.audit)
    other = small_plan("batch:data+tensor")
    nm.report(small_plan(), paths["two"], target="h200", beside=other)
    nm.report(largest_plan(), paths["largest"])
    return paths


@pytest.fixture
def open_page(browser, reports) -> Iterator[Callable[..., Any]]:
    """Opens reports; at the end, their consoles must have said nothing and loaded nothing."""
    said: list[str] = []
    pages = []

    def opened(
        name: str | Path, width: int = 1400, height: int = 1000, hash: str = "", **options: Any
    ):
        # Playwright waits by eval, which the page's own policy forbids.
        options = {"bypass_csp": True} | options
        page = browser.new_page(viewport={"width": width, "height": height}, **options)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda one: said.append(one.url) if "file:" not in one.url else None)
        path = reports[name] if isinstance(name, str) else name
        page.goto(f"{path.as_uri()}{hash}")
        page.wait_for_selector("footer")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert [line for line in said if line != "data:,"] == []
