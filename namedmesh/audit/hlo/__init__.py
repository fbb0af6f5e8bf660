"""Compiled HLO, parsed once into typed values."""

from namedmesh.audit.hlo.array_types import ELEMENT_TYPES as ELEMENT_TYPES
from namedmesh.audit.hlo.array_types import ArrayType as ArrayType
from namedmesh.audit.hlo.array_types import ElementType as ElementType
from namedmesh.audit.hlo.array_types import TupleType as TupleType
from namedmesh.audit.hlo.array_types import parse_type as parse_type
from namedmesh.audit.hlo.communication import CompiledCollective as CompiledCollective
from namedmesh.audit.hlo.communication import find_collectives as find_collectives
from namedmesh.audit.hlo.module import Computation as Computation
from namedmesh.audit.hlo.module import Instruction as Instruction
from namedmesh.audit.hlo.module import Module as Module
from namedmesh.audit.hlo.module import parse_module as parse_module
from namedmesh.audit.hlo.trip_counts import Loop as Loop
from namedmesh.audit.hlo.trip_counts import count_runs as count_runs
from namedmesh.audit.hlo.trip_counts import find_loops as find_loops
from namedmesh.audit.hlo.values import Allocation as Allocation
from namedmesh.audit.hlo.values import count_cycles as count_cycles
from namedmesh.audit.hlo.values import find_allocations as find_allocations
