"""Compiled HLO: the module as typed values, parsed in one pass over the lines of its text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from namedmesh.audit.hlo.array_types import HloType, TupleType, UnreadableHlo, read_type
from namedmesh.audit.hlo.groups import Groups, parse_groups, parse_pairs

Role = Literal["body", "condition", "branches", "to_apply", "calls"]

_NAME = r"[^\s(),={}%]+"
_HEADER = re.compile(rf"(ENTRY )?%?({_NAME}) ?(?:\(.*\) -> .* )?\{{\s*$")
_INSTRUCTION = re.compile(rf"\s*(ROOT )?%?({_NAME}) = ")
_OPCODE = re.compile(r" ([\w\-]+)\(")
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
# A string, brackets that have none inside, or a sign: the fewer matches, the faster.
_FLAT = rf'[^()\[\]{{}}"]*(?:{_STRING}[^()\[\]{{}}"]*)*'
_PUNCTUATION = re.compile(rf"{_STRING}|\{{{_FLAT}\}}|\[{_FLAT}\]|[(){{}}\[\],]")
_CALLED_NAME = re.compile(rf"%?({_NAME})")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_TRIP_COUNT = re.compile(r'"known_trip_count":\s*\{\s*"n":\s*"(\d+)"')
_SENT = re.compile(r'_xla_send_recv_source_target_pairs="?(\{\{[\d,{}]*?\}\})')
_UNKNOWN = 2**63 - 1  # cycles of what the compiler has no estimate for
_CYCLES = re.compile(r'"estimated_cycles":\s*"(\d+)"')

_ROLES: dict[str, Role] = {
    "body": "body", "condition": "condition", "branch_computations": "branches",
    "true_computation": "branches", "false_computation": "branches", "to_apply": "to_apply",
    "select": "to_apply", "scatter": "to_apply", "calls": "calls", "called_computations": "calls",
}  # fmt: skip
_WITH_LITERAL = ("constant", "parameter")
_OWN = ("metadata", "backend_config", "frontend_attributes")  # of each instruction
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")  # before computations


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str  # unique within its computation
    opcode: str  # such as all-reduce-start
    type: HloType
    operands: tuple[str, ...] = ()
    literal: str = ""  # of a constant or a parameter, the text between its parentheses
    called: Mapping[Role, tuple[str, ...]] = field(default_factory=dict)
    groups: Groups | None = None  # None without replica groups
    pairs: tuple[tuple[int, int], ...] | None = None  # of a collective-permute, a send or a recv
    op_name: str = ""  # the op it was compiled from, or one of them
    cycles: int = 0  # as the compiler estimates; 0 without an estimate
    trip_count: int | None = None  # of a while loop, if the compiler states it
    root: bool = False  # it is the result of its computation
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Computation:
    """A named list of instructions, such as the body of a loop."""

    name: str
    instructions: Mapping[str, Instruction]  # in the order of the text, that of the schedule

    def operand_types(self, instruction: Instruction) -> list[HloType]:
        """Return the types of an instruction's operands that the computation defines."""
        defined = (self.instructions.get(name) for name in instruction.operands)
        return [operand.type for operand in defined if operand is not None]

    @cached_property
    def root(self) -> Instruction | None:
        """The instruction whose result is that of the computation."""
        return next((one for one in self if one.root), None)

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions.values())


@dataclass(frozen=True)
class Module:
    """A compiled program."""

    name: str
    computations: Mapping[str, Computation]  # in the order of the text
    entry: str  # the computation that a step runs
    parameters: tuple[HloType, ...] = ()  # with their layouts
    results: HloType | None = None  # with its layout; None where the text does not state it
    attributes: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, list[str]] = field(default_factory=dict)  # of source lines, as text

    @property
    def scheduled(self) -> bool:
        """True if the instructions are in the order in which they run."""
        return self.attributes.get("is_scheduled") == "true"

    def instructions(self) -> Iterator[tuple[Computation, Instruction]]:
        """Yield every instruction with its computation."""
        for computation in self.computations.values():
            for instruction in computation:
                yield computation, instruction


def has_results_alone(start: Instruction) -> bool:
    """Return whether the type of a -start lacks its operands: that of an all-reduce of TPUs."""
    parts = start.type.parts if isinstance(start.type, TupleType) else ()
    nested = len(parts) == 2 and isinstance(parts[0], TupleType)
    return start.opcode == "all-reduce-start" and not nested


