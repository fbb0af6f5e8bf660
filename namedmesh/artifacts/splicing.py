"""Splicing: StableHLO that is copied into other StableHLO, functions put where they are called."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from namedmesh.artifacts.regions import blocks

Locate = Callable[[str], ir.Location]  # makes the location of an op of a name

# A name in the text of a location; what is followed by a line number is the path of a file.
_NAME = re.compile(r'"(?:fragment\.\d+/)?((?:[^"\\]|\\.)*)"(?!:)')


@dataclass(frozen=True, slots=True)
class Line:
    """One op of a template; values are numbered: the operands first, then every op's results."""

    op: ir.Operation
    reads: tuple[int, ...]
    captures: dict[ir.Value, int]  # what its regions read of what comes before
    name: str  # what TensorFlow calls it
    plain: bool  # whether it has no regions


@dataclass(frozen=True, slots=True)
class Template:
    """Ops in order, from operands to results."""

    operands: int
    lines: tuple[Line, ...]
    results: tuple[int, ...]
    module: ir.Module | None = None  # of which the ops are, so that they live as long

    def copy(self, operands: Sequence[ir.Value], locate: Locate | None = None) -> list[ir.Value]:
        """Copy the ops to the insertion point."""
        values = [*operands[: self.operands]]
        for line in self.lines:
            op = line.op.clone()
            for i, number in enumerate(line.reads):
                op.operands[i] = values[number]
            if locate is not None:
                op.location = locate(line.name)
            if not line.plain:
                for block in blocks(op):
                    _settle_block(block, values, line, locate)
            values += op.results
        return [values[number] for number in self.results]


def _settle_block(
    block: ir.Block, values: Sequence[ir.Value], line: Line, locate: Locate | None
) -> None:
    """Give what is inside a copy's regions its operands and names."""
    for view in block.operations if line.captures else ():
        op = view.operation
        for i, value in enumerate(op.operands):
            if value in line.captures:
                op.operands[i] = values[line.captures[value]]
    if locate is not None:
        location = locate(line.name)
        for view in block.operations:
            view.operation.location = location
        for argument in block.arguments:
            argument.set_location(location)


def make_template(
    operands: int,
    ops: Iterable[ir.Operation],
    numbers: dict[ir.Value, int],
    made: Iterable[ir.Value],
    results: Sequence[ir.Value],
) -> Template:
    """Make a template of ops whose operands have numbers."""
    lines, count = [], operands
    for op in ops:
        reads = tuple(numbers[value] for value in op.operands)
        captures = {value: numbers[value] for value in find_captures(op, made)}
        plain = not len(op.regions)
        lines.append(Line(op, reads, captures, find_name(op.location), plain))
        for value in op.results:
            numbers[value] = count
            count += 1
    return Template(operands, tuple(lines), tuple(numbers[value] for value in results))


def find_captures(op: ir.Operation, made: Iterable[ir.Value]) -> list[ir.Value]:
    """What an op's regions read of what is outside."""
    if not len(op.regions):
        return []
    inside = (view.operation for block in blocks(op) for view in block.operations)
    return [value for inner in inside for value in inner.operands if value in made]


def inline_calls(module: ir.Module) -> ir.Operation:
    """Replace every call in the main function of a module by what it calls."""
    functions = {
        ir.StringAttr(view.operation.attributes["sym_name"]).value: view.operation
        for view in module.body.operations
    }
    main = functions.pop("main")
    _Inliner(functions).inline(main)
    return main


def main_template(module: ir.Module) -> Template:
    """Make a template of the main function of a module, calls inlined."""
    inline_calls(module)
    functions = {"main": ir.SymbolTable(module.operation)["main"].operation}
    return replace(_Inliner(functions).template("main"), module=module)


def replace_call(op: ir.Operation, results: Sequence[ir.Value]) -> None:
    """Replace a custom call by the values that it is to return."""
    if isinstance(op.result.type, ir.TupleType) or str(op.result.type).startswith("tuple"):
        for use in list(op.result.uses):
            element = use.owner.operation
            number = ir.IntegerAttr(element.attributes["index"]).value
            element.result.replace_all_uses_with(results[number])
            element.erase()
    else:
        op.result.replace_all_uses_with(results[0])
    op.erase()


class _Inliner:
    """Puts functions where they are called: bodies and reducers that TensorFlow left apart."""

    def __init__(self, functions: dict[str, ir.Operation]):
        self.functions = functions
        self.templates: dict[str, Template] = {}

    def inline(self, function: ir.Operation) -> None:
        """Replace every call inside a function."""
        for block in list(blocks(function)):
            for view in list(block.operations):
                op = view.operation
                if op.name == "func.call":
                    callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
                    with ir.InsertionPoint(op):
                        results = self.template(callee).copy(list(op.operands))
                    for old, new in zip(op.results, results, strict=True):
                        old.replace_all_uses_with(new)
                    op.erase()

    def template(self, name: str) -> Template:
        """The template of a function, whose own calls are replaced."""
        if name not in self.templates:
            function = self.functions[name]
            self.inline(function)
            block = function.regions[0].blocks[0]
            *ops, end = [view.operation for view in block.operations]
            numbers = {argument: i for i, argument in enumerate(block.arguments)}
            made = {*numbers, *(value for op in ops for value in op.results)}
            results = list(end.operands)
            self.templates[name] = make_template(len(numbers), ops, numbers, made, results)
        return self.templates[name]


def find_name(location: ir.Location) -> str:
    """The name that TensorFlow gave an op, without scope and path."""
    name = _NAME.search(str(location))
    return name[1] if name else ""
