"""Assembly: instructions to StableHLO, from copies of what TensorFlow made of the fragments."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from namedmesh.artifacts.stablehlo.editing import (
    Template,
    blocks,
    call_target,
    close_regions,
    find_captures,
    find_name,
    inline_calls,
    make_template,
)
from namedmesh.jax_internals import module_context, tensor_type
from namedmesh.lowering.fragments import (
    RESULTS,
    STAND_IN,
    Block,
    Call,
    Choice,
    Compiled,
    Repeat,
    Results,
    Value,
)


class Library:
    """Fragments that were compiled for one program and serve others, which have most of them."""

    def __init__(self) -> None:
        self.results: dict[Hashable, Results] = {}
        self.size = 0  # of the modules that were read, in characters
        self._templates: dict[Hashable, Template] = {}
        self._modules: list[ir.Module] = []  # templates do not keep them alive
        self._context = module_context()

    def assemble(self, programs: Sequence[Block], fragments: Compiled) -> list[bytes]:
        """Put programs together; equal ones give equal bytes, in this process and in others."""
        new = {key: one for key, one in fragments.traced.items() if one.new}
        with self._context, ir.Location.unknown():
            templates = dict(self._templates)
            if new:
                module = ir.Module.parse(fragments.module)
                cut = cut_templates(module, [len(one.results) for one in new.values()])
                templates.update(zip(new, cut, strict=True))
                self._modules.append(module)
                self.size += len(fragments.module)
            numbered = [templates[key] for key in fragments.traced]
            assembled = [_assemble(program, numbered) for program in programs]
        for key, one in new.items():
            if one.lasting:
                self.results[key], self._templates[key] = one.results, templates[key]
        return assembled


LARGEST = 2**24  # characters of modules that a library reads before a new one is opened
_library: list[Library] = []


def open_library() -> Library:
    """Return the library of this process, or a new one after the last has grown large."""
    if not _library or _library[0].size > LARGEST:
        _library[:] = [Library()]  # a context gives its memory back as a whole
    return _library[0]


def _assemble(program: Block, templates: Sequence[Template]) -> bytes:
    """Put one program together."""
    module = ir.Module.create()
    module.operation.attributes["sym_name"] = ir.StringAttr.get("namedmesh")
    with ir.InsertionPoint(module.body):
        _Assembler(templates).function(program)
    oldest = stablehlo.StablehloCompatibilityRequirement.WEEK_12
    version = stablehlo.get_version_from_compatibility_requirement(oldest)
    return stablehlo.serialize_portable_artifact(module, version, allow_other_dialects=True)


class _Assembler:
    """Makes the ops of one module, in order."""

    def __init__(self, templates: Sequence[Template]):
        self.templates = templates
        self.values: dict[Value, ir.Value] = {}
        self.locations: dict[str, ir.Location] = {}

    def function(self, block: Block) -> None:
        """Make the function `main`; what it returns is known when all of it is made."""
        types = [_tensor_type(value) for value in block.arguments]
        main = func.FuncOp("main", ir.FunctionType.get(types, []))
        entry = main.add_entry_block()
        with ir.InsertionPoint(entry):
            results = self.block(block, entry.arguments)
            func.ReturnOp(results)
        kind = ir.FunctionType.get(types, [value.type for value in results])
        main.attributes["function_type"] = ir.TypeAttr.get(kind)

    def block(self, block: Block, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """Assemble a block's instructions at the insertion point, and return its results."""
        self.values.update(zip(block.arguments, arguments, strict=True))
        for one in block.instructions:
            results = self.call(one) if isinstance(one, Call) else self.control(one)
            self.values.update(zip(one.results, results, strict=True))
        return [self.values[value] for value in block.results]

    def locate(self, name: str) -> ir.Location:
        """Return the location that gives an op its name."""
        if name not in self.locations:
            self.locations[name] = ir.Location.name(name) if name else ir.Location.unknown()
        return self.locations[name]

    def call(self, call: Call) -> list[ir.Value]:
        """Copy a template, its operands and names put in."""
        operands = [self.values[operand] for operand in call.operands]
        template = self.templates[call.fragment]
        return template.copy(operands, lambda name: self.locate(call.name + name))

    def control(self, one: Repeat | Choice) -> Sequence[ir.Value]:
        """Assemble a loop or a choice."""
        with self.locate(one.name):
            return self.loop(one) if isinstance(one, Repeat) else self.choice(one)

    def loop(self, loop: Repeat) -> Sequence[ir.Value]:
        """Assemble a loop, which carries what it captures unchanged."""
        captures = loop.captures
        outside = [self.values[value] for value in captures]
        operands = [*(self.values[value] for value in loop.start), *outside]
        types = [value.type for value in operands]
        op = stablehlo.WhileOp(types, operands)
        count = len(loop.start)
        for region, block in zip(op.regions, (loop.test, loop.body), strict=True):
            inner = region.blocks.append(*types)
            arguments = list(inner.arguments)
            with ir.InsertionPoint(inner):
                self.values.update(zip(captures, arguments[count:], strict=True))
                results = self.block(block, arguments[:count])
                kept = arguments[count:] if block is loop.body else []
                stablehlo.ReturnOp([*results, *kept])
        self.values.update(zip(captures, outside, strict=True))
        return [*op.results][:count]

    def choice(self, choice: Choice) -> Sequence[ir.Value]:
        """Assemble a choice, whose branches read what is outside."""
        types = [_tensor_type(value) for value in choice.results]
        op = stablehlo.IfOp(types, self.values[choice.condition])
        for region, block in zip(op.regions, (choice.yes, choice.no), strict=True):
            with ir.InsertionPoint(region.blocks.append()):
                stablehlo.ReturnOp(self.block(block, []))
        return [*op.results]


def _tensor_type(value: Value) -> ir.RankedTensorType:
    """Return the type of a value."""
    return tensor_type(value.sizes, np.dtype(value.dtype))


_UNCHANGING = ("stablehlo.set_dimension_size", "stablehlo.reshape", "stablehlo.convert")


def cut_templates(module: ir.Module, counts: Iterable[int]) -> list[Template]:
    """Cut a module of fragments into them, their manual regions closed."""
    main = inline_calls(module)
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
    """Yield the stand-ins, annotated or not, each with its operand's number."""
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
    """Follow results back to numbered values, and make a template of the ops between them."""
    needed, waiting, operands = set[int](), list(results), 0
    while waiting:
        value = waiting.pop()
        if value in numbers:
            operands = max(operands, numbers[value] + 1)
        elif made[value] not in needed:
            op = ops[made[value]]
            needed.add(made[value])
            waiting += [*op.operands, *find_captures(op, made)]
    chosen = [ops[i] for i in sorted(needed)]
    return make_template(operands, chosen, dict(numbers), made, results)


def _drop_unchanging(main: ir.Operation) -> None:
    """Take out ops that give a value the type it has."""
    # TensorFlow's top_k sets sizes to what they are, which the TPU compiler takes for dynamic ones.
    for block in blocks(main):
        for view in list(block.operations):
            op = view.operation
            if op.name in _UNCHANGING and op.results[0].type == op.operands[0].type:
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()
