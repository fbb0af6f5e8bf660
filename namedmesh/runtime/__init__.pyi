"""The public names of namedmesh.runtime; __init__.py serves them from here."""

from namedmesh.artifacts.artifact import Artifact as Artifact
from namedmesh.artifacts.description import TensorSpec as TensorSpec
from namedmesh.artifacts.description import VariableSpec as VariableSpec
from namedmesh.audit.audit import Audit as Audit
from namedmesh.processes.devices import use_cpu_devices as use_cpu_devices
from namedmesh.processes.processes import Processes as Processes
from namedmesh.processes.processes import current_processes as current_processes
from namedmesh.processes.starting import start_processes as start_processes
from namedmesh.processes.watch import LostProcess as LostProcess
from namedmesh.runtime.arrays import Shard as Shard
from namedmesh.runtime.executable import Executable as Executable
from namedmesh.runtime.executable import Report as Report
from namedmesh.runtime.executable import cache_compilations as cache_compilations
from namedmesh.runtime.executable import load as load
from namedmesh.runtime.state import State as State
