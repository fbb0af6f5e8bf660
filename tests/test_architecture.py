"""Imports go one way, as docs/architecture.md says."""

import ast
import pathlib

PACKAGE = pathlib.Path(__file__).parent.parent / "namedmesh"
ALLOWED = {
    "dims": {"dims"},
    "ir": {"dims", "ir", "ops"},
    "ops": {"dims", "ir", "ops"},
    "lowering": {"dims", "ir", "ops", "lowering", "runtime"},
    "hlo": {"dims", "hlo"},
    "runtime": {"dims", "hlo", "runtime"},
    "aot": {"dims", "hlo", "runtime", "aot"},
    "training": {"dims", "runtime", "training"},
    "layers": {"dims", "ir", "ops", "layers"},
}


def imported(path: pathlib.Path) -> set[str]:
    """The folders of the package that a file imports from."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.startswith("namedmesh.")
        ):
            names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names.update(
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("namedmesh.")
            )
    return names


def test_every_folder_imports_only_what_it_may():
    wrong = {
        str(path.relative_to(PACKAGE)): sorted(imported(path) - allowed)
        for folder, allowed in ALLOWED.items()
        for path in (PACKAGE / folder).rglob("*.py")
        if imported(path) - allowed
    }
    assert wrong == {}


def test_only_one_file_of_the_runtime_uses_private_parts_of_jax_to_run_modules():
    private = [
        path.name for path in (PACKAGE / "runtime").glob("*.py") if "jax._src" in path.read_text()
    ]
    assert sorted(private) == ["bridge.py"]


def test_files_stay_small():
    long = {
        path.name: lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 400
    }
    assert long == {}
