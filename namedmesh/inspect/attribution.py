"""Attribution: the phase, scope, tensor and line of code that a compiled collective belongs to."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterator

from namedmesh.audit.hlo.communication import CompiledCollective
from namedmesh.audit.hlo.module import Instruction, Module
from namedmesh.audit.hlo.origins import RESHAPING, HloValue, Readers, follow_back
from namedmesh.audit.hlo.source_lines import SourceLines, is_installed
from namedmesh.audit.hlo.trip_counts import find_callees
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.source import Source
from namedmesh.records.collective import Collective
from namedmesh.records.crossing import count_crossing_bytes
from namedmesh.records.tensor import UNKNOWN

_DEEPEST = 8  # loops inside each other
_MOST = 200  # values that are looked at around a collective without metadata
# What jax writes around the names of a program: transformations, and the parts of loops and calls.
_JITTED = re.compile(r"\bp?jit\([^()]*\)")
_TRANSFORMED = re.compile(  # a name inside may have parentheses, such as Haliax's scan(layers)
    r"\b(?:jvp|transpose|vmap|pmap|checkpoint|remat)\(((?:[^()]|\([^()]*\))*)\)"
)
_STRUCTURE = re.compile(
    r"while|body|cond|scan|closed_call|eval_jaxpr|core_call|checkpoint|remat\d?|shard_map|"
    r"rematted_computation|custom_[jv][jv]p_call\w*|branch_\d+_fun|"
)
_KEEPING = (*RESHAPING, "convert", "dynamic-slice", "slice", "pad")


class Attribution:
    """Finds what the collectives of a module belong to."""

    def __init__(self, module: Module) -> None:
        self.module, self.lines = module, SourceLines(module)
        self.readers: Readers = {}
        self.callers: dict[str, HloValue] = {}
        # By the body of a loop and the index of a carried value that never changes: what it is.
        self.constants: dict[tuple[str, int], HloValue] = {}
        for computation, one in module.instructions():
            for name in find_callees(one):
                self.callers.setdefault(name, HloValue(module, computation, one))
            if one.opcode == "while":
                self._find_constants(HloValue(module, computation, one))
        self._updating = frozenset(self._find_updating())

    def _find_constants(self, loop: HloValue) -> None:
        """Enter the values that a loop carries unchanged."""
        body = self.module.computations[loop.instruction.called["body"][0]]
        starts = loop.operands()[0].operands()
        results = HloValue(self.module, body, body.root).operands() if body.root else []
        for i, (start, result) in enumerate(zip(starts, results, strict=False)):
            kept = follow_back(result, ("copy",))
            if is_carried(kept) and kept.instruction.attributes["index"] == str(i):
                self.constants[body.name, i] = start

    def describe(self, one: CompiledCollective, mesh: Mesh) -> Collective:
        """Return a compiled collective as plans have it."""
        op_name, source = self._name(one)
        *scopes, op = split_op_name(op_name) or [one.name]
        return Collective(
            **one.facts,
            tensor=self.find_argument(one) or op,
            op=op,
            phase=self.phase_of(one.value.key, op_name),
            source=source or UNKNOWN,
            scope="/".join(scopes),
            reduction=one.reduction,
            host_bytes=_count_crossing(one, mesh, mesh.hosts),
            slice_bytes=_count_crossing(one, mesh, mesh.slices),
        )

    def _name(self, one: CompiledCollective) -> tuple[str, Source | None]:
        """Find the op and the line of a collective: its own, or those of what is around it."""
        name, source = "", None
        for near in self._surroundings(one):
            name = name or (near.op_name if "/" in near.op_name else "")
            source = source or self.lines.find(near.attributes.get("metadata", ""))
            if name and source:
                break
        return name, source

    def _surroundings(self, one: CompiledCollective) -> Iterator[Instruction]:
        """Yield instructions that tell where a tensor is from, the most telling first."""
        value = one.value
        if one.combined:  # what takes a tensor out of the tuple has the name of its own op
            yield from self._takers(value, one.place)
            value = one.tensor
        yield from self._makers(value)
        yield from self._walk(value)
        yield from self._later(one.value)
        computation = value.computation.name
        while computation in self.callers:
            yield self.callers[computation].instruction
            computation = self.callers[computation].computation.name

    def _later(self, value: HloValue) -> Iterator[Instruction]:
        """Yield what reads a value, the nearest first."""
        left, seen = deque([value]), set()
        while left and len(seen) < _MOST:
            for reader, _ in left.popleft().readers(self.readers):
                if reader.key not in seen:
                    seen.add(reader.key)
                    left.append(reader)
                    yield reader.instruction

    def _takers(self, value: HloValue, place: int) -> Iterator[Instruction]:
        """Yield what takes one tensor out of the results of a combined collective."""
        for reader, _ in value.readers(self.readers):
            if reader.instruction.opcode.endswith("-done"):
                yield from self._takers(reader, place)
            elif reader.instruction.attributes.get("index") == str(place):
                yield reader.instruction

    def _makers(self, value: HloValue) -> Iterator[Instruction]:
        """Yield what makes a value, from within fusions, loops and the stacks that they make."""
        for _ in range(_DEEPEST):
            value = follow_back(value, _KEEPING)
            one, operands = value.instruction, value.operands()
            if one.opcode == "dynamic-update-slice":
                value = operands[1]
                continue
            yield one
            bodies = operands[0].instruction.called.get("body") if operands else None
            body = self.module.computations[bodies[0]] if bodies else None
            if one.opcode != "get-tuple-element" or body is None or body.root is None:
                return
            results = HloValue(self.module, body, body.root).operands()
            value = results[int(one.attributes["index"])]

    def _walk(self, value: HloValue) -> Iterator[Instruction]:
        """Yield the instructions before a value, the nearest first."""
        left, seen = deque([value]), set()
        while left and len(seen) < _MOST:
            value = left.popleft()
            yield value.instruction
            left += [one for one in value.operands() if one.key not in seen]
            seen.update(one.key for one in value.operands())

    def find_argument(self, one: CompiledCollective) -> str:
        """Return the argument of the step, or its slice, that is communicated; "" for others."""
        value = self.follow(one.tensor, _KEEPING)
        own = value.computation.name == self.module.entry
        return value.instruction.op_name if own and value.instruction.opcode == "parameter" else ""

    def follow(self, value: HloValue, through: Collection[str]) -> HloValue:
        """Follow a value back through opcodes that keep it, out of loops that do not change it."""
        value = follow_back(value, through)
        while is_carried(value):
            key = value.computation.name, int(value.instruction.attributes["index"])
            if key not in self.constants:
                break
            value = follow_back(self.constants[key], through)
        return value

    def find_reading_line(self, argument: str) -> Source | None:
        """Find the first line that reads an argument of the step."""
        entry = self.module.computations[self.module.entry]
        left = deque(
            HloValue(self.module, entry, one)
            for one in entry
            if one.opcode == "parameter" and one.op_name == argument
        )
        seen: set[object] = set()
        while left and len(seen) < _MOST:
            value = left.popleft()
            for reader, place in value.readers(self.readers):
                one = reader.instruction
                source = self.lines.find(one.attributes.get("metadata", ""))
                if source is not None and not is_installed(source.file):
                    return source
                if reader.key not in seen:
                    left.append(reader)
                    left += self._enter_loops(reader, place)
                seen.add(reader.key)
        return None

    def _enter_loops(self, start: HloValue, place: int) -> Iterator[HloValue]:
        """Yield what the loops that begin with a tuple carry of its element at a place."""
        loops = start.readers(self.readers) if start.instruction.opcode == "tuple" else ()
        for loop, _ in loops:
            for name in loop.instruction.called.get("body", ()):
                body = self.module.computations[name]
                values = (HloValue(self.module, body, one) for one in body)
                carried = (value for value in values if is_carried(value))
                index = str(place)
                yield from (x for x in carried if x.instruction.attributes["index"] == index)

    def phase_of(self, key: tuple[str, str], op_name: str) -> str:
        """Return the phase of an instruction by the transformations that made its op."""
        if "transpose(" in op_name:
            return "backward"
        if "jvp(" in op_name:
            return "forward"
        return "update" if self._in_entry(*key) in self._updating else "forward"

    def _in_entry(self, computation: str, name: str) -> str:
        """Return the instruction of the step itself that an instruction runs in."""
        while computation in self.callers:
            computation, name = self.callers[computation].key
        return name

    def _find_updating(self) -> Iterator[str]:
        """Yield the instructions of a step that follow from its backward pass."""
        after = {
            self._in_entry(computation.name, one.name)
            for computation, one in self.module.instructions()
            if "transpose(" in one.op_name
        }
        for one in self.module.computations[self.module.entry]:
            if not after.isdisjoint(one.operands):
                after.add(one.name)
                yield one.name


def is_carried(value: HloValue) -> bool:
    """Return whether a value is one that the loop around it carries."""
    operands = value.operands() if value.instruction.opcode == "get-tuple-element" else []
    return bool(operands) and operands[0].instruction.opcode == "parameter"


def _count_crossing(one: CompiledCollective, mesh: Mesh, blocks: int) -> int:
    """Count the bytes that leave a host, or a slice, each time."""
    if blocks == 1 or one.axes is None:
        return 0
    if one.pairs is None:
        return count_crossing_bytes(one.kind, one.bytes, one.axes, mesh, blocks)
    homes = [(a * blocks // mesh.devices, b * blocks // mesh.devices) for a, b in one.pairs]
    leaving = Counter(a for a, b in homes if a != b)
    return one.bytes * max(leaving.values(), default=0)


def split_op_name(op_name: str) -> list[str]:
    """Return the scopes of an op and its name, without what jax writes around them."""
    before, text = "", _JITTED.sub("", op_name.partition(";")[0])  # of what is merged, the first
    while before != text:
        before, text = text, _TRANSFORMED.sub(r"\1", text)
    text = text.rpartition(":")[2].rstrip(")") if text.endswith(")") else text
    return [part for part in text.split("/") if not _STRUCTURE.fullmatch(part)]
