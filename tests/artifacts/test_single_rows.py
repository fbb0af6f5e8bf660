"""Products of a single row: two equal rows or sums of rows, and what a GPU's code writes."""

import functools
import re

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.aot import Target
from namedmesh.aot.absent_devices import devices_of
from namedmesh.aot.toolkit import toolkit_options
from namedmesh.artifacts.stablehlo import prepare, single_rows
from namedmesh.audit.hlo import parse_module
from namedmesh.jax_internals import find_gpu_compiler
from namedmesh.processes.devices import arrange_devices
from namedmesh.runtime import compiling

B, N, K, M = nm.dims("batch=1 heads=4 key=8 model=32")
PRODUCTS = {
    "the row comes first": ([B, M], [M, N, K], [B, N, K]),
    "the row comes last": ([M, N, K], [B, M], [N, K, B]),
    "several are contracted": ([B, N, K], [N, K, M], [B, M]),
    "nothing but the contraction": ([N, K], [N, K, M], [M]),
}


@pytest.fixture
def doubled(monkeypatch):
    """Rows are doubled on CPUs too, and before small matrices."""
    monkeypatch.setattr(prepare, "PLATFORMS", ("cpu",))
    monkeypatch.setattr(single_rows, "SMALLEST", 1000)
    monkeypatch.setattr(single_rows, "LARGEST_DOUBLED", 2000)


def lowered_text(step: nm.Step) -> str:
    return compiling.lower_step(step.artifact, step.mesh).lowered.as_text()


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_doubled_rows_are_those_of_numpy(name, doubled):
    first, second, dims = PRODUCTS[name]
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=[dim.size for dim in one]).astype("f") for one in (first, second))
    step = nm.compile(
        lambda x, y: nm.einsum([x, y], dims), nm.spec(first), nm.spec(second), mesh=nm.Mesh(one=1)
    )
    letters = {dim: "bnkm"[i] for i, dim in enumerate((B, N, K, M))}
    spelled = ["".join(letters[dim] for dim in one) for one in (first, second, dims)]
    expected = np.einsum(f"{spelled[0]},{spelled[1]}->{spelled[2]}", x, y)
    np.testing.assert_allclose(np.asarray(step(None, x, y)[1]), expected, rtol=1e-5, atol=1e-5)
    assert re.search(r"dot_general.*-> tensor<([0-9]+x)*2x", lowered_text(step))


@pytest.mark.parametrize(
    ("rows", "model", "mesh"), [(2, 32, 1), (1, 16, 1), (1, 512, 1), (1, 32, 2)]
)
def test_other_products_stay_as_they_are(rows, model, mesh, doubled):
    """Of several rows, of small and of large matrices, and of several devices."""
    R, C = nm.dims(f"row={rows} contracted={model}")
    specs = nm.spec([R, C]), nm.spec([C, N, K])
    made = nm.compile(
        lambda x, y: nm.einsum([x, y], [R, N, K]),
        *specs,
        mesh=nm.Mesh(a=mesh),
        layout="heads:a" if mesh > 1 else "",
    )
    (line,) = (line for line in lowered_text(made).splitlines() if "dot_general" in line)
    assert line.rstrip().endswith(f"-> tensor<{rows}x4x8xf32>")


def write_tokens(x, products, change, outer=1):
    """Multiply a row (BM) by some matrices, add up what they make, and go on with that."""
    T, U = nm.dims(f"step=3 round={outer}")

    def step(carry, _):
        x, matrices = carry
        parts = [nm.einsum([x, one], [B, N, K]) for one in matrices]
        joined = functools.reduce(nm.add, [nm.tanh(part) for part in parts])
        x = nm.reshape(joined, [N, K], M)
        return (x, [one * change for one in matrices] if change else matrices), None

    def whole(carry, _):
        return (nm.scan(step, (carry, products), over=T)[0][0], None)

    if outer > 1:
        return nm.scan(whole, x, over=U)[0]
    return whole(x, None)[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_times_matrices_of_a_loop_are_sums_of_one_matrix(dtype, doubled):
    """Matrices in any order of dimensions, several for one row."""
    rng = np.random.default_rng(0)
    x, w, v = (
        (rng.normal(size=size) * 0.3).astype("f") for size in ((1, 32), (32, 4, 8), (4, 8, 32))
    )
    specs = [nm.spec(one, dtype) for one in ([B, M], [M, N, K], [N, K, M])]
    step = nm.compile(lambda x, w, v: write_tokens(x, [w, v], 0), *specs, mesh=nm.Mesh(one=1))
    text = lowered_text(step)
    assert "dot_general" not in text and text.count("stablehlo.concatenate") == 1
    assert len(re.findall(r"stablehlo.reduce.*tensor<64x32xf32>", text)) == 1
    cast = lambda one: one.astype(specs[0].dtype).astype("f")
    y, w, v = map(cast, (x, w, v))
    for _ in range(3):
        parts = np.einsum("bm,mnk->bnk", y, w), np.einsum("bm,nkm->bnk", y, v)
        y = cast(sum(cast(np.tanh(cast(part))) for part in parts)).reshape(1, 32)
    result = np.asarray(step(None, *(one.astype(specs[0].dtype) for one in (x, w, v)))[1])
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(result.astype("f"), y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("change", "outer"), [(0.5, 1), (0, 2)])
def test_matrices_that_change_and_loops_inside_loops_keep_their_products(change, outer, doubled):
    specs = nm.spec([B, M]), nm.spec([M, N, K])
    step = nm.compile(lambda x, w: write_tokens(x, [w], change, outer), *specs, mesh=nm.Mesh(one=1))
    text = lowered_text(step)
    assert "dot_general" in text and "tensor<32x32xf32>" not in text
    rng = np.random.default_rng(0)
    x, w = ((rng.normal(size=size) * 0.3).astype("f") for size in ((1, 32), (32, 4, 8)))
    y, factor = x, w
    for _ in range(3 * outer):
        y = np.tanh(np.einsum("bm,mnk->bnk", y, factor)).reshape(1, 32)
        factor = factor * change if change else w
    np.testing.assert_allclose(np.asarray(step(None, x, w)[1]), y, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(find_gpu_compiler() is None, reason="XLA's GPU compiler is not here")
def test_a_gpu_writes_nothing_as_large_as_the_matrix(monkeypatch):
    H, C = nm.dims("hidden=2048 contracted=2048")
    specs = nm.spec([B, C], "bfloat16"), nm.spec([C, H], "bfloat16")
    program = nm.trace(lambda x, w: nm.einsum([nm.tanh(x), w], [B, H]), *specs)
    artifact, devices = nm.export(program, nm.Mesh(one=1), ""), devices_of(Target.parse("h100:1"))

    def count_written() -> int:
        lowered = compiling.lower_step(artifact, arrange_devices(devices, artifact.mesh))
        options = {"xla_gpu_enable_triton_gemm": False, **toolkit_options(devices)}
        module = parse_module(compiling.compile_lowered(lowered, options).as_text() or "")
        made = [one for one in module.computations[module.entry] if one.opcode == "fusion"]
        large = [one for one in made for array in one.type.arrays if array.elements == H.size**2]
        return len(large)

    assert count_written() == 0
    monkeypatch.setattr(single_rows, "LARGEST_DOUBLED", 0)
    assert count_written() == 1
