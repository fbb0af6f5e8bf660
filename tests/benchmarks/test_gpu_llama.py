"""Decoder-only train steps by hand in JAX and PyTorch: the model that examples/llm trains."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from benchmarks import llm_clusters
from benchmarks.gpu import export, jax_llama
from benchmarks.gpu.__main__ import choose_rows
from benchmarks.gpu.llama import LLAMAS, count_active, count_flops, describe_weights
from benchmarks.gpu.models import make_batch
from examples.llm.architecture import Rotary
from examples.llm.sizes import published
from namedmesh.runtime import Executable

TINY = {
    name: dataclasses.replace(model, dtype="float32")
    for name, model in LLAMAS.items()
    if name.startswith("tiny")
}
STEPS = 3
METRICS = ("loss", "grad_norm")


@pytest.fixture(scope="module", params=TINY)
def trained(request):
    """Return a model, its first weights by name, and the metrics of its steps in namedmesh."""
    model = TINY[request.param]
    step = Executable(nm.export(export.trace(model), nm.Mesh(all=1), ""))
    state = step.init(seed=0)
    first, rows = {name: np.asarray(state[name]) for name in step.variables}, []
    for _ in range(STEPS):
        state, metrics = step(state, **make_batch(model))
        rows.append([float(metrics[name]) for name in METRICS])
    return model, first, rows


def split_layers(model, arrays, convert):
    """Return weights as systems by hand have them, from those of namedmesh."""
    names = describe_weights(model)

    def reshape(array, one):
        assert array.size == np.prod(one.shape)
        return convert(array.reshape(one.shape))

    layers = [
        {name: reshape(arrays[name][i], one) for name, one in layer.items()}
        for i, layer in enumerate(names.pop("layers"))
    ]
    return {"layers": layers, **{name: reshape(arrays[name], one) for name, one in names.items()}}


def test_jax_takes_the_same_steps(trained):
    model, first, expected = trained
    _, step = jax_llama.make_step(model)
    step, rows = jax.jit(step), []
    weights = split_layers(model, first, jnp.asarray)
    state = jax_llama.init_adam(weights)
    for i in range(STEPS):
        weights, state, metrics = step(weights, state, make_batch(model), i)
        rows.append([float(metrics[name]) for name in METRICS])
    np.testing.assert_allclose(rows, expected, rtol=1e-4)


@pytest.mark.slow
def test_torch_takes_the_same_steps(trained):
    torch = pytest.importorskip("torch")
    from benchmarks.gpu import torch_llama

    model, first, expected = trained
    convert = lambda array: torch.from_numpy(array.copy()).requires_grad_()
    weights = split_layers(model, first, convert)
    batch = [torch.from_numpy(one).long() for one in make_batch(model).values()]
    loss = torch_llama.make_loss(model, torch.device("cpu"))
    loss = torch.compile(loss, backend="aot_eager", fullgraph=True)
    step, rows = torch_llama.make_step(torch_llama.list_leaves(weights)), []
    for _ in range(STEPS):
        metrics = step(lambda: loss(weights, *batch))
        rows.append([float(metrics[name]) for name in METRICS])
    np.testing.assert_allclose(rows, expected, rtol=1e-4)


def test_the_first_weights_have_the_same_distribution(trained):
    model, first, _ = trained
    drawn = jax_llama.init_weights(model)
    for name, array in split_layers(model, first, lambda array: array)["layers"][0].items():
        ours, other = array.std(), np.asarray(drawn["layers"][0][name]).std()
        assert ours == pytest.approx(other, rel=0.15), name


def test_sizes_are_those_of_the_published_model():
    ours, expected = export.make_settings(LLAMAS["llama"]).architecture, published("llama-3.2-1b")
    scaling = dict(expected.rotary.scaling)
    scaling.pop("max_position_embeddings")  # which this scaling does not read
    assert ours == expected.but(rotary=Rotary(expected.rotary.base, scaling))


@pytest.mark.parametrize("name", LLAMAS)
def test_flops_are_those_of_published_mfus(name):
    model = LLAMAS[name]
    settings = export.make_settings(model)
    program = export.trace(model)
    _, active = llm_clusters.count_weights(program, settings.architecture)
    scales = [one.shape.elements for name, one in program.parameters.items() if "scale" in name]
    active -= sum(scales)  # published counts have them, a product does not
    assert count_active(model) == active
    flops = llm_clusters.count_flops(settings.architecture, active, model.rows, model.length)
    assert count_flops(model) == pytest.approx(flops, rel=1e-12)


def test_rows_are_of_the_fastest_variants():
    times = {"namedmesh": 11.0, "jax-cudnn": 10.0, "torch-cudnn": 8.0, "torch-flash": 20.0}
    runs = [{"model": "llama", "system": name, "ms": ms} for name, ms in times.items()]
    rows = {row["system"]: row for row in choose_rows(runs)}
    assert {name: row["variant"] for name, row in rows.items()} == {
        "jax": "jax-cudnn",
        "torch": "torch-cudnn",
        "namedmesh": "namedmesh",
    }
    ratios = [rows["namedmesh"][f"ratio_to_{name}"] for name in ("jax", "torch", "best")]
    assert ratios == [11 / 10, 11 / 8, 11 / 8]


@pytest.mark.slow
@pytest.mark.parametrize("system", ["namedmesh", "jax-plain"])
def test_a_process_measures_a_model(system, tmp_path):
    nm.export(export.trace(LLAMAS["tiny_llama"]), nm.Mesh(all=1), "").save(
        tmp_path / "tiny_llama.nmesh"
    )
    command = ["-m", "benchmarks.gpu.measure", system, "tiny_llama", str(tmp_path)]
    done = subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE)
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["first_loss"] > row["last_loss"] > 0
    assert row["mfu"] / row["mfu_causal"] == pytest.approx(row["flops"] / row["flops_causal"])
    assert (tmp_path / "cache" / "jax").is_dir()
