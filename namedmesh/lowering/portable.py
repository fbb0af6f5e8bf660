"""StableHLO in the form that other versions of the compiler read."""

from __future__ import annotations

from jax._src.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from namedmesh.lowering.regions import blocks, close_regions


def portable(module: bytes) -> bytes:
    """TensorFlow's StableHLO, its manual regions closed, as a versioned artifact readable for at least twelve weeks back."""
    with make_ir_context():
        parsed = ir.Module.parse(module)
        _keep_sizes(parsed.operation)
        close_regions(parsed)
        oldest = stablehlo.StablehloCompatibilityRequirement.WEEK_12
        version = stablehlo.get_version_from_compatibility_requirement(oldest)
        return stablehlo.serialize_portable_artifact(parsed, version, allow_other_dialects=True)


def _keep_sizes(module: ir.Operation) -> None:
    """Takes out ops that set a size to what it is: TensorFlow's top_k has them, and the TPU compiler takes them for dynamic."""
    for block in blocks(module):
        for view in list(block.operations):
            op = view.operation
            if (
                op.name == "stablehlo.set_dimension_size"
                and op.results[0].type == op.operands[0].type
            ):
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()
