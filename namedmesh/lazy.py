"""Lazy names: a package serves the public names of its stub file on first use."""

import ast
import difflib
import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any


def read_stub(file: str) -> dict[str, str]:
    """Map every name that the stub beside an `__init__.py` imports to the module it is from."""
    stub = pathlib.Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = (node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def serve_names(
    package: str, file: str, prepare: Callable[[str], None] = lambda module: None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package with a stub file.

    `prepare` is called with the module of a name before it is imported.
    """
    names: dict[str, str] = {}

    def load_name(name: str) -> Any:
        names.update(names or read_stub(file))
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            advice = f"; did you mean {close[0]!r}?" if close else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{advice}")
        module = names[name]
        prepare(module)
        owner = importlib.import_module(module)
        if hasattr(owner, "__path__"):  # a package: the name is a module that is public itself
            value = importlib.import_module(f"{module}.{name}")
        else:
            value = getattr(owner, name)
        return vars(sys.modules[package]).setdefault(name, value)

    def list_names() -> list[str]:
        return sorted(names or read_stub(file))

    return load_name, list_names
