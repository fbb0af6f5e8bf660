"""Answers for absent machines: Artifacts compiled for devices that are not here."""

from namedmesh.aot.assignment import Assignment as Assignment
from namedmesh.aot.assignment import torus_assignment as torus_assignment
from namedmesh.aot.attribution import Buffer as Buffer
from namedmesh.aot.compilation import compile_for as compile_for
from namedmesh.aot.memory import Memory as Memory
from namedmesh.aot.target import Target as Target
from namedmesh.aot.target_report import TargetReport as TargetReport
from namedmesh.aot.torus import Torus as Torus