def parse_module(text: str) -> Module:
    """Parse compiled HLO, such as `jax.stages.Compiled.as_text` returns, in linear time."""
    return _Parser().module(text)


class _Parser:
    """The state of one pass over a module's text."""

    def __init__(self) -> None:
        self.groups: dict[str, Groups] = {}  # by text: collectives repeat few, which may be long

    def module(self, text: str) -> Module:
        """Parse all lines."""
        name, entry, attributes = "", "", {}
        computations: dict[str, Computation] = {}
        current: dict[str, Instruction] | None = None
        line, in_header = "", False
        tables: dict[str, list[str]] = {}
        try:
            for line in text.split("\n"):
                if in_header:
                    in_header = not line.startswith("}")
                elif current is None:
                    header = _HEADER.match(line) if line.endswith("{") else None
                    if header:
                        current = {}
                        computations[header[2]] = Computation(header[2], current)
                        entry = header[2] if header[1] else entry
                    elif line.startswith("HloModule "):
                        name, *parts = _split(line, len("HloModule "))[0]
                        attributes = _attributes(parts)
                        # A table of how to recover values continues, indented, up to its bracket.
                        in_header = line.endswith("{")
                    elif line in _TABLES:
                        tables[line] = []
                    elif tables and line[:1].isdigit():
                        tables[[*tables][-1]].append(line)
                    elif _INSTRUCTION.match(line):
                        raise UnreadableHlo("an instruction stands outside every computation")
                elif line.startswith("}"):
                    current = None
                elif line and not line.isspace():
                    instruction = self.instruction(line)
                    for operand in instruction.operands:
                        if "#" in operand and operand not in current:
                            current[operand] = _element_of(operand, current)
                    current[instruction.name] = instruction
            if not entry:
                line = text[:400]
                raise UnreadableHlo("there is no ENTRY computation")
            parameters, results = _entry_layout(attributes)
            if " async-start(" in text:
                _expand_async(computations)
        except UnreadableHlo as error:
            raise error.quoting(line) from None
        return Module(name.strip(), computations, entry, parameters, results, attributes, tables)

    def instruction(self, line: str) -> Instruction:
        """Parse one line of a computation."""
        start = _INSTRUCTION.match(line)
        if not start:
            raise UnreadableHlo("a line of a computation is not an instruction")
        type, at = read_type(line, start.end())
        opcode = _OPCODE.match(line, at)
        if not opcode:
            raise UnreadableHlo(f"expected an opcode at {line[at : at + 40]!r}")
        inside, end = _split(line, opcode.end())
        if end is None:
            raise UnreadableHlo("the operands have no closing parenthesis")
        attributes = _attributes(_split(line, end)[0])
        literal, pairs = opcode[1] in _WITH_LITERAL, attributes.get("source_target_pairs")
        sent = _SENT.search(attributes.get("frontend_attributes", "")) if not pairs else None
        pairs = sent[1] if sent else pairs
        config = attributes.get("backend_config", "")
        if config.startswith('"'):  # JSON in a string, rather than JSON
            config = config.replace('\\"', '"')
        trip_count = _TRIP_COUNT.search(config) if "known_trip_count" in config else None
        cycles = _CYCLES.search(config) if "estimated_cycles" in config else None
        return Instruction(
            name=start[2],
            opcode=opcode[1],
            type=type,
            operands=() if literal else tuple(_operand(part) for part in inside if part.strip()),
            literal=",".join(inside) if literal else "",
            called=_called(attributes),
            groups=self.read_groups(attributes.get("replica_groups")),
            pairs=parse_pairs(pairs) if pairs else None,
            op_name=_op_name(attributes.get("metadata", "")),
            cycles=int(cycles[1]) % _UNKNOWN if cycles else 0,
            trip_count=int(trip_count[1]) if trip_count else None,
            root=start[1] is not None,
            attributes=attributes,
        )

    def read_groups(self, text: str | None) -> Groups | None:
        """Parse replica groups, each text once."""
        if text is None:
            return None
        if text not in self.groups:
            self.groups[text] = parse_groups(text)
        return self.groups[text]


def _expand_async(computations: dict[str, Computation]) -> None:
    """Write `slice-start` for an `async-start` that runs one slice alone, and so on.

    So does jaxlib's text; what compilers dump has a computation for it.
    """
    wrappers: set[str] = set()
    for name, computation in computations.items():
        ops: dict[str, Instruction] = {}  # by the names of what is under way
        expanded = {one.name: _expand(one, computations, ops, wrappers) for one in computation}
        if ops:
            computations[name] = Computation(name, expanded)
    if wrappers:
        every = (one for computation in computations.values() for one in computation)
        called = {name for one in every for names in one.called.values() for name in names}
        for name in wrappers - called:
            del computations[name]


