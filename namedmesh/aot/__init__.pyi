"""The public names of namedmesh.aot; __init__.py serves them from here."""

from namedmesh.aot.compilation import compile_for as compile_for
from namedmesh.aot.memory import Buffer as Buffer
from namedmesh.aot.memory import Memory as Memory
from namedmesh.aot.target_report import TargetReport as TargetReport
from namedmesh.hardware.assignment import Assignment as Assignment
from namedmesh.hardware.assignment import torus_assignment as torus_assignment
from namedmesh.hardware.topology import Target as Target
from namedmesh.hardware.topology import Torus as Torus
