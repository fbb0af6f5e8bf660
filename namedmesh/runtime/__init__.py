"""How a program runs: artifacts, devices, executables, and the audit.

Needs numpy and jax, not TensorFlow.
"""

from namedmesh.runtime.devices import (
    use_cpu_devices as use_cpu_devices,
)  # first: it prepares jax's thread pool

from namedmesh.runtime.artifact import Artifact as Artifact  # isort: skip
from namedmesh.runtime.audit import Audit as Audit
from namedmesh.runtime.description import TensorSpec as TensorSpec
from namedmesh.runtime.description import VariableSpec as VariableSpec
from namedmesh.runtime.executable import Executable as Executable
from namedmesh.runtime.executable import cache_compilations as cache_compilations
from namedmesh.runtime.executable import load as load
from namedmesh.runtime.state import State as State
from namedmesh.runtime.usage import Report as Report
