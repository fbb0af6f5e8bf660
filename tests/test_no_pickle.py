"""No file that is read can execute code: no pickle, and nothing that unpickles."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ("namedmesh", "examples", "benchmarks")
FORBIDDEN = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
CALLS = re.compile(r"allow_pickle=True|torch\.load\(|yaml\.(load|unsafe_load|full_load)\(")


def files() -> list[pathlib.Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def imported(path: pathlib.Path) -> set[str]:
    """The packages that a file imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).partition(".")[0])
    return names


def test_nothing_imports_pickle():
    assert len(files()) > 300
    assert {str(path): bad for path in files() if (bad := imported(path) & FORBIDDEN)} == {}


def test_nothing_asks_another_library_to_unpickle():
    found = {
        str(path): match.group() for path in files() if (match := CALLS.search(path.read_text()))
    }
    assert found == {}
