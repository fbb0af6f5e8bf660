"""ReduceScatters of rows in whole tiles, written for CPUs: the collectives and numbers planned."""

import importlib.util
from dataclasses import dataclass, replace

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.artifacts.stablehlo import prepare, row_scatters
from namedmesh.jax_internals import parse_stablehlo
from namedmesh.runtime import Executable
from namedmesh.runtime.compiling import lower_step
from tests.aot.test_aot_tpu import aot
from tests.artifacts.partitioned import make_inputs
from tests.checks import number_leaves

AS_SUM = "ReduceScatter made as AllReduce and slice"
LAYOUT = "batch:data, hidden:tensor, row:tensor"
MESH = nm.Mesh(data=2, tensor=4)


@dataclass(frozen=True)
class Rows:
    """A train step of layers between which rows are in shards, and where it lies."""

    mesh: nm.Mesh = MESH
    layout: str = LAYOUT
    params: str | None = None
    batch: tuple[int, ...] = (2,)
    length: int = 64
    model: tuple[int, ...] = (128,)
    layers: int = 1
    dtype: str = "float32"

    def trace(self) -> nm.Program:
        S, R, H, L = nm.dims(f"seq={self.length} row={self.length} hidden=16 layer={self.layers}")
        B = [nm.Dimension(name, n) for name, n in zip(("batch", "group"), self.batch, strict=False)]
        M = [nm.Dimension(f"model{i or ''}", n) for i, n in enumerate(self.model)]

        def layer(x, ws):
            w, v = (nm.cast(one, self.dtype) for one in ws)
            h = nm.tanh(nm.einsum([nm.rename(x, R, S), w], [*B, S, H]))
            return x + nm.rename(nm.einsum([h, v], [*B, S, *M]), S, R), None

        def train(x):
            wide, deep = nm.fan_in_init(*M), nm.fan_in_init(H)
            ws = nm.param("w", [L, *M, H], wide), nm.param("v", [L, H, *M], deep)
            y, _ = nm.scan(layer, nm.cast(x, self.dtype), ws, over=L)
            loss = nm.mean(nm.square(nm.cast(y, "float32")))
            for name, grad in nm.grad(loss).items():
                nm.assign(nm.parameters()[name], nm.parameters()[name] - grad)
            return loss, y

        return nm.trace(train, x=nm.spec([*B, R, *M]))

    def export(self) -> nm.Artifact:
        return nm.export(self.trace(), self.mesh, self.layout, self.params)


@dataclass(frozen=True)
class Weights(Rows):
    """The gradient of a weight, whose first dimension is scattered."""

    layout: str = "batch:data, seq:tensor, rest:data"

    def trace(self) -> nm.Program:
        sizes = f"batch={self.batch[0]} seq=4 depth={self.length} rest={self.length}"
        B, S, K, R = nm.dims(sizes)
        M = [nm.Dimension(f"model{i or ''}", n) for i, n in enumerate(self.model)]
        product = lambda x, y: nm.rename(nm.einsum([x, y], [K, *M]), K, R)
        specs = nm.spec([B, S, K], self.dtype), nm.spec([B, S, *M], self.dtype)
        return nm.trace(product, x=specs[0], y=specs[1])


THREE = nm.Mesh(a=2, b=2, c=2)
CASES = {
    "a row on each device": (Rows(), 1),
    "a row on each device, in a loop of bfloat16": (Rows(layers=3, dtype="bfloat16"), 2),
    "nested rows": (Rows(THREE, "batch:a, group:b, hidden:c, row:c", batch=(2, 2)), 1),
    "a row of several axes": (Rows(THREE, "batch:a+b, hidden:c, row:c", batch=(4,)), 1),
    "scattered over axes in another order": (
        Rows(THREE, "batch:b, hidden:a+c, row:c+a", batch=(2,)),
        1,
    ),
    "uneven rows": (Rows(length=61), 1),
    "weights at rest in shards": (Rows(params="model:data", model=(128,), batch=(2,)), 1),
    "the gradient of a weight": (Weights(length=32), 1),
}
LEFT = {
    "two rows on a device": Rows(batch=(4,)),
    "shards that are no tiles": Rows(length=48),
    "rows that are no tiles": Rows(model=(100,)),
    "rows of two dimensions": Rows(model=(8, 16)),
    "all devices": Rows(nm.Mesh(tensor=8), "hidden:tensor, row:tensor", batch=(1,), length=128),
    "a slice of two devices, and a row over both slices": Rows(
        nm.Mesh(tensor=4, data=2, slices=2), LAYOUT
    ),
}


