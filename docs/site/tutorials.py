"""Tutorial pages, one for each notebook in docs/tutorials, with the outputs saved in it."""

from __future__ import annotations

import pathlib
from typing import Any

import nbformat

TUTORIALS = pathlib.Path(__file__).parent.parent / "tutorials"


def find_notebooks() -> list[pathlib.Path]:
    """Return the notebooks in the order of their names."""
    return sorted(TUTORIALS.glob("*.ipynb"))


def read_title(path: pathlib.Path) -> str:
    """Return the heading that a notebook starts with."""
    first = nbformat.read(path, as_version=4).cells[0].source
    return first.splitlines()[0].removeprefix("# ")


def format_cell(cell: Any) -> str:
    """Return a cell as Markdown: its text, or its code and what it printed."""
    if cell.cell_type == "markdown":
        return cell.source
    parts = [f"```python\n{cell.source}\n```"]
    printed = "".join(read_output(output) for output in cell.outputs).rstrip()
    if printed:
        parts.append(f"```text\n{printed}\n```")
    return "\n\n".join(parts)


def read_output(output: Any) -> str:
    """Return the text of one output of a cell."""
    if output.output_type == "stream":
        return output.text
    return output.get("data", {}).get("text/plain", "") + "\n"


def format_notebook(path: pathlib.Path) -> str:
    """Return a notebook as a page of Markdown with a link to the notebook itself."""
    title, *rest = (format_cell(cell) for cell in nbformat.read(path, as_version=4).cells)
    link = f"[Download this page as a notebook]({path.name}){{ .notebook }}"
    heading, _, text = title.partition("\n")
    return "\n\n".join([heading, link, text.strip(), *rest]) + "\n"
