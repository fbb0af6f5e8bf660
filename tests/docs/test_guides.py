"""The code of every page runs, and prints what the page shows."""

import pathlib

import pytest

from tests.docs.pages import Page, match_output

DOCS = pathlib.Path(__file__).parent.parent.parent / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_the_page_shows_what_its_code_prints(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Page(path).run()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "its code prints"),
        ("```python\nprint(1)\n```\n", "does not show this output"),
        ("```python\nprint(1)\n```\n\n```python\nx = 2\n```\n", "does not show this output"),
        ("```text\n1\n```\n", "prints nothing"),
    ],
)
def test_a_page_that_shows_something_else_fails(text, problem, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.docs.pages.WRITES_OUTPUTS", False)
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError, match=problem):
        Page(page).run()


def test_outputs_are_written_where_they_are_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.docs.pages.WRITES_OUTPUTS", True)
    page = tmp_path / "page.md"
    page.write_text("a\n\n```python\nprint('new')\n```\n\n```text\nold\n```\n\nb\n")
    Page(page).run()
    assert page.read_text() == "a\n\n```python\nprint('new')\n```\n\n```text\nnew\n```\n\nb\n"


@pytest.mark.parametrize(
    ("shown", "matches"),
    [("  a\n\n  b 1\n", True), ("a\n\nb 1", True), ("a\n\nb ...", True), ("a\n\n  b 1", False)],
)
def test_indentation_of_all_lines_and_ellipses_are_ignored(shown, matches):
    assert match_output(shown, "  a\n\n  b 1\n") is matches
