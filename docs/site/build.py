"""Build the site: pages of docs/, pages generated from the package and the notebooks, one config.

Zensical has no hooks, so that generated pages are written beside copies of the others first.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from typing import Any

import yaml

from docs.site import reference, tutorials

ROOT = pathlib.Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
CONFIG = DOCS / "site" / "config.yml"


def write_pages(folder: pathlib.Path) -> None:
    """Write every page of the site into a folder."""
    ignored = shutil.ignore_patterns("site", "__pycache__")
    shutil.copytree(DOCS, folder, ignore=ignored, dirs_exist_ok=True)
    (folder / "reference").mkdir()
    for file, page in reference.make_pages().items():
        (folder / "reference" / f"{file}.md").write_text(page.markdown)
    for path in tutorials.find_notebooks():
        page = folder / "tutorials" / f"{path.stem}.md"
        page.write_text(tutorials.format_notebook(path))


def make_config() -> dict[str, Any]:
    """Return the settings of the site, with the generated pages in its navigation."""
    config = yaml.safe_load(CONFIG.read_text())
    generated = {
        "API": [
            {page.topic.title: f"reference/{file}.md"}
            for file, page in reference.make_pages().items()
        ],
        "Tutorials": [
            {tutorials.read_title(path): f"tutorials/{path.stem}.md"}
            for path in tutorials.find_notebooks()
        ],
    }
    fill(config["nav"], generated)
    handler = config["plugins"][-1]["mkdocstrings"]["handlers"]["python"]
    handler["paths"] = [str(ROOT)]
    handler["options"]["extensions"] = [f"{ROOT}/docs/site/doctests.py:Doctests"]
    return config


def fill(nav: list[Any], generated: dict[str, list[Any]]) -> None:
    """Put generated pages into the sections of a navigation that are named after them."""
    for entry in nav:
        if not isinstance(entry, dict):
            continue
        for title, pages in entry.items():
            if title in generated:
                entry[title] = generated[title]
            elif isinstance(pages, list):
                fill(pages, generated)


def find_pages(nav: Any) -> list[str]:
    """Return the pages of a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    children = nav.values() if isinstance(nav, dict) else nav
    return [page for child in children for page in find_pages(child)]


def check_nav(config: dict[str, Any], folder: pathlib.Path) -> None:
    """Raise if a page is missing in the navigation or in the folder: Zensical does not look."""
    listed = set(find_pages(config["nav"]))
    there = {str(path.relative_to(folder)) for path in folder.rglob("*.md")}
    if listed != there:
        missing, unlisted = sorted(listed - there), sorted(there - listed)
        raise SystemExit(f"docs/site/config.yml: no such pages {missing}, not in nav {unlisted}")


def build(folder: pathlib.Path) -> pathlib.Path:
    """Build the site into `site` inside a folder, and return where it is; a warning is an error."""
    pages, site = folder / "pages", folder / "site"
    for old in (pages, site):
        shutil.rmtree(old, ignore_errors=True)
    write_pages(pages)
    config = make_config()
    check_nav(config, pages)
    settings = folder / "site.yml"
    settings.write_text(yaml.safe_dump(config, sort_keys=False))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run([*command, "--config-file", str(settings)], cwd=folder)
    if done.returncode:
        raise SystemExit(done.returncode)
    return site


if __name__ == "__main__":
    build(ROOT / "build")
