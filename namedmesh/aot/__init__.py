"""Answers for absent machines: Artifacts compiled for devices that are not here.

Names are served from their files when they are first asked for, so that jax is imported when
something is compiled.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from namedmesh.aot.assignment import Assignment as Assignment
    from namedmesh.aot.assignment import torus_assignment as torus_assignment
    from namedmesh.aot.attribution import Buffer as Buffer
    from namedmesh.aot.compilation import compile_for as compile_for
    from namedmesh.aot.memory import Memory as Memory
    from namedmesh.aot.target import Target as Target
    from namedmesh.aot.target_report import TargetReport as TargetReport
    from namedmesh.aot.torus import Torus as Torus

_FILES = {
    "Assignment": "assignment",
    "Buffer": "attribution",
    "Memory": "memory",
    "Target": "target",
    "TargetReport": "target_report",
    "Torus": "torus",
    "compile_for": "compilation",
    "torus_assignment": "assignment",
}


def __getattr__(name: str) -> object:
    if name not in _FILES:
        raise AttributeError(f"module 'namedmesh.aot' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"namedmesh.aot.{_FILES[name]}"), name)
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted(_FILES)
