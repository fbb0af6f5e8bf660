"""A compiled module as it will run: its values and their bytes, how often its loops turn, and the cycles it should take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_BITS = {"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "bf16": 16, "f16": 16, "s32": 32, "u32": 32,
         "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128}  # fmt: skip
_SHAPE = re.compile(r"\b(" + "|".join(_BITS) + r")\[([\d,]*)\](?:\{([\d,]*)((?::[^}]*)?)\})?")
_ALIASES = {
    "parameter",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "conditional",
    "call",
    "after-all",
    "opt-barrier",
}


def shape_bytes(text: str) -> int:
    """The bytes of all shapes in HLO text, the padding of TPU tiles included; only what lies in main memory counts.

    >>> shape_bytes("f32[10,100]{1,0:T(8,128)}")
    8192
    """
    total = 0
    for dtype, dims, order, layout in _SHAPE.findall(text):
        if re.search(r"S\([1-9]\d*\)", layout):
            continue
        sizes = [int(size) for size in dims.split(",") if size]
        tile = re.search(r"T\(([\d,]+)\)", layout)
        if tile and not sizes:
            sizes = [int(width) for width in tile[1].split(",")]
        elif tile and order:
            minor = [int(i) for i in order.split(",")]
            for i, width in zip(minor, reversed(tile[1].split(",")), strict=False):
                sizes[i] = -(-sizes[i] // int(width)) * int(width)
        total += math.prod(sizes) * _BITS[dtype] // 8
    return total


def plain_shape(text: str) -> str:
    """The first shape in HLO text without its layout."""
    return "".join(f"{dtype}[{dims}]" for dtype, dims, _, _ in _SHAPE.findall(text)[:1])


@dataclass(frozen=True)
class Value:
    """One instruction that is scheduled by itself and makes something new."""

    kind: str
    type: str
    op_name: str
    cycles: int
    times: int  # in one step

    @property
    def parts(self) -> list[str]:
        """The types of the values it makes; what starts one ends with what it will be."""
        types = [shape[0] for shape in _SHAPE.finditer(self.type)]
        return types[-1:] if self.kind.endswith("-start") else types


class Schedule:
    """The scheduled computations of a compiled module, read from its text."""

    def __init__(self, text: str):
        self.text = text
        self.entry = ""
        self.computations: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in text.splitlines():
            header = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line)
            if header:
                lines = self.computations.setdefault(header[2], [])
                self.entry = header[2] if header[1] else self.entry
            elif " = " in line:
                lines.append(line)

    @property
    def entries(self) -> list[str]:
        """The types of the module's entries, in order."""
        match = re.search(r"entry_computation_layout=\{\((.*?)\)->", self.text)
        return [shape[0] for shape in _SHAPE.finditer(match[1])] if match else []

    @cached_property
    def times(self) -> dict[str, int]:
        """How often each scheduled computation runs in one step; a loop of unknown length counts once."""
        times: dict[str, int] = {}

        def visit(name: str, count: int) -> None:
            times[name] = times.get(name, 0) + count
            for line in self.computations.get(name, ()):
                inner = re.search(r" while\(.*?condition=%?([\w.\-]+), body=%?([\w.\-]+)", line)
                if inner:
                    turns = count * self._turns(line, inner[1])
                    visit(inner[1], turns)
                    visit(inner[2], turns)
                elif re.search(r" (?:call|conditional|async-start)\(", line):
                    called = re.findall(
                        r"(?:to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)", line
                    )
                    branches = re.search(r"branch_computations=\{(.*?)\}", line)
                    for one in called + (re.findall(r"[\w.\-]+", branches[1]) if branches else []):
                        visit(one, count)

        visit(self.entry, 1)
        return times

    def _turns(self, line: str, condition: str) -> int:
        known = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
        if known:
            return int(known[1])
        limits = [
            re.search(r"s32\[\]\S* constant\((\d+)\)", inner)
            for inner in self.computations.get(condition, ())
        ]
        found = [int(limit[1]) for limit in limits if limit]
        return found[0] if len(found) == 1 else 1

    @property
    def loops(self) -> int:
        """How many loops of more than one turn there are."""
        return len(re.findall(r" while\(", self.text))

    def values(self) -> Iterator[Value]:
        """Every value that needs memory of its own; within a loop it has that memory once."""
        for name, times in self.times.items():
            for line in self.computations.get(name, ()):
                match = re.match(r"\s+(?:ROOT )?%?[\w.\-]+ = (\(.*?\)|\S+) ([\w\-]+)\(", line)
                if match and match[2] not in _ALIASES and not match[2].endswith("-done"):
                    metadata = re.search(r'op_name="([^"]*)"', line)
                    cycles = re.search(r'"estimated_cycles":"(\d+)"', line)
                    yield Value(
                        match[2],
                        match[1],
                        metadata[1] if metadata else "",
                        int(cycles[1]) if cycles else 0,
                        times,
                    )

    def cycles(self) -> int:
        """The cycles the compiler expects one step's computation to take, communication aside; 0 where it says nothing."""
        return sum(value.cycles * value.times for value in self.values())
