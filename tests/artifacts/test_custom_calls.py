"""Custom calls of an Artifact: those that jax and XLA bring are let through, no others."""

import pytest
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

import namedmesh as nm
from namedmesh.artifacts.stablehlo.prepare import check_calls

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
