"""Custom calls of an Artifact: those that jax and XLA bring are let through, no others."""

import pytest
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

import namedmesh as nm
from namedmesh.artifacts.stablehlo.prepare import check_calls
from namedmesh.runtime import Artifact, Executable
from tests.artifacts.files import replace_members

TEXT = """
module {{
  func.func @inner(%x: tensor<4xf32>) -> tensor<4xf32> {{
    %0 = stablehlo.custom_call @{target}(%x) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }}
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
    %0 = func.call @inner(%x) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }}
}}
"""


def check(target: str) -> None:
    with mlir.make_ir_context():
        check_calls(ir.Module.parse(TEXT.format(target=target)))


@pytest.mark.parametrize(
    "target", ["Sharding", "lapack_sgetrf_ffi", "cu_threefry2x32_ffi", "TopK", "tpu_custom_call"]
)
def test_what_jax_and_xla_bring_is_let_through(target):
    check(target)


@pytest.mark.parametrize(
    "target",
    ["xla_python_cpu_callback", "xla_ffi_python_cpu_callback", "system", "mine", "NotTopK", "Qr2"],
)
def test_other_native_functions_are_refused_unless_named(target, monkeypatch):
    with pytest.raises(nm.NamedMeshError, match=f"not known: {target}"):
        check(target)
    monkeypatch.setenv("NAMEDMESH_CUSTOM_CALLS", f"other, {target}")
    check(target)


@pytest.mark.parametrize("member", ["step.mlir", "init.mlir"])
def test_a_changed_module_that_was_sealed_again_is_refused_before_it_is_compiled(member):
    (B,) = nm.dims("batch=4")
    program = nm.trace(lambda x: nm.exp(x) * nm.param("w", [B]), nm.spec([B]))
    artifact = nm.export(program, nm.Mesh(data=1))
    contents = artifact.step_module if member == "step.mlir" else artifact.init_module
    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, contents)  # type: ignore[call-overload]
        (main,) = [op for op in module.body.operations if op.name.value == "main"]
        (last,) = [op for op in main.body.blocks[0].operations if op.name == "func.return"]
        value = last.operands[0]
        with ir.InsertionPoint(last), ir.Location.unknown():
            name = ir.StringAttr.get("xla_ffi_python_cpu_callback")
            call = ir.Operation.create(
                "stablehlo.custom_call", [value.type], [value], {"call_target_name": name}
            )
        last.operands[0] = call.result
        version = stablehlo.get_minimum_version()
        changed = stablehlo.serialize_portable_artifact_str(str(module), version)
    read = Artifact.from_bytes(replace_members(artifact.to_bytes(), {member: changed}))
    with pytest.raises(nm.NamedMeshError, match="not known: xla_ffi_python_cpu_callback"):
        Executable(read, strict=False).init(0)