@pytest.fixture
def scattering(monkeypatch):
    """What is written for TPUs is written for CPUs."""
    monkeypatch.setattr(prepare, "SCATTERING", frozenset({"cpu"}))


def count_scatters(step: Executable) -> int:
    lowered = lower_step(step.artifact, step.mesh, step.partitioner).lowered
    return lowered.as_text().count("reduce_scatter")


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("name", CASES)
def test_scatters_of_rows_are_made_as_planned(name, partitioner, scattering):
    case, scatters = CASES[name]
    program, artifact = case.trace(), case.export()
    step = Executable(artifact, strict=True, partitioner=partitioner)
    assert count_scatters(step) == scatters
    plans = [one for one in artifact.collectives if one.kind == "ReduceScatter"]
    made = [one.kind for plan, one in step.audit.matched if plan in plans]
    # CPUs make a sum and a slice of every other one.
    assert made.count("ReduceScatter") == scatters and len(made) == len(plans)
    inputs = make_inputs(program)
    state = {key: np.asarray(value) for key, value in program.initial_state(1).items()}
    updated, expected = program.evaluate(state, **inputs)
    new_state, outputs = step(step.place(state), **inputs)
    rtol, atol = (1e-4, 1e-5) if case.dtype == "float32" else (0.05, 0.1)
    for key, value in number_leaves(expected).items():
        np.testing.assert_allclose(number_leaves(outputs)[key], value, rtol, atol, err_msg=key)
    for key, value in updated.items():
        np.testing.assert_allclose(new_state[key], value, rtol, atol, err_msg=key)


@pytest.mark.parametrize("name", LEFT)
def test_other_scatters_stay_as_they_are(name, scattering):
    step = Executable(LEFT[name].export(), strict=True)
    assert step.audit.notes == [AS_SUM] and not count_scatters(step)


def test_other_platforms_have_the_module_as_it_was():
    step = Executable(CASES["a row on each device"][0].export(), strict=True)
    assert step.audit.notes == [AS_SUM] and not count_scatters(step)


SUM = """
func.func @main(%x: tensor<2x64x128xf32>) -> tensor<64x128xf32> {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %a = stablehlo.custom_call @Sharding(%x) {{
    mhlo.sharding = "{{devices=[2,4,1]<=[2,2,2]T(2,0,1)}}"
  }} : (tensor<2x64x128xf32>) -> tensor<2x64x128xf32>
  %b = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<2x64x128xf32>, tensor<f32>) -> tensor<64x128xf32>
  %c = stablehlo.custom_call @Sharding(%b) {{
    mhlo.sharding = "{{devices=[8,1]<={order}}}"
  }} : (tensor<64x128xf32>) -> tensor<64x128xf32>
  return %c : tensor<64x128xf32>
}}
"""


@pytest.mark.parametrize(("order", "scatters"), [("[8]", 1), ("[2,2,2]T(1,0,2)", 0)])
def test_rows_that_change_their_places_too_are_left(order, scatters):
    module = parse_stablehlo(SUM.format(order=order))
    row_scatters.scatter_rows(module, THREE)
    assert str(module).count(row_scatters.SCATTER) == scatters


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not here")
@pytest.mark.parametrize("target", ["tpu-v3:2x2", "tpu-v4:2x2x2", "tpu-v5e:2x4"])
def test_tpus_keep_scatters_of_rows(target, tmp_path):
    """Of one row on a core, which they made as sums, and of two, forward and backward."""
    rows = Rows(length=256, model=(256,), layers=2)
    kept, two = aot(tmp_path, rows.export(), replace(rows, batch=(4,)).export(), target=target)
    for row in (kept, two):
        assert row["collectives_match_plan"] and AS_SUM not in row["rules"], row["problems"]
        scatters = [one for one in row["collectives"] if one["kind"] == "ReduceScatter"]
        assert [one["made"] for one in scatters] == [4]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not here")
@pytest.mark.parametrize("target, scatters", [("tpu-v6e:2x4", True), ("tpu-v5p:2x2x2", False)])
def test_scatters_over_all_cores(target, scatters, tmp_path):
    """Of a weight's gradient whose shards are no whole tiles as the compiler lays them out."""
    weights = Weights(nm.Mesh(x=8), "batch:x, rest:x", batch=(8,), length=4096, model=(14336,))
    (row,) = aot(tmp_path, replace(weights, dtype="bfloat16").export(), target=target)
    assert row["collectives_match_plan"], row["problems"]
    assert (AS_SUM in row["rules"]) != scatters
    assert not [rule for rule in row["rules"] if "whole tiles" in rule]
