"""Runs a notebook and compares what its cells print with the outputs that are saved in it."""

from __future__ import annotations

import pathlib
from typing import Any

import nbformat
from nbclient import NotebookClient

from docs.site.tutorials import read_output
from tests.docs.pages import WRITES_OUTPUTS, match_output

# IPython names the code of a cell after its process and a hash, and plans print that name. This
# cell comes first, so the others are numbered from 1 again.
SETUP = """
get_ipython().compile.get_code_name = lambda raw, code, number: f"cell {number - 1}"
"""


def execute(notebook: Any, folder: pathlib.Path) -> list[Any]:
    """Run a copy of a notebook in a fresh kernel and return its cells with their outputs."""
    copy: Any = nbformat.from_dict(notebook)
    copy.cells = [nbformat.v4.new_code_cell(SETUP), *copy.cells]
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(copy, timeout=240, kernel_name="python3", resources=resources)
    client.execute()
    return copy.cells[1:]


def read_printed(cell: Any) -> str:
    """Return what a cell printed and the value it ended with, without warnings on stderr."""
    return "".join(
        read_output(output) for output in cell.outputs if output.get("name") != "stderr"
    ).rstrip()


def check_notebook(path: pathlib.Path, folder: pathlib.Path) -> None:
    """Run a notebook; raises AssertionError where it shows something other than it prints."""
    notebook = nbformat.read(path, as_version=4)
    wrong = []
    for saved, cell in zip(notebook.cells, execute(notebook, folder), strict=True):
        if saved.cell_type != "code":
            continue
        expected, printed = read_printed(saved), read_printed(cell)
        if not match_output(expected, printed):
            wrong.append(f"shows\n{expected}\nbut prints\n{printed}")
            stream = nbformat.v4.new_output("stream", name="stdout", text=printed + "\n")
            saved.outputs = [stream] if printed else []
    if wrong and WRITES_OUTPUTS:
        nbformat.write(notebook, path)
    elif wrong:
        raise AssertionError(f"{path.name} " + "\n\n".join(wrong))
