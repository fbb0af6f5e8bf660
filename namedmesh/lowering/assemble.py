"""Assembly: instructions to one StableHLO module, from copies of templates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from namedmesh.jax_internals import module_context, tensor_type
from namedmesh.lowering.fragments import Compiled
from namedmesh.lowering.instructions import Block, Call, Choice, Repeat, Value
from namedmesh.lowering.templates import Template, cut_templates


def assemble(programs: Sequence[Block], fragments: Compiled) -> list[bytes]:
    """Put programs together.

    Equal programs give equal bytes, in this process and in others.
    """
    with module_context(), ir.Location.unknown():
        source = ir.Module.parse(fragments.module)  # templates do not keep it alive
        templates = cut_templates(source, fragments.counts)
        return [_assemble(program, templates) for program in programs]


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
        """Assemble a block's instructions at the insertion point, and returns its results."""
        self.values.update(zip(block.arguments, arguments, strict=True))
        for one in block.instructions:
            results = self.call(one) if isinstance(one, Call) else self.control(one)
            self.values.update(zip(one.results, results, strict=True))
        return [self.values[value] for value in block.results]

    def locate(self, name: str) -> ir.Location:
        """The location that gives an op its name."""
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
    """The type of a value."""
    return tensor_type(value.sizes, np.dtype(value.dtype))
