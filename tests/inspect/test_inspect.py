"""nm.inspect: any step of JAX as a plan is seen, against sums of the text and counts by hand."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import namedmesh as nm
from namedmesh.inspect.attribution import split_op_name
from namedmesh.jax_internals import partition_with
from tests.inspect import steps
from tests.report.page import read_page

FILE = pathlib.Path(steps.__file__)
LINES = {
    match[1]: number
    for number, line in enumerate(FILE.read_text().splitlines(), 1)
    if (match := re.search(r"# line: (\w+)", line))
}
F32 = 4  # bytes


@pytest.fixture(scope="module")
def lowered():
    return steps.train.lower(*steps.arguments(steps.make_mesh(data=2, model=4)))


@pytest.fixture(scope="module")
def compiled(lowered):
    return lowered.compile()


@pytest.fixture(scope="module")
def seen(compiled):
    return nm.inspect(compiled)


def test_every_collective_has_its_phase_axes_bytes_runs_and_line(seen):
    activations = F32 * steps.BATCH // 2 * steps.MODEL
    weights = F32 * steps.MODEL * steps.HIDDEN // 4
    expected = [
        # XLA adds up the gradients of a layer in its iteration of the loop.
        ("forward", ("model",), activations, steps.LAYERS, "wo", "mlp"),
        ("forward", ("data",), F32, 1, "loss", ""),
        ("backward", ("model",), activations, steps.LAYERS, "wi", "mlp"),
        ("backward", ("data",), weights, steps.LAYERS, "wi", "mlp"),
        ("backward", ("data",), weights, steps.LAYERS, "wo", "mlp"),
        ("backward", ("data",), F32 * steps.MODEL, 1, "loss", ""),
        ("update", ("model",), F32, 1, "norm", ""),
        ("update", ("model",), F32, 1, "norm", ""),
    ]
    found = [
        (one.phase, one.axes, one.bytes, one.times, one.source.line, one.scope)
        for one in seen.collectives
    ]
    assert sorted(found) == sorted((*row[:4], LINES[row[4]], row[5]) for row in expected)
    assert {one.kind for one in seen.collectives} == {"AllReduce"}
    assert {one.source.file for one in seen.collectives} == {str(FILE)}
    assert {one.function for one in seen.collectives} == {"layer", "loss", "train.<genexpr>"}
    assert seen.count("AllReduce", "forward") == steps.LAYERS + 1


def test_bytes_are_those_of_the_text(seen, compiled):
    """An independent count: the arrays that follow the name of each all-reduce, without loops."""
    size = 0
    for types in re.findall(r"= (.*) all-reduce(?:-start)?\(", compiled.as_text()):
        for numbers in re.findall(r"f32\[([\d,]*)\]", types):
            size += F32 * math.prod(int(one) for one in numbers.split(",") if one)
    assert sum(one.bytes for one in seen.collectives) == size


def test_arguments_memory_and_flops(seen, compiled):
    places = {one.tensor: one.place for one in seen.tensor_rows}
    assert places == {
        "params['wi']": "float32[3, 32, 64/model]",
        "params['wo']": "float32[3, 64/model, 32]",
        "params['bias']": "float32[32]",
        "x": "float32[16/data, 32]",
    }
    counted = compiled.memory_analysis()
    assert seen.memory["params"] + seen.memory["x"] == counted.argument_size_in_bytes
    assert seen.memory["temporaries"] == counted.temp_size_in_bytes
    # Two products of each layer forward, and two of each of them backward.
    assert seen.flops == 3 * 2 * steps.LAYERS * 2 * steps.BATCH * steps.MODEL * steps.HIDDEN


def test_all_that_jax_can_compile_is_the_same(seen, lowered, compiled, tmp_path):
    path = tmp_path / "step.txt"
    path.write_text(compiled.as_text())
    mesh = nm.Mesh(data=2, model=4)
    others = [
        nm.inspect(lowered),
        nm.inspect(compiled.as_text(), mesh=mesh),
        nm.inspect(path, mesh=mesh),
    ]
    for other in others:
        assert other.collectives == seen.collectives
        assert nm.diff(seen, other).collectives.equal == len(seen.collectives)


def test_stablehlo_is_compiled(seen, lowered):
    other = nm.inspect(lowered.as_text())
    assert other.mesh == seen.mesh
    assert other.total_wire_bytes() == seen.total_wire_bytes()


def test_text_without_names_has_the_axes_that_its_groups_tell(seen, compiled):
    text = re.sub(
        r"mesh\['data'=2,'model'=4\] \{'data'\}", "[4,2]<=[2,4]T(1,0)", compiled.as_text()
    )
    other = nm.inspect(text)
    assert other.mesh == nm.Mesh(axis0=2, axis1=4)
    names = {"axis0": "data", "axis1": "model"}
    axes = [tuple(names[axis] for axis in one.axes) for one in other.collectives]
    assert axes == [one.axes for one in seen.collectives]


def test_a_saved_step_is_compared_and_printed(seen, tmp_path):
    path = tmp_path / "step.json"
    seen.save(path)
    assert nm.diff(path, seen).same
    assert nm.load_plan(path).memory == sum(seen.memory.values())
    fewer = dataclasses.replace(seen, collectives=seen.collectives[1:])
    assert [one.source.line for one in nm.diff(fewer, seen).collectives.came] == [
        seen.collectives[0].source.line
    ]
    text = str(seen)
    assert f"steps.py:{LINES['wo']}: return x + hidden @ weights" in text
    assert "total backward: 10 AllReduce" in text
    assert "<table>" in seen._repr_html_()


def test_a_page_has_all_collectives_and_findings_and_loads_nothing(seen, tmp_path):
    path = tmp_path / "step.html"
    seen.report(path, target="h100:1x8")
    page, (data,) = read_page(path)
    assert all(one == "data:," for one in page.addresses)
    sent, names = data["collectives"], data["texts"]
    assert [names[i] for i in sent["kind"]] == [one.kind for one in seen.collectives]
    lines = [f"{data['files'][file]['name']}:{line}" for file, line in sent["line"]]
    assert lines == [str(one.source) for one in seen.collectives]
    # The same seconds, once by op and collective, and once by the schedule, which hides nothing.
    cost, timeline = data["cost"], seen.cost("h100:1x8")
    ops = zip(cost["ops"]["seconds"], cost["ops"]["times"], strict=True)
    assert sum(a * b for a, b in ops) == pytest.approx(timeline.compute_seconds)
    runs = zip(cost["collectives"], sent["times"], strict=True)
    assert sum(a * b for a, b in runs) == pytest.approx(timeline.collective_seconds)
    assert cost["memory"]["peak"] == sum(seen.memory.values())
    with pytest.raises(nm.NamedMeshError, match="is not a plan"):
        nm.report(seen.module, path)


def test_a_step_costs_what_its_products_and_collectives_take(seen):
    hardware, timeline = nm.Hardware.parse("h100:1x8"), seen.cost("h100:1x8")
    names = [one.name for one in seen.compiled]
    alone = [
        one for one, name in zip(seen.collectives, names, strict=True) if names.count(name) == 1
    ]
    sums = sum(one.times * hardware.network.seconds(one, seen.mesh, {}) for one in alone)
    own = [one for one in timeline.exposures if one.collective in alone]
    assert len(alone) == len(own) == 2
    assert sum(one.seconds for one in own) == pytest.approx(sums)
    assert timeline.seconds == pytest.approx(timeline.compute_seconds + timeline.exposed_seconds)
    assert seen.cost().seconds > timeline.seconds  # of CPU devices
    with pytest.raises(nm.NamedMeshError, match="devices"):
        seen.cost("h100:1x4")


def test_arguments_are_found_beside_others_that_are_not_read():
    mesh = steps.make_mesh(data=2, model=4)
    shardings = [NamedSharding(mesh, P(*axes)) for axes in (("data",), (None, "model"))]
    x = jax.ShapeDtypeStruct((16, 64), "float32", sharding=shardings[0])
    w = jax.ShapeDtypeStruct((64, 32), "float32", sharding=shardings[1])
    seen = nm.inspect(lambda unread, key, w: w * jax.random.uniform(key), x, jax.random.key(0), w)
    (key, row), (memory, *_) = seen.tensor_rows, seen.memory.items()
    assert (key.tensor, row.place, row.padding) == ("key", "float32[64, 32/model]", 0.0)
    assert memory == ("key", 8)


def test_shardings_are_a_layout_in_names(seen):
    sizes = {"batch": steps.BATCH, "model": steps.MODEL, "hidden": steps.HIDDEN}
    assert seen.find_layout(**sizes) == "batch:data, hidden:model"
    with pytest.raises(nm.NamedMeshError, match="two of the dimensions have one size"):
        seen.find_layout(batch=16, rows=16)


def test_arguments_that_are_gathered_have_their_names():
    mesh = steps.make_mesh(data=8)

    def scanned(params, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params)[0]

    def place(*sizes):
        sharding = NamedSharding(mesh, P(*[None] * (len(sizes) - 2), "data"))
        return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=sharding)

    seen = nm.inspect(scanned, place(4, 64, 64), place(64, 64))
    assert {(one.kind, one.tensor, one.times) for one in seen.collectives} == {
        ("AllGather", "params", 4)
    }


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
def test_axes_have_the_names_of_the_arguments_mesh_with_both_partitioners(partitioner):
    place = NamedSharding(steps.make_mesh(rows=2, columns=4), P(None, "columns"))
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=place)
    with partition_with(partitioner):
        seen = nm.inspect(jax.jit(lambda x: jnp.sum(x, axis=1)), x)
    assert [one.axes for one in seen.collectives] == [("columns",)]
    assert [one.place for one in seen.tensor_rows] == ["float32[64, 64/columns]"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("jit(step)/jvp()/while/body/closed_call/mlp/dot_general", ["mlp", "dot_general"]),
        ("jit(f)/transpose(jvp(Model))/Dense_0/dot_general", ["Model", "Dense_0", "dot_general"]),
        ("jit(f)/vmap(jvp(a))/checkpoint/rematted_computation/b/add", ["a", "b", "add"]),
        ("jit(step)/(jvp()/reduce_sum:transpose(jvp())/reduce_sum)", ["reduce_sum"]),
        ("jit(f)/jit(silu)/mul", ["mul"]),
        (
            "jit(f)/transpose(jvp(scan(layers)))/while/body/Linear/add",
            ["scan(layers)", "Linear", "add"],
        ),
    ],
)
def test_scopes_are_the_names_of_the_program(name, parts):
    assert split_op_name(name) == parts


def test_errors_name_what_is_wrong(compiled):
    with pytest.raises(nm.NamedMeshError, match="expected a step of JAX, not int"):
        nm.inspect(3)
    with pytest.raises(nm.NamedMeshError, match="compiled for 8 devices"):
        nm.inspect(compiled, mesh=nm.Mesh(data=4))
    with pytest.raises(nm.NamedMeshError, match="not Compiled with 1 arguments"):
        nm.inspect(compiled, 3)
    with pytest.raises(nm.NamedMeshError, match="neither HLO nor StableHLO"):
        nm.inspect("some\ntext")
    with pytest.raises(TypeError, match="unsupported operand"):  # the user's own, as it is
        nm.inspect(lambda x: x + None, jnp.ones(3))
    with pytest.raises(nm.NamedMeshError, match="not Compiled with 0 arguments for cpu:8"):
        nm.inspect(compiled, target="cpu:8")


def test_variables_of_flax_have_their_paths():
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")
    mesh = steps.make_mesh(data=2, model=4)

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(64, 64, use_bias=False, rngs=rngs)])

        def __call__(self, x):
            return self.layers[0](x)

    def train_step(model, optimizer, x):
        optimizer.update(model, nnx.grad(lambda model: jnp.mean(model(x) ** 2))(model))

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    x = jax.device_put(jnp.ones([16, 64]), NamedSharding(mesh, P("data")))
    seen = nm.inspect(nnx.jit(train_step), model, optimizer, x)
    plain = nm.inspect(train_step, model, optimizer, x)  # what it changes is not lost
    assert (plain.flops, plain.collectives) == (seen.flops, seen.collectives)
    forward = nm.inspect(model, x)
    assert (forward.name, forward.flops) == ("Model", 2 * 16 * 64 * 64 * 4)
    assert forward.tensor_rows[0].tensor == "model.layers[0].kernel"
    rows = {one.tensor: one.place for one in seen.tensor_rows}
    assert rows["model.layers[0].kernel"] == "float32[64, 64]"
    assert rows["optimizer.opt_state[0].trace.layers[0].kernel"] == "float32[64, 64]"
    assert rows["x"] == "float32[16/data, 64]"


def test_what_is_no_array_is_constant():
    """As jitted functions of Equinox see it; models of it need not be."""
    model = {"w": jax.ShapeDtypeStruct((64, 64), jnp.float32), "activation": jnp.tanh}
    train = lambda model, x: {**model, "w": model["w"] - model["activation"](x @ model["w"]).sum()}
    seen = nm.inspect(train, model, jnp.ones([16, 64]))
    assert seen.flops == 2 * 16 * 64 * 64
    assert [one.tensor for one in seen.tensor_rows] == ["model['w']", "x"]


def test_modules_of_equinox_are_taken_as_they_are():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(64, 64, 256, 2, key=jax.random.key(0))
    mesh = steps.make_mesh(data=2, model=4)

    def describe(one):
        if not eqx.is_array(one):
            return one
        spec = P(*("model" if size == 256 else None for size in one.shape[:1]))
        return jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=NamedSharding(mesh, spec))

    def train_step(model, x):
        gradients = eqx.filter_grad(lambda model: jnp.mean(jax.vmap(model)(x) ** 2))(model)
        return eqx.apply_updates(model, gradients)

    x, described = jnp.ones([32, 64]), jax.tree.map(describe, model)
    found = [
        (seen.flops, [one.place for one in seen.tensor_rows])
        for step in (train_step, eqx.filter_jit(train_step))
        for seen in [nm.inspect(step, described, x)]
    ]
    assert found[0] == found[1]
    assert found[0][1][0] == "float32[256/model, 64]"
    assert nm.inspect(model, x[0]).name == "MLP"
