"""Values of a module followed to what makes them and to what reads them, into fusions and out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from namedmesh.audit.hlo.array_types import ArrayType
from namedmesh.audit.hlo.module import Computation, Instruction, Module
from namedmesh.audit.hlo.trip_counts import read_loop

# These keep the elements, of another shape, in another order, or padded to whole tiles of memory.
RESHAPING = (
    "bitcast", "copy", "copy-done", "copy-start", "opt-barrier", "reshape", "transpose", "ZeroCrop",
)  # fmt: skip
_CASTING = (*RESHAPING, "convert")
# These keep elements, or some of them.
_KEEPING = (
    *RESHAPING, "all-gather-start", "all-to-all-start", "collective-permute-start", "ConcatBitcast",
    "dynamic-slice", "get-tuple-element", "pad", "parameter", "select", "slice",
    "slice-start",
)  # fmt: skip
_FINISHING = ("all-reduce-done", "slice-done")
# By computation and name: what reads an instruction, and at which place among its operands.
Readers = dict[str, dict[str, list[tuple[Instruction, int]]]]
_MOST_TERMS = 64  # of a sum; those of a chain could be as many as the module has lines


@dataclass(frozen=True)
class HloValue:
    """An instruction of a module, and the fusion that it is inside of."""

    module: Module
    computation: Computation
    instruction: Instruction
    fusion: HloValue | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The names of its computation and of itself."""
        return self.computation.name, self.instruction.name

    def operands(self) -> list[HloValue]:
        """Return what the instruction reads, as far as its computation defines it."""
        defined = map(self.computation.instructions.get, self.instruction.operands)
        return [self.beside(one) for one in defined if one is not None]

    def beside(self, one: Instruction) -> HloValue:
        """Return another instruction of the same computation."""
        return HloValue(self.module, self.computation, one, self.fusion)

    def readers(self, known: Readers) -> Iterator[tuple[HloValue, int]]:
        """Yield what reads the instruction, and as which operand; in a fusion, its parameter."""
        where = self.computation
        if self.fusion is not None and self.instruction.root:
            yield from self.fusion.readers(known)
        if where.name not in known:
            known[where.name] = readers = {}
            for one in where:
                for i, operand in enumerate(one.operands):
                    readers.setdefault(operand, []).append((one, i))
        for one, i in known[where.name].get(self.instruction.name, ()):
            reader = self.beside(one)
            inside = reader.enter()
            yield reader if inside is None else inside.parameter(i), i

    def enter(self) -> HloValue | None:
        """Return the result of a fusion's computation; None for other instructions."""
        if self.instruction.opcode != "fusion":
            return None
        inside = self.module.computations[self.instruction.called["calls"][0]]
        return HloValue(self.module, inside, inside.root, self) if inside.root else None

    def parameter(self, number: int) -> HloValue:
        """Return a parameter of the computation."""
        found = (one for one in self.computation if one.opcode == "parameter")
        return self.beside(next(one for one in found if int(one.literal) == number))


def follow_back(value: HloValue, through: Collection[str] = RESHAPING) -> HloValue:
    """Follow a value back through opcodes that keep it."""
    return [*_steps_back(value, through)][-1]


def name_of_maker(value: HloValue) -> str:
    """Return the op that makes a value, or else the one that reshapes what has no name."""
    steps = [*_steps_back(value, RESHAPING)]
    calls = [one for one in steps[-1].operands() if one.instruction.opcode == "custom-call"]
    names = [one.instruction.op_name for one in (steps[-1], *calls, *steps)]
    return next(filter(None, names), "")


def _steps_back(value: HloValue, through: Collection[str]) -> Iterator[HloValue]:
    """Yield a value, and what it is of, back through opcodes that keep it."""
    index: int | None = None  # in a tuple, that of the element to follow
    while True:
        yield value
        one, operands = value.instruction, value.operands()
        inside = value.enter()
        if inside is not None:
            value = inside
        elif one.opcode == "parameter" and value.fusion is not None:
            value = value.fusion.operands()[int(one.literal)]
        elif one.opcode == "tuple" and index is not None:
            value, index = operands[index], None
        elif one.opcode == "get-tuple-element" and operands[0].instruction.opcode == "fusion":
            value, index = operands[0], int(one.attributes["index"])
        elif _opcode(one) in through and operands:
            value = operands[0]  # a slice's others are where it begins
        else:
            return


def _opcode(one: Instruction) -> str:
    """Return the opcode of an instruction, or what a custom call calls."""
    return one.attributes.get("custom_call_target", one.opcode).strip('"')


