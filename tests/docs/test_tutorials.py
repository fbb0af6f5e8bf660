"""Every notebook runs, and its saved outputs are what it prints."""

import nbformat
import pytest

from docs.site.tutorials import find_notebooks, format_notebook, read_title
from tests.docs.notebooks import check_notebook


@pytest.mark.parametrize("path", find_notebooks(), ids=lambda path: path.stem)
def test_the_notebook_shows_what_it_prints(path, tmp_path):
    check_notebook(path, tmp_path)


def test_there_are_tutorials():
    assert [path.stem for path in find_notebooks()] == ["first_model", "layouts_and_plans"]


@pytest.mark.parametrize("path", find_notebooks(), ids=lambda path: path.stem)
def test_the_page_has_every_cell_and_output(path):
    page = format_notebook(path)
    assert page.startswith(f"# {read_title(path)}\n")
    for cell in nbformat.read(path, as_version=4).cells[1:]:
        assert cell.source in page
    assert page.count("```python") == page.count("```") // 2 - page.count("```text")
    assert "\n```text\n" in page


def test_a_notebook_that_shows_something_else_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.docs.notebooks.WRITES_OUTPUTS", False)
    cell = nbformat.v4.new_code_cell("print(1)")
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="2\n")]
    path = tmp_path / "wrong.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    with pytest.raises(AssertionError, match="shows\n2\nbut prints\n1"):
        check_notebook(path, tmp_path)
