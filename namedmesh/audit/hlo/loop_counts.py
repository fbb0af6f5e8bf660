"""How often a loop runs, derived from its own code: what it counts from, to, and by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from namedmesh.audit.hlo.module import Computation, Instruction, Module

_SAME_VALUE = ("copy", "bitcast", "convert", "opt-barrier")
# Comparisons between a counter and a limit that end a loop which counts up.
_UP_TO = {("LT", False): 0, ("GT", True): 0, ("LE", False): 1, ("GE", True): 1}


@dataclass(frozen=True)
class _Carried:
    """A value that a loop carries, at an index of its tuple, plus a constant."""

    index: int | None  # None: the loop carries one value that is not a tuple
    plus: int = 0


@dataclass(frozen=True)
class _Whole:
    """Everything that a loop carries."""


_Value = int | _Carried | _Whole | None


@dataclass
class _Search:
    """The computations of a module, and how many values may still be looked at.

    What a counter goes through is short; without a limit, sums of sums would take forever.
    """

    computations: Mapping[str, Computation]
    left: int = 200


def derive_trip_count(module: Module, caller: str, loop: Instruction) -> int | None:
    """Derives how often a loop runs, where its code leaves no doubt."""
    search = _Search(module.computations)
    condition, body = (_only(search, loop, role) for role in ("condition", "body"))
    if condition is None or body is None or len(loop.operands) != 1:
        return None
    limit = _limit(search, condition, _root(condition), [_Whole()])
    if limit is None:
        return None
    index, stop = limit
    result = _root(body)
    if index is not None:
        if result is None or result.opcode != "tuple" or index >= len(result.operands):
            return None
        result = body.instructions.get(result.operands[index])
    step = _value(search, body, result, [_Whole()])
    outer = search.computations[caller]
    initial = outer.instructions.get(loop.operands[0])
    if index is not None:
        if initial is None or initial.opcode != "tuple" or index >= len(initial.operands):
            return None
        initial = outer.instructions.get(initial.operands[index])
    start = _value(search, outer, initial, [])
    if not isinstance(step, _Carried) or step.index != index or step.plus <= 0:
        return None
    return max(0, -((start - stop) // step.plus)) if isinstance(start, int) else None


def _only(search: _Search, instruction: Instruction, role: str) -> Computation | None:
    """The one computation that an instruction calls in a role."""
    names: Mapping[str, tuple[str, ...]] = {**instruction.called}
    called = names.get(role, ())
    return search.computations.get(called[0]) if len(called) == 1 else None


def _root(computation: Computation) -> Instruction | None:
    """The result of a computation."""
    return next((one for one in reversed([*computation]) if one.root), None)


def _limit(
    search: _Search, where: Computation, root: Instruction | None, arguments: Sequence[_Value]
) -> tuple[int | None, int] | None:
    """The index of the counter that a condition compares, and the number it stays below."""
    if root is None:
        return None
    if root.opcode == "fusion":
        inside = _only(search, root, "calls")
        if inside is None:
            return None
        values = _operands(search, where, root, arguments)
        return _limit(search, inside, _root(inside), values)
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
    """The values of an instruction's operands."""
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
    """What an instruction makes, as far as it is a constant or counts by one; None if not."""
    if instruction is None or search.left <= 0:
        return None
    search.left -= 1
    opcode = instruction.opcode
    if opcode == "constant":
        text = instruction.literal.strip()
        return int(text) if text.removeprefix("-").isdigit() else None
    if opcode == "parameter":
        number = instruction.literal.strip()
        value = (
            arguments[int(number)] if number.isdigit() and int(number) < len(arguments) else None
        )
        # A loop whose only carried value is a scalar has no tuple to take it from.
        scalar = isinstance(value, _Whole) and not str(instruction.type).startswith("(")
        return _Carried(None) if scalar else value
    if opcode not in ("get-tuple-element", "add", "subtract", "fusion", *_SAME_VALUE):
        return None
    values = _operands(search, where, instruction, arguments)
    if opcode in _SAME_VALUE and len(values) == 1:
        return values[0]
    if opcode == "get-tuple-element" and isinstance(values[0], _Whole):
        return _Carried(int(instruction.attributes["index"]))
    if opcode == "fusion":
        inside = _only(search, instruction, "calls")
        return _value(search, inside, _root(inside), values) if inside else None
    if opcode in ("add", "subtract") and len(values) == 2:
        return _sum(values[0], values[1], -1 if opcode == "subtract" else 1)
    return None


def _sum(left: _Value, right: _Value, sign: int) -> _Value:
    """A sum or a difference of which at most one part is carried, and that is not subtracted."""
    if isinstance(right, int) and isinstance(left, _Carried):
        return _Carried(left.index, left.plus + sign * right)
    if isinstance(left, int) and isinstance(right, _Carried) and sign > 0:
        return _Carried(right.index, right.plus + left)
    if isinstance(left, int) and isinstance(right, int):
        return left + sign * right
    return None
