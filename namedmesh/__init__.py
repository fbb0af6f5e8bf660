"""namedmesh: models in named dimensions, with a communication plan checked against the compiler.

Names are served on demand, so that `import namedmesh.runtime` needs no TensorFlow.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from namedmesh.dims.version import __version__ as __version__

os.environ.setdefault(
    "TF_CPP_MIN_LOG_LEVEL", "2"
)  # what XLA and TensorFlow log as warnings is not the user's doing

if TYPE_CHECKING:
    from namedmesh.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in ("api", "aot", "dims", "hlo", "ir", "layers", "lowering", "ops", "runtime"):
        return importlib.import_module(f"namedmesh.{name}")
    api = importlib.import_module("namedmesh.api")
    if not hasattr(api, name):
        raise AttributeError(f"module 'namedmesh' has no attribute {name!r}")
    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(
        name for name in vars(importlib.import_module("namedmesh.api")) if not name.startswith("_")
    )