def count_unpadded(value: HloValue) -> int:
    """Count the elements of a value without what pads it to whole tiles."""
    types = (step.instruction.type for step in _steps_back(value, RESHAPING))
    return min(type.elements for type in types if isinstance(type, ArrayType))


def list_makers(value: HloValue) -> Iterator[Instruction]:
    """Yield what a device makes a value of, in its computation, back to what other devices send."""
    while value.fusion is not None:
        value = value.fusion
    left, seen = [value.instruction], set[str]()
    while left:
        one = left.pop()
        if one.name not in seen:
            yield one
            seen.add(one.name)
            if one.groups is None and one.pairs is None:
                left += filter(None, map(value.computation.instructions.get, one.operands))


def count_spread(value: HloValue) -> int:
    """Return how many times as large a value is as a shard in it, if it is zero elsewhere."""
    source = follow_back(value)
    if source.instruction.opcode != "dynamic-update-slice":
        return 1
    whole, shard = source.operands()[:2]
    zero = "broadcast" in (whole.instruction.opcode, follow_back(whole).instruction.opcode)
    return count_unpadded(value) // count_unpadded(shard) if zero else 1


def find_parts(value: HloValue, padded: bool = False) -> list[HloValue]:
    """Return the tensors that a value concatenates, or adds up where they are padded."""
    source = follow_back(value)
    if source.instruction.opcode == "concatenate":
        return source.operands()
    # TPUs pad each to the size of all, and take the maximum, or the sum.
    source = follow_back(value, _CASTING)
    joins = padded and source.instruction.opcode in ("add", "maximum", "or")
    terms = [follow_back(one, _CASTING) for one in source.operands() if joins]
    parts = [
        one.operands()[:1] if one.instruction.opcode == "pad" else find_parts(one, True)
        for one in terms
    ]
    return [*chain.from_iterable(parts)] if all(parts) else []


def find_addends(value: HloValue) -> tuple[str, ...]:
    """Return the ops whose results a value adds up; () if it adds nothing."""
    terms, left = [], [value]
    while left and len(terms) + len(left) <= _MOST_TERMS:
        source = follow_back(left.pop(), _CASTING)
        if source.instruction.opcode == "add":
            left += source.operands()
        else:
            terms.append(source.instruction.op_name)
    return tuple(terms) if len(terms) > 1 else ()


class LoopSum(NamedTuple):
    """The sum, or the stack, of what the iterations of a loop make."""

    iterations: int
    stacked: bool
    ops: tuple[str, ...]  # that make it, by metadata


def find_loop_sum(value: HloValue) -> LoopSum | None:
    """Find what the iterations of a loop have made of a value; None if no loop has."""
    source = follow_back(value, _CASTING)
    loop = source.operands()[0] if source.instruction.opcode == "get-tuple-element" else None
    if loop is None or loop.instruction.opcode != "while":
        return None
    read = read_loop(value.module, loop.computation.name, loop.instruction)
    body = value.module.computations.get(loop.instruction.called["body"][0])
    root = body.root if body is not None else None
    index = int(source.instruction.attributes["index"])
    if not read.exact or body is None or root is None or root.opcode != "tuple":
        return None
    element = HloValue(value.module, body, root).operands()[index]
    inner = find_loop_sum(element)
    if inner is not None:
        return inner._replace(iterations=inner.iterations * (read.trip_count or 0))
    made = follow_back(element, _CASTING)
    if made.instruction.opcode == "dynamic-update-slice":
        update = follow_back(made.operands()[1], _CASTING)
        return LoopSum(read.trip_count or 0, True, (update.instruction.op_name,))
    terms = find_addends(element)
    return LoopSum(read.trip_count or 0, False, terms) if terms else None


End = TypeVar("End")


