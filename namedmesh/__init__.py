"""namedmesh: models in named dimensions, with a communication plan checked against the compiler.

The public names are listed in `__init__.pyi`, which editors read. Here they are served on demand,
each from the file that defines it: tracing and planning import neither TensorFlow nor jax, and
running an Artifact imports neither TensorFlow nor the ops.
"""

import ast
import difflib
import functools
import importlib
import os
import pathlib
from typing import Any

# XLA and TensorFlow log as warnings what is not the user's doing.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@functools.cache
def _public_names() -> dict[str, str]:
    """The module of every public name, as the stub file has it."""
    stub = pathlib.Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = (node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    module = _public_names().get(name)
    if module is None:
        close = difflib.get_close_matches(name, _public_names(), n=1)
        advice = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module 'namedmesh' has no attribute {name!r}{advice}")
    if module.startswith("namedmesh.ir."):
        # The catalogue enters what tensors' + and ** call; ir itself does not know the ops.
        for part in (
            "arithmetic",
            "bitwise",
            "logic",
            "mathematics",
            "indexing",
            "replace",
            "methods",
        ):
            importlib.import_module(f"namedmesh.ops.{part}")
    if module.startswith("namedmesh.lowering."):
        importlib.import_module("namedmesh.comparison.plan_methods")  # as Plan.save looks up
    if module in ("namedmesh", "namedmesh.ops"):  # a module that is public itself
        value = importlib.import_module(f"{module}.{name}")
    else:
        value = getattr(importlib.import_module(module), name)
    # `import namedmesh.dims` leaves the package under this name; it is callable like the function.
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted(_public_names())
