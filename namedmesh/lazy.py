"""Lazy names: a package serves the public names of its stub file on first use."""

import ast
import difflib
import importlib
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

from namedmesh.errors.mistakes import explain_calls

# Modules that a user may mean when a name is not found in the package itself.
_NEIGHBOURS = ("layers", "random", "training", "runtime")


def read_stub(file: str) -> dict[str, str]:
    """Map every name that the stub beside an `__init__.py` imports to the module it is from."""
    stub = pathlib.Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = (node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def serve_names(
    package: str, file: str, prepare: Callable[[str], None] = lambda module: None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package with a stub file."""
    # `prepare` is called with the module of a name before it is imported.
    names: dict[str, str] = {}

    def load_name(name: str) -> Any:
        names.update(names or read_stub(file))
        if name not in names:
            advice = _suggest_name(package, name, names)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{advice}")
        module = names[name]
        prepare(module)
        owner = importlib.import_module(module)
        if hasattr(owner, "__path__"):  # a package: the name is a module that is public itself
            value = importlib.import_module(f"{module}.{name}")
        else:
            value = getattr(owner, name)
        if isinstance(value, types.FunctionType):
            prefix = "nm" if package == "namedmesh" else package
            value = explain_calls(value, f"{prefix}.{name}")
        return vars(sys.modules[package]).setdefault(name, value)

    def list_names() -> list[str]:
        return sorted(names or read_stub(file))

    return load_name, list_names


# Names of jax and PyTorch, and what to write for them: no spelling is close to these.
_FOREIGN = {
    "jit": "nm.compile",
    "dot": "nm.einsum",
    "matmul": "nm.einsum",
    "tensordot": "nm.einsum",
    "iota": "nm.range",
    "arange": "nm.range",
    "shard_map": "nm.manual",
    "psum": "nm.manual, in which nm.sum adds up over devices,",
    "save": "nm.training.Checkpoints",
    "load": "nm.Artifact.load",
    "Module": "a function that calls nm.param",
    "float32": "the text 'float32'",
    "bfloat16": "the text 'bfloat16'",
    "int32": "the text 'int32'",
}


def _suggest_name(package: str, name: str, names: dict[str, str]) -> str:
    """Suggest a public name in place of one that a package lacks, of nm.layers and the like too."""
    if package == "namedmesh" and name in _FOREIGN:
        return f"; did you mean {_FOREIGN[name]}?"
    choices = {one: repr(one) for one in names}
    if package == "namedmesh" and not name.startswith("_"):
        for neighbour in _NEIGHBOURS:
            module = getattr(sys.modules[package], neighbour)
            for one in dir(module):
                if not one.startswith("_"):
                    choices.setdefault(one, f"nm.{neighbour}.{one}")
    # layernorm is as close to layer_norm as two spellings can be.
    plain = {one.replace("_", "").lower(): one for one in sorted(choices, reverse=True)}
    close = difflib.get_close_matches(name.replace("_", "").lower(), plain, n=1)
    return f"; did you mean {choices[plain[close[0]]]}?" if close else ""
