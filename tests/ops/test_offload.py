"""Activations that wait in the host's memory: planned bytes, results, and what compilers make."""

import importlib.util
import os
import re

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.aot import compilation, compile_for
from namedmesh.jax_internals import find_gpu_compiler
from tests import checks
from tests.checks import uniform

B, M, H, L = nm.dims("batch=512 model=32 hidden=48 layer=4")
MESH, LAYOUT = nm.Mesh(data=4, tensor=2), "batch:data, hidden:tensor"
TARGETS = [
    pytest.param(target, marks=pytest.mark.skipif(absent, reason="the compiler is not here"))
    for target, absent in {
        "h100:1x8": find_gpu_compiler() is None,
        "tpu-v5e:2x4": not os.environ.get("TPU_LIBRARY_PATH")
        and importlib.util.find_spec("libtpu") is None,
    }.items()
]


def make_step(offload, **options):
    def layer(x, _=None):
        wi, wo = nm.param("wi", [M, H]), nm.param("wo", [H, M])
        h = nm.einsum([x, wi], [B, H])
        return x + nm.einsum([nm.tanh(h), wo], [B, M]), None

    def step(x):
        y = x * nm.param("scale", [M], nm.constant_init(1.0))
        if "policy" in options:
            y = nm.checkpoint(lambda x: layer(x)[0], offload=offload, **options)(y)
        else:
            y, _ = nm.scan(layer, y, over=L, stack=True, offload=offload, **options)
        loss = nm.mean(nm.square(y))
        for name, gradient in nm.grad(loss).items():
            nm.assign(nm.parameters()[name], nm.parameters()[name] - gradient)
        return loss

    return nm.trace(step, x=nm.spec([B, M]))


CARRIES, HIDDEN = 4 * 128 * 32 * 4, 4 * 128 * 24 * 4  # of four layers, on one device


@pytest.mark.parametrize(
    "options, size",
    [
        ({"remat": "full"}, CARRIES),
        ({"remat": ["h"]}, CARRIES + HIDDEN),
        ({"remat": ["h"], "unroll": True}, CARRIES + HIDDEN),
        ({"policy": ["h"]}, HIDDEN // 4),
    ],
)
def test_what_is_stored_waits_in_the_hosts_memory(options, size):
    there, here = make_step(True, **options), make_step(False, **options)
    plan, plain = nm.plan(there, MESH, LAYOUT), nm.plan(here, MESH, LAYOUT)
    assert (plan.offloaded, plain.offloaded) == (size, 0)
    assert plan.activation_bytes == 0
    assert "per device wait in the host's memory" in str(plan)
    assert plan.total_bytes() == plain.total_bytes()
    step = nm.compile(there, mesh=MESH, layout=LAYOUT, strict=True)
    state, x = step.init(seed=0), uniform(0, 512, 32)
    weights = {name: np.asarray(value) for name, value in state.items()}
    after, loss = step(state, x)
    expected, other = here.evaluate(weights, x=x)
    np.testing.assert_allclose(loss, other, rtol=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(after[name], value, atol=1e-6)


def make_nested(offload, order):
    """Layers and checkpoints of them in a loop, with the gradient inside and outside of it."""
    T = nm.Dimension("time", 3)

    def layer(x):
        h = nm.einsum([x, nm.param("wi", [M, H])], [B, H])
        return x + nm.einsum([nm.tanh(h), nm.param("wo", [H, M])], [B, M])

    def layers(x):
        body = nm.checkpoint(layer, ["h"], offload) if order == "in layers" else layer
        y, _ = nm.scan(
            lambda x, _: (body(x), None), x, over=L, stack=True,
            remat="none" if order == "in layers" else "full", offload=offload,
        )  # fmt: skip
        return nm.mean(nm.square(y))

    def loss_of(x):
        return nm.checkpoint(layers)(x) if order == "around" else layers(x)

    def step(x):
        if order == "in layers":
            return nm.grad(loss_of(x))

        def micro(total, row):
            grads = nm.grad(loss_of(x * row))
            return {name: total[name] + grads[name] for name in total}, None

        zeros = {"wi": nm.zeros([L, M, H]), "wo": nm.zeros([L, H, M])}
        return nm.scan(micro, zeros, nm.range(T, "float32"), over=T)[0]

    return nm.trace(step, x=nm.spec([B, M]))


@pytest.mark.parametrize(
    "order, size", [("inside", 3 * CARRIES), ("around", 3 * CARRIES), ("in layers", None)]
)
def test_loops_and_checkpoints_in_each_other(order, size):
    there, here = make_nested(True, order), make_nested(False, order)
    plan, plain = nm.plan(there, MESH, LAYOUT), nm.plan(here, MESH, LAYOUT)
    assert plan.offloaded == (CARRIES + HIDDEN if size is None else size)
    assert plan.activation_bytes == 0
    memory, least = (nm.cost(one, "h100").memory.peak_bytes for one in (plain, plan))
    assert memory - least >= CARRIES // 2  # the last carry is there when it is read
    checks.assert_sharded_same(
        there, {}, {"x": uniform(0, 512, 32)}, LAYOUT, mesh=MESH, params="model:data"
    )


def test_what_waits_there_takes_no_memory_of_the_device():
    there, here = make_step(True, remat="full"), make_step(False, remat="full")
    memory = [nm.cost(nm.plan(one, MESH, LAYOUT), "h100").memory for one in (here, there)]
    assert memory[0].peak_bytes - memory[1].peak_bytes >= CARRIES // 2
    options = {"pin": "batch:data", "axes": 1, "progress": False, "processes": 1}
    found = nm.search(there, 8, "h100", memory=memory[0].peak_bytes * 0.99, **options)
    assert found.best.memory_bytes < memory[0].peak_bytes


def test_derivatives_of_derivatives_pass_through():
    x = uniform(0, 3, 4)
    T, N = nm.dims("time=3 model=4")

    def second(offload):
        def slopes(x):
            body = lambda h, row: (nm.sin(h * row), None)
            y, _ = nm.scan(body, nm.ones([N]), x, over=T, offload=offload)
            return nm.grad(nm.sum(nm.square(nm.grad(nm.sum(y), x))), x)

        return nm.evaluate(slopes, x=([T, N], x))

    np.testing.assert_allclose(second(True), second(False), rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_compilers_keep_the_planned_bytes_there(target, monkeypatch):
    sizes, compile_step = [], compilation._compile

    def watch(*arguments):
        compiled = compile_step(*arguments)
        sizes.append(getattr(compiled.memory_analysis(), "host_temp_size_in_bytes", None))
        return compiled

    monkeypatch.setattr(compilation, "_compile", watch)
    program = make_step(True, remat="full")
    for partitioner in ("gspmd", "shardy"):
        report = compile_for(nm.export(program, MESH, LAYOUT), target, partitioner=partitioner)
        assert report.audit is not None and report.audit.exact, report.audit
    assert sizes == [CARRIES] * 2
    assert re.search(r"activations that loops keep, as planned +0 B", str(report))


def test_a_wrong_offload_is_explained():
    with pytest.raises(nm.NamedMeshError, match="offload"):
        make_step("yes", remat="full")
