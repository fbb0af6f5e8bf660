"""What compiled HLO consists of: a module of computations of instructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from namedmesh.audit.hlo.array_types import HloType
from namedmesh.audit.hlo.groups import Groups

Role = Literal["body", "condition", "branches", "to_apply", "calls"]


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
        name: Its name, unique within its computation.
        opcode: What it does, such as `all-reduce-start`.
        type: The type of its result.
        operands: The names of the instructions it reads.
        literal: What a constant or a parameter has between its parentheses, otherwise empty.
        called: The names of the computations it calls, by their role.
        groups: The devices that communicate with each other; None unless it has replica groups.
        pairs: Sender and receiver of each shard that a collective-permute sends, otherwise None.
        op_name: The name of the op it was compiled from, or of one of them.
        cycles: The cycles the compiler expects it to take; 0 where it gives no estimate.
        trip_count: How often a while loop runs, where the compiler knows that.
        root: Whether it is the result of its computation.
        attributes: Every attribute as HLO text has it.
    """

    name: str
    opcode: str
    type: HloType
    operands: tuple[str, ...] = ()
    literal: str = ""
    called: Mapping[Role, tuple[str, ...]] = field(default_factory=dict)
    groups: Groups | None = None
    pairs: tuple[tuple[int, int], ...] | None = None
    op_name: str = ""
    cycles: int = 0
    trip_count: int | None = None
    root: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Computation:
    """A list of instructions with a name, such as the body of a loop.

    Attributes:
        name: Its name, unique within its module.
        instructions: Its instructions by name, in the order of the text, which is the order in
            which a scheduled module runs them.
    """

    name: str
    instructions: Mapping[str, Instruction]

    def operand_types(self, instruction: Instruction) -> list[HloType]:
        """The types of an instruction's operands, as far as the computation defines them."""
        defined = (self.instructions.get(name) for name in instruction.operands)
        return [operand.type for operand in defined if operand is not None]

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions.values())


@dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
        name: Its name.
        computations: Its computations by name, in the order of the text.
        entry: The name of the computation that a step runs.
        parameters: The types of its parameters, with their layouts.
        results: The type of its result, with its layout; None where the text does not state it.
        attributes: Every attribute of the module as HLO text has it.
    """

    name: str
    computations: Mapping[str, Computation]
    entry: str
    parameters: tuple[HloType, ...] = ()
    results: HloType | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def scheduled(self) -> bool:
        """Whether the instructions stand in the order in which they run."""
        return self.attributes.get("is_scheduled") == "true"

    def instructions(self) -> Iterator[tuple[Computation, Instruction]]:
        """Every instruction with the computation it belongs to."""
        for computation in self.computations.values():
            for instruction in computation:
                yield computation, instruction
