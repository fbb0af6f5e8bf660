"""StableHLO in the form that other versions of the compiler read."""

from __future__ import annotations

from jax._src.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from namedmesh.lowering.regions import close_regions


def portable(module: bytes) -> bytes:
    """TensorFlow's StableHLO, its manual regions closed, as a versioned artifact readable for at least twelve weeks back."""
    with make_ir_context():
        parsed = ir.Module.parse(module)
        close_regions(parsed)
        oldest = stablehlo.StablehloCompatibilityRequirement.WEEK_12
        version = stablehlo.get_version_from_compatibility_requirement(oldest)
        return stablehlo.serialize_portable_artifact(parsed, version, allow_other_dialects=True)
