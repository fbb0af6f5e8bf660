"""Templates: StableHLO to be copied, cut out of the module that TensorFlow made of fragments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from jaxlib.mlir import ir

from namedmesh.lowering.fragments import RESULTS, STAND_IN
from namedmesh.runtime.regions import blocks, call_target, close_regions

Locate = Callable[[str], ir.Location]  # makes the location of an op of a name

# A name in the text of a location; what is followed by a line number is the path of a file.
_NAME = re.compile(r'"(?:fragment\.\d+/)?((?:[^"\\]|\\.)*)"(?!:)')
_UNCHANGING = ("stablehlo.set_dimension_size", "stablehlo.reshape", "stablehlo.convert")


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

    def copy(self, operands: Sequence[ir.Value], locate: Locate | None = None) -> list[ir.Value]:
        """Copies the ops to the insertion point.

        Args:
            operands: What they read; more than they need may be given.
            locate: Makes the locations of the copies from names; otherwise they stay as they are.

        Returns:
            The results.
        """
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
    """Gives what is inside a copy's regions its operands and names."""
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


def cut_templates(module: ir.Module, counts: Iterable[int]) -> list[Template]:
    """Cuts a module of fragments into them, their manual regions closed.

    Args:
        module: What TensorFlow made of all fragments, which is changed.
        counts: How many results each fragment has.

    Returns:
        A template for each fragment.
    """
    functions = {_symbol(view.operation): view.operation for view in module.body.operations}
    main = functions.pop("main")
    _Inliner(functions).inline(main)
    _drop_unchanging(main)
    close_regions(main)
    block = main.regions[0].blocks[0]
    ops = [view.operation for view in block.operations]
    numbers = dict(_find_stand_ins(ops))
    made = {value: i for i, op in enumerate(ops) for value in op.results}
    (end,) = (op for op in ops if call_target(op) == RESULTS)
    results = iter(end.operands)
    return [_cut(ops, made, numbers, [*islice(results, count)]) for count in counts]


def _find_stand_ins(ops: Iterable[ir.Operation]) -> Iterator[tuple[ir.Value, int]]:
    """Yields the stand-ins, annotated or not, each with its operand's number."""
    numbers: dict[ir.Value, int] = {}
    for op in ops:
        if call_target(op) == STAND_IN:
            config = ir.StringAttr(op.attributes["backend_config"]).value
            numbers[op.result] = int(config.split()[0])
            yield op.result, numbers[op.result]
        elif call_target(op) == "Sharding" and find_name(op.location).startswith(STAND_IN):
            yield op.result, numbers[op.operands[0]]


def _cut(
    ops: Sequence[ir.Operation],
    made: dict[ir.Value, int],
    numbers: dict[ir.Value, int],
    results: Sequence[ir.Value],
) -> Template:
    """Follows results back to numbered values, and makes a template of the ops between them."""
    needed, waiting, operands = set[int](), list(results), 0
    while waiting:
        value = waiting.pop()
        if value in numbers:
            operands = max(operands, numbers[value] + 1)
        elif made[value] not in needed:
            op = ops[made[value]]
            needed.add(made[value])
            waiting += [*op.operands, *_find_captures(op, made)]
    chosen = [ops[i] for i in sorted(needed)]
    return _make_template(operands, chosen, dict(numbers), made, results)


def _make_template(
    operands: int,
    ops: Iterable[ir.Operation],
    numbers: dict[ir.Value, int],
    made: Iterable[ir.Value],
    results: Sequence[ir.Value],
) -> Template:
    """Makes a template of ops whose operands have numbers."""
    lines, count = [], operands
    for op in ops:
        reads = tuple(numbers[value] for value in op.operands)
        captures = {value: numbers[value] for value in _find_captures(op, made)}
        plain = not len(op.regions)
        lines.append(Line(op, reads, captures, find_name(op.location), plain))
        for value in op.results:
            numbers[value] = count
            count += 1
    return Template(operands, tuple(lines), tuple(numbers[value] for value in results))


def _find_captures(op: ir.Operation, made: Iterable[ir.Value]) -> list[ir.Value]:
    """What an op's regions read of what is outside."""
    if not len(op.regions):
        return []
    inside = (view.operation for block in blocks(op) for view in block.operations)
    return [value for inner in inside for value in inner.operands if value in made]


class _Inliner:
    """Puts functions where they are called: bodies and reducers that TensorFlow left apart."""

    def __init__(self, functions: dict[str, ir.Operation]):
        self.functions = functions
        self.templates: dict[str, Template] = {}

    def inline(self, function: ir.Operation) -> None:
        """Replaces every call inside a function."""
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
            self.templates[name] = _make_template(len(numbers), ops, numbers, made, results)
        return self.templates[name]


def _drop_unchanging(main: ir.Operation) -> None:
    """Takes out ops that give a value the type it has.

    TensorFlow's top_k sets sizes to what they are, which the TPU compiler takes for dynamic sizes.
    """
    for block in blocks(main):
        for view in list(block.operations):
            op = view.operation
            if op.name in _UNCHANGING and op.results[0].type == op.operands[0].type:
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()


def _symbol(op: ir.Operation) -> str:
    """The name of a function."""
    return ir.StringAttr(op.attributes["sym_name"]).value


def find_name(location: ir.Location) -> str:
    """The name that TensorFlow gave an op, without the scope of its fragment, and without a path.

    Args:
        location: Where TensorFlow says the op comes from.

    Returns:
        The name; empty if it has none.
    """
    name = _NAME.search(str(location))
    return name[1] if name else ""