class Routes(Generic[End]):
    """The ways of values to and from some instructions, by loops too.

    Ends are by computation, instruction, and place among its tensors.
    """

    def __init__(self, module: Module, ends: Mapping[tuple[str, str, int], End]) -> None:
        self.ends, self.known = ends, Readers()
        self.loops = {
            one.called["body"][0]: HloValue(module, computation, one)
            for computation, one in module.instructions()
            if one.opcode == "while"
        }

    def find_slots(self, value: HloValue) -> Iterator[tuple[HloValue, list[End], list[HloValue]]]:
        """Find the ends that a value is of, or what makes it; each part that it concatenates."""
        if parts := find_parts(value, padded=True):
            yield from chain.from_iterable(map(self.find_slots, parts))
            return
        ends, makers, seen = dict[End, None](), list[HloValue](), set[object]()
        left = [(value, 0)]
        while left:
            last, index = left.pop()
            for step in _steps_back(last, (*_KEEPING, *_FINISHING)):
                last = step
                if (*last.key, index) in self.ends:
                    ends[self.ends[*last.key, index]] = None
                    break
                one, loop = last.instruction, last
                index = int(one.attributes["index"]) if one.opcode == "get-tuple-element" else index
                if one.opcode == "parameter" and last.fusion is None:
                    loop = self.loops.get(last.computation.name, last)
                if loop.instruction.opcode == "while":  # which carries it
                    if (loop.key, index) not in seen:
                        left += [(one.operands()[index], 0) for one in self.carried(loop)]
                    seen.add((loop.key, index))
                    break
            else:
                makers.append(last)
        yield value, [*ends], makers

    def carried(self, loop: HloValue) -> Iterator[HloValue]:
        """Yield the tuples that a loop starts from, and goes on with."""
        body = loop.module.computations[loop.instruction.called["body"][0]]
        root = [HloValue(loop.module, body, body.root)] if body.root else []
        yield from (one for one in (*loop.operands(), *root) if one.instruction.opcode == "tuple")

    def find_readers(self, value: HloValue) -> list[End]:
        """Find the ends that read a value."""
        found = dict[End, None]()
        for reader, place in follow_readers(value, 0, self.known, ("convert", "reduce")):
            end = self.ends.get((*reader.key, place))
            if end is not None:
                found[end] = None
        return [*found]


def follow_readers(
    value: HloValue, place: int, known: Readers, through: Collection[str] = ()
) -> Iterator[tuple[HloValue, int]]:
    """Yield what reads a value, on through what keeps its elements, and as which operand."""
    left, seen = [(value, place)], {value.key}
    while left:
        value, place = left.pop()
        for reader, number in value.readers(known):
            yield reader, number
            one = reader.instruction
            of_another = one.opcode == "get-tuple-element" and one.attributes["index"] != str(place)
            keeps = _opcode(one) in (*_KEEPING, *through) or one.opcode.endswith("-done")
            # Another collective may send it on, in another place among its tensors.
            if keeps and not of_another and reader.key not in seen:
                seen.add(reader.key)
                left.append((reader, number if one.opcode.endswith("-start") else place))


def find_growths(value: HloValue, place: int, known: Readers) -> frozenset[tuple[str, int]]:
    """Return what a tensor is cast from before a collective, or cast or broadcast to after it.

    Each is a dtype, and how many times as many elements there are.
    """
    growths: set[tuple[str, int]] = set()
    source = follow_back(value.operands()[place], (*RESHAPING, "dynamic-slice", "slice"))
    if source.instruction.opcode == "convert":
        growths |= {(array_dtype(one), 1) for one in source.operands()}
    for reader, _ in follow_readers(value, place, known):
        if reader.instruction.opcode in ("broadcast", "convert"):
            before, after = (
                sum(array.elements for array in part.instruction.type.arrays)
                for part in (reader.operands()[0], reader)
            )
            growths.add((array_dtype(reader), after // max(before, 1)))
    return frozenset(growths)


def find_padding(value: HloValue) -> tuple[int, ...]:
    """Return the elements of the tensor that a sum pads, and those it takes in memory."""
    pad = follow_back(value.operands()[0])
    tiles = pad.operands()[:1] if pad.instruction.opcode == "pad" else []
    types = [one.instruction.type for padded in tiles for one in (follow_back(padded), padded)]
    return tuple(type.elements for type in types if isinstance(type, ArrayType))


def added_as(value: HloValue) -> set[str]:
    """Return the dtype in which a sum is added up."""
    adds = map(value.module.computations.get, value.instruction.called.get("to_apply", ()))
    return {str(add.root.type).partition("[")[0] if add and add.root else "" for add in adds}


def is_rounded(value: HloValue, place: int, known: Readers) -> bool:
    """Return whether a sum is added up as float32, and read as bfloat16."""
    left, read = [value], set()
    while left:
        for reader, i in left.pop().readers(known):
            one = reader.instruction
            if one.opcode.endswith("-done"):
                left.append(reader)
            elif one.opcode == "tuple":  # of what a loop carries on
                read |= {array.element.dtype for array in one.type.parts[i].arrays}
            elif one.attributes.get("index", str(place)) == str(place):
                read.add(array_dtype(reader))
    return added_as(value) == {"f32"} and read == {"bfloat16"}


def array_dtype(value: HloValue) -> str:
    """Return the dtype of an array; "" for a tuple."""
    type = value.instruction.type
    return type.element.dtype if isinstance(type, ArrayType) else ""
