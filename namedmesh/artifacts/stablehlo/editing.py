"""Editing StableHLO: blocks, calls, templates to copy, manual regions to close."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

Locate = Callable[[str], ir.Location]  # makes the location of an op of a name

PLACE, ENTER, LEAVE = "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"
SHARDING = "mhlo.sharding"  # the attribute

# A name in the text of a location; what is followed by a line number is the path of a file.
_NAME = re.compile(r'"(?:fragment\.\d+/)?((?:[^"\\]|\\.)*)"(?!:)')


def find_calls(module: ir.Operation, targets: Callable[[str], bool]) -> list[ir.Operation]:
    """Return the custom calls of some targets in a module."""
    return [op for op in ops_inside(module) if targets(call_target(op))]


def call_config(op: ir.Operation) -> str:
    """Return the text that a custom call carries."""
    return ir.StringAttr(op.attributes["backend_config"]).value


def close_regions(module: ir.Operation) -> None:
    """Mark every op of a manual region, and make every value it reads enter the region.

    XLA merges equal constants before it partitions, and a constant shared by a manual region and
    the code around it would have two shardings at once: so constants enter explicitly too.
    """
    with ir.Location.unknown(module.context):
        for block in blocks(module):
            _close(block)


def maker_of(value: ir.Value) -> ir.Operation | None:
    """Return the op that makes a value; None for what a loop or a caller gives."""
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def blocks(op: ir.Operation) -> Iterator[ir.Block]:
    """Yield every block inside an op, each before those inside it."""
    for region in op.regions:
        for block in region.blocks:
            yield block
            for inner in block.operations:
                yield from blocks(inner.operation)


def ops_inside(op: ir.Operation) -> list[ir.Operation]:
    """Return every op inside an op, which may be changed meanwhile."""
    return [view.operation for block in blocks(op) for view in block.operations]


def _close(block: ir.Block) -> None:
    """Close the manual regions of one block."""
    ops = [view.operation for view in block.operations]
    inside: set[ir.Value] = set()
    free: set[ir.Value] = set()  # made of constants alone
    for op in ops:
        if is_manual(op) or any(value in inside for value in op.operands):
            _draw_in(op, inside)
        elif not call_target(op) and not len(op.regions) and free.issuperset(op.operands):
            free.update(op.results)
    # What a region makes of constants is its own: outside, XLA would shard it as another reader of
    # a constant among them. Constants themselves lose attributes when XLA merges them.
    for op in reversed(ops):
        if op.name != "stablehlo.constant" and free.issuperset(op.results):
            readers = [use.owner.operation for result in op.results for use in result.uses]
            if readers and all(_is_local(reader, inside) for reader in readers):
                _draw_in(op, inside)
    entered: dict[ir.Value, ir.Value] = {}
    for op in ops:
        if call_target(op) != ENTER and _is_local(op, inside):
            for i, value in enumerate(op.operands):
                if value not in inside:
                    if value not in entered:
                        with ir.InsertionPoint(op):
                            replicated = make_call(PLACE, value, "{replicated}")
                            entered[value] = make_call(ENTER, replicated, "{manual}")
                    op.operands[i] = entered[value]


def _draw_in(op: ir.Operation, inside: set[ir.Value]) -> None:
    """Mark an op of a manual region; what leaves the region is the whole value."""
    if call_target(op) != LEAVE:
        inside.update(op.results)
        if call_target(op) != PLACE:
            op.attributes[SHARDING] = ir.StringAttr.get("{manual}")


def _is_local(op: ir.Operation, inside: set[ir.Value]) -> bool:
    """Return whether an op is inside a manual region, or leaves one."""
    return call_target(op) == LEAVE or any(value in inside for value in op.results)


def is_manual(op: ir.Operation) -> bool:
    """Return whether an op says that its value is a device's own, as one that enters a region."""
    return SHARDING in op.attributes and ir.StringAttr(op.attributes[SHARDING]).value == "{manual}"


def call_target(op: ir.Operation) -> str:
    """Return the target of a custom call; empty for other ops."""
    if "call_target_name" not in op.attributes:
        return ""
    return ir.StringAttr(op.attributes["call_target_name"]).value


