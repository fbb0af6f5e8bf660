"""The site builds without a warning, has every public name, and loads nothing from the network."""

import pathlib
import re

import pytest

import namedmesh as nm
from docs.site.build import build, check_nav
from docs.site.reference import TOPICS, find_public_names, find_topic, make_pages

ROOT = pathlib.Path(__file__).parent.parent.parent
# What a browser loads by itself, as opposed to what a reader may click on.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc\s*=\s*["']?([^"'\s>]+)"""
    r"""|<link\b[^>]*\brel=["']?(?:stylesheet|preconnect|preload|icon|manifest)[^>]*"""
    r"""\bhref\s*=\s*["']?([^"'\s>]+)"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> pathlib.Path:
    """The built site; a warning stops the build."""
    return build(tmp_path_factory.mktemp("site"))


def public_names() -> list[str]:
    """The public names of `nm`."""
    return sorted(name for name in dir(nm) if not name.startswith("_"))


def test_every_public_name_is_on_a_reference_page(site):
    pages = {path.stem: path.read_text() for path in (site / "reference").glob("*.html")}
    packages = {name: topic.file for topic in TOPICS for name in topic.packages}
    missing = []
    for name in public_names():
        page = packages.get(f"namedmesh.{name}")
        shown = rf">\s*nm\.{name}\b(?=[\s<.])" if page is None else rf">\s*{name}\."
        text = "\n".join(pages.values()) if page is None else pages.get(page, "")
        if not re.search(shown, text):
            missing.append(name)
    assert missing == []


def test_every_public_name_is_found_without_importing():
    assert sorted(find_public_names()) == public_names()


def test_every_public_name_has_a_topic():
    assert not {"more", "more-ops"} & {*make_pages()}


def test_a_new_name_goes_to_the_page_of_its_room():
    assert find_topic("scan", "namedmesh.ops.anywhere.scan").file == "control"
    assert find_topic("new", "namedmesh.ops.anywhere.new").file == "more-ops"
    assert find_topic("new", "namedmesh.planning.anywhere.new").file == "plans"
    assert find_topic("new", "namedmesh.lowering.anywhere.new").file == "running"
    assert find_topic("new", "namedmesh.nowhere.new").file == "more"


def test_names_of_topics_are_public():
    listed = {name for topic in TOPICS for name in topic.names}
    assert listed - set(find_public_names()) == set()


def test_a_page_missing_in_the_navigation_is_found(tmp_path):
    (tmp_path / "here.md").write_text("# Here")
    with pytest.raises(SystemExit, match=r"here\.md"):
        check_nav({"nav": [{"Other": "other.md"}]}, tmp_path)


def test_every_topic_has_a_page():
    assert {*make_pages()} == {topic.file for topic in TOPICS} - {"more-ops"}


def test_nothing_is_loaded_from_the_network(site):
    loaded = {
        (path.name, url)
        for path in site.rglob("*.html")
        for match in LOADED.finditer(path.read_text())
        for url in match.groups()
        if url and re.match(r"(https?:)?//", url)
    }
    assert loaded == set()
    styles = "\n".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"""(url\(|@import)\s*["']?(https?:)?//""", styles)


def test_the_search_for_what_is_loaded_finds_it():
    html = '<script async src="https://a/b.js"></script><link rel="stylesheet" href="//c/d.css">'
    assert [m.group(1) or m.group(2) for m in LOADED.finditer(html)] == [
        "https://a/b.js",
        "//c/d.css",
    ]


def test_notebooks_can_be_downloaded(site):
    for path in (ROOT / "docs" / "tutorials").glob("*.ipynb"):
        assert (site / "tutorials" / path.name).read_bytes() == path.read_bytes()
        page = (site / "tutorials" / f"{path.stem}.html").read_text()
        assert f'href="{path.name}"' in page


def test_nothing_of_the_build_is_published(site):
    assert [path.name for path in site.rglob("*.py")] == []
