"""The number of iterations of a module's loops, and of runs of its computations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import chain

from namedmesh.audit.hlo.array_types import ArrayType
from namedmesh.audit.hlo.module import Computation, Instruction, Module, Role

# The computations that an instruction runs. Functions applied to elements (of a reduce, a sort)
# are not counted: they run once for each element.
_RUNS: dict[str, tuple[Role, ...]] = {
    "while": ("condition", "body"),
    "conditional": ("branches",),
    "call": ("to_apply", "calls"),
    "fusion": ("calls",),
    "async": ("calls",),
    "custom-call": ("calls",),
}
SAME_VALUE = ("copy", "bitcast", "convert", "opt-barrier")
# Comparisons between a counter and a limit that end a loop which counts up.
_UP_TO = {("LT", False): 0, ("GT", True): 0, ("LE", False): 1, ("GE", True): 1}


@dataclass(frozen=True)
class Loop:
    """A while loop."""

    computation: str  # the one that has it
    instruction: Instruction
    trip_count: int | None  # None if it is not known
    exact: bool  # False for an upper limit


@dataclass(frozen=True)
class Runs:
    """The runs of a computation in one step."""

    times: int  # a loop of unknown length counts as one iteration, contradictory ones as the most
    open_ended: bool = False  # such a loop runs it


def find_loops(module: Module) -> tuple[Loop, ...]:
    """Return every while loop of a module with its trip count."""
    return tuple(
        read_loop(module, computation.name, instruction)
        for computation, instruction in module.instructions()
        if instruction.opcode == "while"
    )


def read_loop(module: Module, computation: str, instruction: Instruction) -> Loop:
    """Find a while loop's trip count: the compiler's own, or derived from the loop's code."""
    stated = instruction.trip_count
    derived = derive_trip_count(module, computation, instruction)
    known = derived if stated is None else stated
    if known is not None:
        # Not certain if the compiler's statement and the code contradict each other.
        most = max(known, derived or 0)
        return Loop(computation, instruction, most, derived in (None, known))
    return Loop(computation, instruction, _upper_limit(module, instruction), False)


def find_runs(module: Module) -> dict[str, Runs]:
    """Count how often each computation runs in one step, and note if that is not certain."""
    runs = {module.entry: Runs(1)}
    for name, loop, callees in _calls(module):
        times, open_ended = runs[name].times, runs[name].open_ended
        if loop is not None:
            open_ended |= not loop.exact
            known = loop.exact or loop.instruction.trip_count is not None
            times *= (loop.trip_count or 0) if known else 1
        for callee in callees:
            before = runs.get(callee, Runs(0))
            runs[callee] = Runs(before.times + times, before.open_ended or open_ended)
    return runs


def count_runs(module: Module) -> dict[str, int]:
    """Count how often each computation runs in one step at most; unknown loops count once."""
    runs: dict[str, int] = {module.entry: 1}
    for name, loop, callees in _calls(module):
        times = runs[name]
        if loop is not None and loop.trip_count is not None:
            times *= loop.trip_count
        for callee in callees:
            runs[callee] = runs.get(callee, 0) + times
    return runs


def scheduled_runs(module: Module) -> dict[str, int]:
    """Count the runs of the computations that are scheduled by themselves, not fused."""
    fused = {
        name
        for _, instruction in module.instructions()
        if instruction.opcode == "fusion"
        for name in instruction.called.get("calls", ())
    }
    return {name: times for name, times in count_runs(module).items() if name not in fused}


def _calls(module: Module) -> Iterator[tuple[str, Loop | None, list[str]]]:
    """Yield the calls of a step, callers first: caller, loop if it is one, and callees."""
    # A condition counts as often as its body, and each branch as if it were taken.
    calls = {
        name: [(one, callees) for one in computation if (callees := find_callees(one))]
        for name, computation in module.computations.items()
    }
    graph = {name: [*chain(*(callees for _, callees in calls[name]))] for name in calls}
    reached = {module.entry}
    for name in reversed([*TopologicalSorter(graph).static_order()]):
        for instruction, callees in calls.get(name, ()) if name in reached else ():
            reached.update(callees)
            is_loop = instruction.opcode == "while"
            yield name, read_loop(module, name, instruction) if is_loop else None, callees


def find_callees(instruction: Instruction) -> list[str]:
    """Return the computations that an instruction runs."""
    if not instruction.called:  # as most
        return []
    roles = _RUNS.get(instruction.opcode.removesuffix("-start"), ())
    return [name for role in roles for name in instruction.called.get(role, ())]


def _upper_limit(module: Module, loop: Instruction) -> int | None:
    """Return the only integer in a loop's condition: an upper limit of its iterations."""
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


@dataclass(frozen=True)
class _Carried:
    """A value that a loop carries, plus a constant."""

    index: int | None  # in the tuple of carries; None for a single carry that is not a tuple
    plus: int = 0