def _expand(
    one: Instruction,
    computations: Mapping[str, Computation],
    ops: dict[str, Instruction],
    wrappers: set[str],
) -> Instruction:
    """Return an instruction, an async one named after the only op that it runs."""
    if not one.opcode.startswith("async-"):
        return one
    names = one.called.get("calls", ())
    wrapper = computations.get(names[0]) if len(names) == 1 else None
    if one.opcode != "async-start":
        op = ops.get(one.operands[0]) if one.operands else None
    elif wrapper is not None and all(each.root or each.opcode == "parameter" for each in wrapper):
        op = wrapper.root
    else:
        op = None
    if op is None:
        return one
    ops[one.name] = op
    wrappers.update(names)
    opcode = f"{op.opcode}{one.opcode.removeprefix('async')}"
    own = {name: text for name, text in one.attributes.items() if name != "calls"}
    if one.opcode != "async-start":
        return replace(one, opcode=opcode, called={}, attributes=own)
    inner = {name: text for name, text in op.attributes.items() if name not in _OWN}
    taken: dict[str, Any] = {"called": op.called, "groups": op.groups, "pairs": op.pairs}
    return replace(one, opcode=opcode, attributes=inner | own, **taken)


def _split(text: str, start: int) -> tuple[list[str], int | None]:
    """Split at commas up to the bracket that closes what start is in; return where that ends."""
    parts, depth, begin = [], 0, start
    for match in _PUNCTUATION.finditer(text, start):
        sign = match[0]
        if sign == ",":
            if not depth:
                parts.append(text[begin : match.start()])
                begin = match.end()
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            if not depth:
                parts.append(text[begin : match.start()])
                return parts, match.end()
            depth -= 1
    parts.append(text[begin:])
    return parts, None


def _attributes(parts: list[str]) -> dict[str, str]:
    """Parse attributes from parts such as `dimensions={0}`."""
    attributes: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.strip().partition("=")
        if name == "device_ids" and "replica_groups" in attributes:
            attributes["replica_groups"] += f", {part.strip()}"  # one notation has a comma
        elif equals:
            attributes[name] = value
    return attributes


def _operand(part: str) -> str:
    """Return the name of an operand, which may follow its type or a comment."""
    return part.replace("*/", " ").rsplit(None, 1)[-1].removeprefix("%")


def _element_of(operand: str, known: Mapping[str, Instruction]) -> Instruction:
    """Return the get-tuple-element that an operand like `while.3#1` stands for."""
    source, _, index = operand.rpartition("#")
    type = known[source].type if source in known else None
    if not isinstance(type, TupleType) or not index.isdigit() or int(index) >= len(type.parts):
        raise UnreadableHlo(f"the operand {operand!r} is no element of a tuple before it")
    opcode, attributes = "get-tuple-element", {"index": index}
    return Instruction(operand, opcode, type.parts[int(index)], (source,), attributes=attributes)


def _called(attributes: Mapping[str, str]) -> dict[Role, tuple[str, ...]]:
    """Return the computations that attributes name, by their role."""
    called: dict[Role, tuple[str, ...]] = {}
    for name in attributes:
        role = _ROLES.get(name)
        if role:
            called[role] = called.get(role, ()) + tuple(_CALLED_NAME.findall(attributes[name]))
    return called


def _op_name(metadata: str) -> str:
    """Return the op that metadata names."""
    match = _OP_NAME.search(metadata) if metadata else None
    if not match:
        return ""
    return re.sub(r"\\(.)", r"\1", match[1]) if "\\" in match[1] else match[1]


def _entry_layout(attributes: Mapping[str, str]) -> tuple[tuple[HloType, ...], HloType | None]:
    """Parse the types of a module's parameters and of its result."""
    layout = attributes.get("entry_computation_layout")
    if layout is None:
        return (), None
    parameters, end = read_type(layout, 1)
    assert isinstance(parameters, TupleType), "a parameter list has parentheses"
    if not layout.startswith("->", end):
        raise UnreadableHlo(f"expected '->' at {layout[end : end + 40]!r}")
    return parameters.parts, read_type(layout, end + 2)[0]
