"""StableHLO in the form that other versions of the compiler read."""

from __future__ import annotations

import re

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from namedmesh.runtime.bridge import module_context
from namedmesh.runtime.regions import blocks, close_regions

# A name in the text of a location; what is followed by a line number is the path of a file.
_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"(?!:)')
# The number of a loop's or branch's function among all that TensorFlow made: nm.cond.1_true_51__.2
_COUNTER = re.compile(r"_\d+(?=(_const_\d+)?__\.\d+$)")


def make_portable(module: bytes) -> bytes:
    """Turns TensorFlow's StableHLO into a versioned artifact, its manual regions closed.

    Equal programs give equal bytes, in this process and in others.

    Args:
        module: StableHLO bytecode as TensorFlow writes it.

    Returns:
        A module that compilers of at least the last twelve weeks read.
    """
    with module_context():
        parsed = ir.Module.parse(module)
        _keep_sizes(parsed.operation)
        close_regions(parsed)
        _rename(parsed)
        oldest = stablehlo.StablehloCompatibilityRequirement.WEEK_12
        version = stablehlo.get_version_from_compatibility_requirement(oldest)
        return stablehlo.serialize_portable_artifact(parsed, version, allow_other_dialects=True)


def _keep_sizes(module: ir.Operation) -> None:
    """Takes out ops that set a size to the value it has.

    TensorFlow's top_k has them, and the TPU compiler takes them for dynamic sizes.
    """
    for block in blocks(module):
        for view in list(block.operations):
            op = view.operation
            if (
                op.name == "stablehlo.set_dimension_size"
                and op.results[0].type == op.operands[0].type
            ):
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()


def _rename(module: ir.Module) -> None:
    """Leaves out what says which process exported a module: counters, and TensorFlow's path.

    Locations keep the names of ops, which compiled code has as metadata.
    """
    renamed: dict[str, ir.Location] = {}

    def rename(location: ir.Location) -> ir.Location:
        text = str(location)
        if text not in renamed:
            name = _NAME.search(text)
            renamed[text] = ir.Location.name(name[1]) if name else ir.Location.unknown()
        return renamed[text]

    with module.context:
        functions = _name_functions(module)
        module.operation.attributes["sym_name"] = ir.StringAttr.get("namedmesh")
        for block in blocks(module.operation):
            for argument in block.arguments:
                argument.set_location(rename(argument.location))
            for view in block.operations:
                op = view.operation
                op.location = rename(op.location)
                for role in ("callee", "called_computations"):
                    if role in op.attributes:
                        op.attributes[role] = _rename_calls(op.attributes[role], functions)


def _name_functions(module: ir.Module) -> dict[str, str]:
    """Gives functions names without TensorFlow's counter, and returns them by their old names."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for view in module.body.operations:
        attributes = view.operation.attributes
        old = ir.StringAttr(attributes["sym_name"]).value
        new = _COUNTER.sub("", old)
        while new in taken:
            new = f"{new}.{len(names)}"
        taken.add(new)
        names[old] = new
        attributes["sym_name"] = ir.StringAttr.get(new)
    return names


def _rename_calls(attribute: ir.Attribute, names: dict[str, str]) -> ir.Attribute:
    """A reference to a function, or a list of them, under the new names."""
    if isinstance(attribute, ir.ArrayAttr):
        return ir.ArrayAttr.get([_rename_calls(one, names) for one in attribute])
    return ir.FlatSymbolRefAttr.get(names[ir.FlatSymbolRefAttr(attribute).value])