@dataclass(frozen=True)
class _Whole:
    """All that a loop carries."""


_Value = int | _Carried | _Whole | None


@dataclass
class _Search:
    """The computations of a module, and a limit on the values that are evaluated."""

    computations: Mapping[str, Computation]
    left: int = 200  # a counter needs few; sums of sums would take forever


def derive_trip_count(module: Module, caller: str, loop: Instruction) -> int | None:
    """Derive a loop's trip count from its counter: what it counts from, to, and by."""
    search = _Search(module.computations)
    condition, body = _only(search, loop, "condition"), _only(search, loop, "body")
    if condition is None or body is None or len(loop.operands) != 1:
        return None
    limit = _limit(search, condition, condition.root, [_Whole()])
    if limit is None:
        return None
    index, stop = limit
    step = _value(search, body, _element(body, body.root, index), [_Whole()])
    outer = search.computations[caller]
    initial = outer.instructions.get(loop.operands[0])
    start = _value(search, outer, _element(outer, initial, index), [])
    if not isinstance(step, _Carried) or step.index != index or step.plus <= 0:
        return None
    return max(0, -((start - stop) // step.plus)) if isinstance(start, int) else None


def _element(where: Computation, one: Instruction | None, index: int | None) -> Instruction | None:
    """Return the element of a tuple at an index; without an index, the value itself."""
    if one is None or index is None:
        return one
    elements = one.operands if one.opcode == "tuple" else ()
    return where.instructions.get(elements[index]) if index < len(elements) else None


def _only(search: _Search, instruction: Instruction, role: Role) -> Computation | None:
    """Return the only computation that an instruction calls in a role."""
    called = instruction.called.get(role, ())
    return search.computations.get(called[0]) if len(called) == 1 else None


def _limit(
    search: _Search, where: Computation, root: Instruction | None, arguments: Sequence[_Value]
) -> tuple[int | None, int] | None:
    """Return the index of the counter that a condition compares, and its exclusive limit."""
    if root is None:
        return None
    if root.opcode == "fusion":
        inside = _only(search, root, "calls")
        if inside is None:
            return None
        values = _operands(search, where, root, arguments)
        return _limit(search, inside, inside.root, values)
    if root.opcode != "compare" or len(root.operands) != 2:
        return None
    left, right = _operands(search, where, root, arguments)
    swapped = isinstance(left, int)
    counter, limit = (right, left) if swapped else (left, right)
    above = _UP_TO.get((root.attributes.get("direction", ""), swapped))
    if above is None or not isinstance(counter, _Carried) or not isinstance(limit, int):
        return None
    return counter.index, limit + above - counter.plus


def _operands(
    search: _Search, where: Computation, instruction: Instruction, arguments: Sequence[_Value]
) -> list[_Value]:
    """Evaluate the operands of an instruction."""
    return [
        _value(search, where, where.instructions.get(name), arguments)
        for name in instruction.operands
    ]


def _value(
    search: _Search,
    where: Computation,
    instruction: Instruction | None,
    arguments: Sequence[_Value],
) -> _Value:
    """Evaluate an instruction: a constant, or a carried value plus one; None for others."""
    if instruction is None or search.left <= 0:
        return None
    search.left -= 1
    opcode = instruction.opcode
    if opcode == "constant":
        text = instruction.literal.strip()
        return int(text) if text.removeprefix("-").isdigit() else None
    if opcode == "parameter":
        number = int(instruction.literal)
        value = arguments[number] if number < len(arguments) else None
        # A loop whose only carried value is a scalar has no tuple to take it from.
        scalar = isinstance(value, _Whole) and not str(instruction.type).startswith("(")
        return _Carried(None) if scalar else value
    if opcode not in ("get-tuple-element", "add", "subtract", "fusion", *SAME_VALUE):
        return None
    values = _operands(search, where, instruction, arguments)
    if opcode in SAME_VALUE and len(values) == 1:
        return values[0]
    if opcode == "get-tuple-element" and isinstance(values[0], _Whole):
        return _Carried(int(instruction.attributes["index"]))
    if opcode == "fusion":
        inside = _only(search, instruction, "calls")
        return _value(search, inside, inside.root, values) if inside else None
    if opcode in ("add", "subtract") and len(values) == 2:
        return _sum(values[0], values[1], -1 if opcode == "subtract" else 1)
    return None


def _sum(left: _Value, right: _Value, sign: int) -> _Value:
    """Add or subtract values, of which at most one is carried, and not subtracted."""
    if isinstance(right, int) and isinstance(left, _Carried):
        return _Carried(left.index, left.plus + sign * right)
    if isinstance(left, int) and isinstance(right, _Carried) and sign > 0:
        return _Carried(right.index, right.plus + left)
    if isinstance(left, int) and isinstance(right, int):
        return left + sign * right
    return None