def make_call(
    target: str, value: ir.Value, sharding: str, result: ir.Type | None = None, config: str = ""
) -> ir.Value:
    """Make a custom call that passes a value on under a sharding, or makes another of it."""
    attributes = {"call_target_name": target, "backend_config": config, SHARDING: sharding}
    call = ir.Operation.create(
        "stablehlo.custom_call",
        results=[value.type if result is None else result],
        operands=[value],
        attributes={name: ir.StringAttr.get(text) for name, text in attributes.items()},
    )
    return call.result


@dataclass(frozen=True, slots=True)
class Line:
    """One op of a template; values are numbered: operands first, then every op's results."""

    op: ir.Operation
    reads: tuple[int, ...]
    captures: dict[ir.Value, int]  # values from outside that its regions read
    name: str  # its name in TensorFlow
    plain: bool  # whether it has no regions


@dataclass(frozen=True, slots=True)
class Template:
    """Ops in order, from operands to results."""

    operands: int
    lines: tuple[Line, ...]
    results: tuple[int, ...]
    module: ir.Module | None = None  # owns the ops, which live as long as it

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

    def copy_at(self, op: ir.Operation, operands: Sequence[ir.Value]) -> list[ir.Value]:
        """Copy the ops before an op, at its location."""
        with ir.InsertionPoint(op):
            return self.copy(operands, lambda _: op.location)


def _settle_block(
    block: ir.Block, values: Sequence[ir.Value], line: Line, locate: Locate | None
) -> None:
    """Set the operands and locations of the ops inside a copy's regions."""
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
    known: Iterable[ir.Value],
    results: Sequence[ir.Value],
) -> Template:
    """Make a template of ops whose operands have numbers."""
    lines, count = [], operands
    for op in ops:
        reads = tuple(numbers[value] for value in op.operands)
        captures = {value: numbers[value] for value in find_captures(op, known)}
        plain = not len(op.regions)
        lines.append(Line(op, reads, captures, find_name(op.location), plain))
        for value in op.results:
            numbers[value] = count
            count += 1
    return Template(operands, tuple(lines), tuple(numbers[value] for value in results))


def find_captures(op: ir.Operation, known: Iterable[ir.Value]) -> list[ir.Value]:
    """Return the values from outside that an op's regions read."""
    if not len(op.regions):
        return []
    return [value for inner in ops_inside(op) for value in inner.operands if value in known]


def inline_calls(module: ir.Module) -> ir.Operation:
    """Inline every call in the main function of a module."""
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
    """Replace a custom call by the values that it returns."""
    if str(op.result.type).startswith("tuple"):
        for use in list(op.result.uses):
            element = use.owner.operation
            number = ir.IntegerAttr(element.attributes["index"]).value
            element.result.replace_all_uses_with(results[number])
            element.erase()
    else:
        op.result.replace_all_uses_with(results[0])
    op.erase()


class _Inliner:
    """Inlines functions: the bodies and reducers that TensorFlow left apart."""

    def __init__(self, functions: dict[str, ir.Operation]):
        self.functions = functions
        self.templates: dict[str, Template] = {}

    def inline(self, function: ir.Operation) -> None:
        """Replace every call inside a function."""
        for op in ops_inside(function):
            if op.name == "func.call":
                callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
                with ir.InsertionPoint(op):
                    results = self.template(callee).copy(list(op.operands))
                for old, new in zip(op.results, results, strict=True):
                    old.replace_all_uses_with(new)
                op.erase()

    def template(self, name: str) -> Template:
        """Return the template of a function, its own calls inlined."""
        if name not in self.templates:
            function = self.functions[name]
            self.inline(function)
            block = function.regions[0].blocks[0]
            *ops, end = [view.operation for view in block.operations]
            numbers = {argument: i for i, argument in enumerate(block.arguments)}
            known = {*numbers, *(value for op in ops for value in op.results)}
            results = list(end.operands)
            self.templates[name] = make_template(len(numbers), ops, numbers, known, results)
        return self.templates[name]


def find_name(location: ir.Location) -> str:
    """Return the name that TensorFlow gave an op, without scope and path."""
    name = _NAME.search(str(location))
    return name[1] if name else ""
