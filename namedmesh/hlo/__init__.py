"""What the compiler made: compiled HLO, read once into typed values."""

from namedmesh.hlo.array_types import ArrayType as ArrayType
from namedmesh.hlo.array_types import TupleType as TupleType
from namedmesh.hlo.array_types import parse_type as parse_type
from namedmesh.hlo.communication import CompiledCollective as CompiledCollective
from namedmesh.hlo.communication import find_collectives as find_collectives
from namedmesh.hlo.element_types import ELEMENT_TYPES as ELEMENT_TYPES
from namedmesh.hlo.element_types import ElementType as ElementType
from namedmesh.hlo.module import Computation as Computation
from namedmesh.hlo.module import Instruction as Instruction
from namedmesh.hlo.module import Module as Module
from namedmesh.hlo.parse import parse_module as parse_module
from namedmesh.hlo.trip_counts import Loop as Loop
from namedmesh.hlo.trip_counts import count_runs as count_runs
from namedmesh.hlo.trip_counts import find_loops as find_loops
from namedmesh.hlo.values import Allocation as Allocation
from namedmesh.hlo.values import count_cycles as count_cycles
from namedmesh.hlo.values import find_allocations as find_allocations
