"""namedmesh: models in named dimensions, with a communication plan checked against the compiler.

The public names are listed in `__init__.pyi`, which editors read. Here they are served on demand,
each from the file that defines it: tracing and planning import neither TensorFlow nor jax, and
running an Artifact imports neither TensorFlow nor the ops.
"""

import importlib.util
import os
import sys
import types
from typing import Any

from namedmesh.lazy import serve_names

# XLA and TensorFlow log as warnings what is not the user's doing. jax, where it is imported before,
# has set its own default, 1; a level that the user chose stays.
if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

# XLA:CPU runs every virtual device on one thread pool; with fewer threads than devices a
# collective waits for devices that never get a thread. The pool's size is read once, when jax
# starts its CPU client, so it is set before jax is imported.
os.environ.setdefault("NPROC", "64")

# XLA's GPU compiler may be installed without what runs its programs (`namedmesh[gpu-aot]`). jax
# starts every plugin that it finds, and would complain about this one: it is given an empty one.
for _name in ("xla_cuda12", "xla_cuda13"):
    if importlib.util.find_spec(f"jax_{_name.removeprefix('xla_')}_plugin") is None:
        _stub: Any = types.ModuleType(f"jax_plugins.{_name}")
        _stub.initialize = lambda: None
        sys.modules.setdefault(_stub.__name__, _stub)

# What XLA logs is read once too; namedmesh/processes/collective_trace.py says what for.
if os.environ.get("NAMEDMESH_TRACE_COLLECTIVES") not in (None, "", "0"):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
    os.environ.setdefault("TF_CPP_VMODULE", "collective_thunk=3")

# Python makes a subpackage an attribute of its package when the subpackage is first imported, which
# would hide the function of the same name (nm.cost). Import these first, then drop the attributes.
for _name in ("cost", "diff", "dims", "inspect", "report", "search"):
    importlib.import_module(f"namedmesh.{_name}")
    del globals()[_name]


def _register(module: str) -> None:
    """Import what registers itself with the module of a public name."""
    if module.startswith("namedmesh.ir."):
        # Tensor looks up the functions behind its operators and methods.
        for part in ("logic", "mathematics", "indexing"):
            importlib.import_module(f"namedmesh.ops.{part}")
        importlib.import_module("namedmesh.ops.methods")
        importlib.import_module("namedmesh.ir.by_text")
    if module in ("namedmesh.lowering.export", "namedmesh.lowering.saved_model"):
        # Before these modules import TensorFlow, which would log something then.
        importlib.import_module("namedmesh.ir.context").import_tensorflow()


__getattr__, __dir__ = serve_names(__name__, __file__, _register)
