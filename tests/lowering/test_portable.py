"""What is taken out of, and kept in, the module that other compilers read."""

from jaxlib.mlir.dialects import stablehlo

import namedmesh as nm
from namedmesh.jax_internals import module_context

B, K = nm.dims("batch=8 best=2")


def test_top_k_has_no_op_that_a_compiler_could_take_for_a_dynamic_size():
    artifact = nm.export(
        nm.trace(lambda x: nm.top_k(x, B, K)[0], nm.spec([B])), nm.Mesh(data=2), ""
    )
    with module_context() as context:
        text = str(stablehlo.deserialize_portable_artifact(context, artifact.step_module))
    assert "chlo.top_k" in text or "stablehlo.sort" in text, "the op itself is there"
    assert "set_dimension_size" not in text
