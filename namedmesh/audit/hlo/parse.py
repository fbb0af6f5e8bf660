"""From the text of compiled HLO to a Module, in one pass over its lines."""

from __future__ import annotations

import re
from collections.abc import Mapping

from namedmesh.audit.hlo.array_types import HloType, TupleType, UnreadableHlo, read_type
from namedmesh.audit.hlo.groups import Groups, parse_groups, parse_pairs
from namedmesh.audit.hlo.module import Computation, Instruction, Module, Role

_NAME = r"[^\s(),={}%]+"
_HEADER = re.compile(rf"(ENTRY )?%?({_NAME}) ?(?:\(.*\) -> .* )?\{{\s*$")
_INSTRUCTION = re.compile(rf"\s*(ROOT )?%?({_NAME}) = ")
_OPCODE = re.compile(r" ([\w\-]+)\(")
_PUNCTUATION = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\],]')
_CALLED_NAME = re.compile(rf"%?({_NAME})")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_TRIP_COUNT = re.compile(r'"known_trip_count":\s*\{\s*"n":\s*"(\d+)"')
_CYCLES = re.compile(r'"estimated_cycles":\s*"(\d+)"')

_ROLES: dict[str, Role] = {
    "body": "body",
    "condition": "condition",
    "branch_computations": "branches",
    "true_computation": "branches",
    "false_computation": "branches",
    "to_apply": "to_apply",
    "select": "to_apply",
    "scatter": "to_apply",
    "calls": "calls",
    "called_computations": "calls",
}
_WITH_LITERAL = ("constant", "parameter")


def parse_module(text: str) -> Module:
    """Read compiled HLO, such as `jax.stages.Compiled.as_text` returns.

    The time it takes is linear in the length of the text.
    """
    return _Reader().module(text)


class _Reader:
    """The state of one pass: what has been read so far, and groups that were read before."""

    def __init__(self) -> None:
        self.groups: dict[str, Groups] = {}  # collectives repeat few of them, which may be long

    def module(self, text: str) -> Module:
        """Read all lines."""
        name, entry, attributes = "", "", {}
        computations: dict[str, Computation] = {}
        current: dict[str, Instruction] | None = None
        line, in_header = "", False
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
                        # A table of how to recover values goes on, indented, up to its bracket.
                        in_header = line.endswith("{")
                    elif _INSTRUCTION.match(line):
                        raise UnreadableHlo("an instruction stands outside every computation")
                elif line.startswith("}"):
                    current = None
                elif line and not line.isspace():
                    instruction = self.instruction(line)
                    current[instruction.name] = instruction
            if not entry:
                line = text[:400]
                raise UnreadableHlo("there is no ENTRY computation")
            parameters, results = _entry_layout(attributes)
        except UnreadableHlo as error:
            raise error.quoting(line) from None
        return Module(name.strip(), computations, entry, parameters, results, attributes)

    def instruction(self, line: str) -> Instruction:
        """Read one line of a computation."""
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
        rest = _split(line, end)[0]
        attributes = _attributes(rest)
        literal = opcode[1] in _WITH_LITERAL
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
            pairs=parse_pairs(attributes["source_target_pairs"])
            if "source_target_pairs" in attributes
            else None,
            op_name=_op_name(attributes.get("metadata", "")),
            cycles=int(cycles[1]) if cycles else 0,
            trip_count=int(trip_count[1]) if trip_count else None,
            root=start[1] is not None,
            attributes=attributes,
        )

    def read_groups(self, text: str | None) -> Groups | None:
        """Replica groups, each text read once."""
        if text is None:
            return None
        if text not in self.groups:
            self.groups[text] = parse_groups(text)
        return self.groups[text]


def _split(text: str, start: int) -> tuple[list[str], int | None]:
    """The parts between commas up to the bracket that closes what start is in, and the end of that.

    Without such a bracket the parts go up to the end of the text, and the position is None.
    """
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
    """Attributes by name from parts such as `dimensions={0}`."""
    attributes: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.strip().partition("=")
        if name == "device_ids" and "replica_groups" in attributes:
            attributes["replica_groups"] += f", {part.strip()}"  # one notation has a comma
        elif equals:
            attributes[name] = value
    return attributes


def _operand(part: str) -> str:
    """The name of an operand, which may follow its type or a comment."""
    return part.replace("*/", " ").rsplit(None, 1)[-1].removeprefix("%")


def _called(attributes: Mapping[str, str]) -> dict[Role, tuple[str, ...]]:
    """The computations that attributes name, by their role."""
    called: dict[Role, tuple[str, ...]] = {}
    for name in attributes:
        role = _ROLES.get(name)
        if role:
            called[role] = called.get(role, ()) + tuple(_CALLED_NAME.findall(attributes[name]))
    return called


def _op_name(metadata: str) -> str:
    """The op that metadata names."""
    match = _OP_NAME.search(metadata) if metadata else None
    if not match:
        return ""
    return match[1].replace('\\"', '"').replace("\\\\", "\\") if "\\" in match[1] else match[1]


def _entry_layout(attributes: Mapping[str, str]) -> tuple[tuple[HloType, ...], HloType | None]:
    """The types of a module's parameters and of its result."""
    layout = attributes.get("entry_computation_layout")
    if layout is None:
        return (), None
    parameters, end = read_type(layout, 1)
    assert isinstance(parameters, TupleType), "a parameter list has parentheses"
    if not layout.startswith("->", end):
        raise UnreadableHlo(f"expected '->' at {layout[end : end + 40]!r}")
    return parameters.parts, read_type(layout, end + 2)[0]
