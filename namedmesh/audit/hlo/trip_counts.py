"""How often the loops of a module run, and with them every computation."""

from __future__ import annotations

from dataclasses import dataclass

from namedmesh.audit.hlo.array_types import ArrayType
from namedmesh.audit.hlo.loop_counts import derive_trip_count
from namedmesh.audit.hlo.module import Instruction, Module, Role

# What an instruction runs by itself. Functions applied to elements (of a reduce, a sort) are not
# counted: they run as often as there are elements.
_RUNS: dict[str, tuple[Role, ...]] = {
    "while": ("condition", "body"),
    "conditional": ("branches",),
    "call": ("to_apply", "calls"),
    "fusion": ("calls",),
    "async": ("calls",),
    "custom-call": ("calls",),
}


@dataclass(frozen=True)
class Loop:
    """A while loop.

    Attributes:
        computation: The name of the computation that has it.
        instruction: The while instruction.
        trip_count: How often it runs each time, or at most; None if that is not known.
        exact: Whether the trip count is certain, rather than the limit of a loop that may stop
            before it.
    """

    computation: str
    instruction: Instruction
    trip_count: int | None
    exact: bool


@dataclass(frozen=True)
class Runs:
    """How often something runs in one step.

    Attributes:
        times: How often, where a loop of unknown length counts as one iteration.
        open_ended: Whether such a loop runs it.
    """

    times: int
    open_ended: bool = False


def find_loops(module: Module) -> tuple[Loop, ...]:
    """Every while loop of a module with its trip count.

    The trip count is the compiler's own where it states one, or follows from the loop's code.
    Otherwise it is the only integer that the loop's condition compares with, which is no more than
    a limit. Where the compiler's statement and the code contradict each other, nothing is certain.
    """
    return tuple(
        read_loop(module, computation.name, instruction)
        for computation, instruction in module.instructions()
        if instruction.opcode == "while"
    )


def read_loop(module: Module, computation: str, instruction: Instruction) -> Loop:
    """Read a while loop's trip count."""
    stated = instruction.trip_count
    derived = derive_trip_count(module, computation, instruction)
    known = derived if stated is None else stated
    if known is not None:
        return Loop(computation, instruction, known, derived in (None, known))
    return Loop(computation, instruction, _limit(module, instruction), False)


def find_runs(module: Module) -> dict[str, Runs]:
    """How often each computation runs in one step, and whether that is certain.

    A condition counts as often as its body, and each branch of a conditional as if it were taken.
    """
    runs = {module.entry: Runs(1)}
    for name in _callers_first(module):
        outer = runs.get(name, Runs(0))
        for instruction in module.computations[name]:
            callees = _callees(instruction)
            if not callees:
                continue
            times, open_ended = outer.times, outer.open_ended
            if instruction.opcode == "while":
                loop = read_loop(module, name, instruction)
                open_ended |= not loop.exact
                times *= (loop.trip_count or 0) if loop.exact else 1
            for callee in callees:
                before = runs.get(callee, Runs(0))
                runs[callee] = Runs(before.times + times, before.open_ended or open_ended)
    return runs


def count_runs(module: Module) -> dict[str, int]:
    """How often each computation runs in one step, or at most.

    Loops of unknown length count once, a condition as often as its body, and each branch of a
    conditional as if it were taken.
    """
    runs: dict[str, int] = {module.entry: 1}
    for name in _callers_first(module):
        for instruction in module.computations[name]:
            times = runs.get(name, 0)
            if instruction.opcode == "while":
                loop = read_loop(module, name, instruction)
                # A loop that surely never runs counts as none; one of unknown length once.
                times *= 1 if loop.trip_count is None else loop.trip_count
            for callee in _callees(instruction):
                runs[callee] = runs.get(callee, 0) + times
    return runs


def scheduled_runs(module: Module) -> dict[str, int]:
    """How often each computation that is scheduled by itself runs: all but those that are fused."""
    fused = {
        name
        for _, instruction in module.instructions()
        if instruction.opcode == "fusion"
        for name in instruction.called.get("calls", ())
    }
    return {name: times for name, times in count_runs(module).items() if name not in fused}


def _callees(instruction: Instruction) -> list[str]:
    """The computations an instruction runs by itself."""
    roles = _RUNS.get(instruction.opcode.removesuffix("-start"), ())
    return [name for role in roles for name in instruction.called.get(role, ())]


def _callers_first(module: Module) -> list[str]:
    """The computations that a step reaches, each after everything that runs it."""
    finished: list[str] = []
    seen = {module.entry}
    stack = [(module.entry, iter(_all_callees(module, module.entry)))]
    while stack:
        name, rest = stack[-1]
        following = next((one for one in rest if one not in seen), None)
        if following is None:
            finished.append(name)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(_all_callees(module, following))))
    return finished[::-1]


def _all_callees(module: Module, name: str) -> list[str]:
    """The computations that a computation's instructions run, as far as the module has them."""
    return [
        callee
        for instruction in module.computations[name]
        for callee in _callees(instruction)
        if callee in module.computations
    ]


def _limit(module: Module, loop: Instruction) -> int | None:
    """The only integer that a loop's condition has, which is as often as it may run."""
    limits = [
        instruction.literal
        for name in loop.called.get("condition", ())
        if name in module.computations
        for instruction in module.computations[name]
        if instruction.opcode == "constant"
        and isinstance(instruction.type, ArrayType)
        and instruction.type.element.name == "s32"
        and not instruction.type.sizes
    ]
    return int(limits[0]) if len(limits) == 1 and limits[0].isdigit() else None
