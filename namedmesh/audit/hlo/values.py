"""The values of a compiled module that take memory and time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from namedmesh.audit.hlo.array_types import ArrayType, TupleType
from namedmesh.audit.hlo.module import Instruction, Module, has_results_alone
from namedmesh.audit.hlo.trip_counts import scheduled_runs

# These pass on memory that others allocate.
_ALIASES = {
    "parameter", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call",
    "after-all", "opt-barrier",
}  # fmt: skip


@dataclass(frozen=True)
class Allocation:
    """An instruction that is scheduled by itself and allocates memory."""

    instruction: Instruction
    arrays: tuple[ArrayType, ...]  # that it allocates, without the operands of a -start
    times: int  # in one step


def find_allocations(module: Module) -> Iterator[Allocation]:
    """Yield every value that needs memory of its own; in a loop it has that memory once."""
    for name, times in scheduled_runs(module).items():
        for instruction in module.computations.get(name, ()):
            if instruction.opcode in _ALIASES or instruction.opcode.endswith("-done"):
                continue
            yield Allocation(instruction, _new_arrays(instruction), times)


def _new_arrays(instruction: Instruction) -> tuple[ArrayType, ...]:
    """Return the arrays that an instruction makes; the type of a -start has its operands too."""
    type = instruction.type
    if instruction.opcode.endswith("-update") and isinstance(type, TupleType):
        # What takes operands beside its start makes the results; others are in the start's memory.
        return type.parts[1].arrays if instruction.operands[1:] and type.parts[1:] else ()
    if (
        not instruction.opcode.endswith("-start")
        or has_results_alone(instruction)
        or not isinstance(type, TupleType)
        or len(type.parts) < 2
    ):
        return type.arrays
    # A copy has its result first; whatever else is started has operands, then results.
    return type.parts[0 if instruction.opcode == "copy-start" else 1].arrays


def count_cycles(module: Module) -> int:
    """The cycles the compiler expects one step's computation to take, communication aside."""
    return sum(value.instruction.cycles * value.times for value in find_allocations(module))
