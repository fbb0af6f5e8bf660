"""How a program runs: artifacts, devices, executables, and the audit.

Needs numpy and jax, not TensorFlow. Names are served from their files when they are first asked
for, so that jax is imported when something is compiled.
"""

import importlib
import os
from typing import TYPE_CHECKING

# XLA:CPU runs every virtual device on one thread pool; with fewer threads than devices a
# collective waits for devices that never get a thread. The pool's size is read once, when jax
# starts its CPU client, so it is set before jax is imported.
os.environ.setdefault("NPROC", "64")

if TYPE_CHECKING:
    from namedmesh.runtime.artifact import Artifact as Artifact
    from namedmesh.runtime.audit import Audit as Audit
    from namedmesh.runtime.description import TensorSpec as TensorSpec
    from namedmesh.runtime.description import VariableSpec as VariableSpec
    from namedmesh.runtime.devices import use_cpu_devices as use_cpu_devices
    from namedmesh.runtime.executable import Executable as Executable
    from namedmesh.runtime.executable import cache_compilations as cache_compilations
    from namedmesh.runtime.executable import load as load
    from namedmesh.runtime.state import State as State
    from namedmesh.runtime.usage import Report as Report

_FILES = {
    "Artifact": "artifact",
    "Audit": "audit",
    "Executable": "executable",
    "Report": "usage",
    "State": "state",
    "TensorSpec": "description",
    "VariableSpec": "description",
    "cache_compilations": "executable",
    "load": "executable",
    "use_cpu_devices": "devices",
}


def __getattr__(name: str) -> object:
    if name not in _FILES:
        raise AttributeError(f"module 'namedmesh.runtime' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"namedmesh.runtime.{_FILES[name]}"), name)
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted(_FILES)
