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

# What XLA logs is read once too; namedmesh/runtime/collective_trace.py says what for.
if os.environ.get("NAMEDMESH_TRACE_COLLECTIVES") not in (None, "", "0"):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
    os.environ.setdefault("TF_CPP_VMODULE", "collective_thunk=3")

if TYPE_CHECKING:
    from namedmesh.runtime.artifact import Artifact as Artifact
    from namedmesh.runtime.audit import Audit as Audit
    from namedmesh.runtime.description import TensorSpec as TensorSpec
    from namedmesh.runtime.description import VariableSpec as VariableSpec
    from namedmesh.runtime.devices import use_cpu_devices as use_cpu_devices
    from namedmesh.runtime.executable import Executable as Executable
    from namedmesh.runtime.fetching import Piece as Piece
    from namedmesh.runtime.loading import cache_compilations as cache_compilations
    from namedmesh.runtime.loading import load as load
    from namedmesh.runtime.lost import LostProcess as LostProcess
    from namedmesh.runtime.processes import Processes as Processes
    from namedmesh.runtime.processes import current_processes as current_processes
    from namedmesh.runtime.starting import start_processes as start_processes
    from namedmesh.runtime.state import State as State
    from namedmesh.runtime.usage import Report as Report

_FILES = {
    "Artifact": "artifact",
    "Audit": "audit",
    "Executable": "executable",
    "LostProcess": "lost",
    "Piece": "fetching",
    "Processes": "processes",
    "Report": "usage",
    "State": "state",
    "TensorSpec": "description",
    "VariableSpec": "description",
    "cache_compilations": "loading",
    "current_processes": "processes",
    "load": "loading",
    "start_processes": "starting",
    "use_cpu_devices": "devices",
}


def __getattr__(name: str) -> object:
    if name not in _FILES:
        raise AttributeError(f"module 'namedmesh.runtime' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"namedmesh.runtime.{_FILES[name]}"), name)
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted(_FILES)
