"""StableHLO in the form that other versions of the compiler read."""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from namedmesh.lowering.regions import blocks, close_regions
from namedmesh.runtime.bridge import module_context


def make_portable(module: bytes) -> bytes:
    """Turns TensorFlow's StableHLO into a versioned artifact, its manual regions closed.

    Args:
        module: StableHLO bytecode as TensorFlow writes it.

    Returns:
        A module that compilers of at least the last twelve weeks read.
    """
    with module_context():
        parsed = ir.Module.parse(module)
        _keep_sizes(parsed.operation)
        close_regions(parsed)
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
