"""Functions of jax as named ops: values, derivatives, layouts, Artifacts and mistakes."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import pallas as pl

import namedmesh as nm
from tests.checks import MESH, uniform

B, M, H = nm.dims("batch=8 model=4 hidden=6")


def layer(x, w):
    """A product, a loop and a nested function, in jax."""
    h = jax.jit(jnp.tanh)(x @ w)
    return jax.lax.fori_loop(0, 3, lambda i, h: jnp.sin(h) + 0.1 * i, h), jnp.argmax(h, -1)


def named(x, w):
    specs = [nm.spec([B, H]), nm.spec([B], "int32")]
    h, index = nm.call_jax(layer, x, w, result=specs, batch=[B])
    dx, dw = nm.grad(nm.sum(nm.square(h)), [x, w])
    return h, index, dx, dw


def expected(x, w):
    h, index = layer(x, w)
    dx, dw = jax.grad(lambda x, w: jnp.sum(layer(x, w)[0] ** 2), (0, 1))(x, w)
    return h, index, dx, dw


SPECS = nm.spec([B, M]), nm.spec([M, H])
ARRAYS = uniform(0, 8, 4), uniform(1, 4, 6)


def assert_all_close(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize(
    "layout", ["batch:b", "batch:a+b", "model:b, hidden:a", "batch:a, model:b"]
)
def test_values_and_derivatives_are_those_of_jax(layout, partitioner):
    step = nm.compile(named, *SPECS, mesh=MESH, layout=layout, strict=True, partitioner=partitioner)
    _, found = step(step.init(0), *ARRAYS)
    assert_all_close(found, expected(*ARRAYS))


def test_evaluation_calls_the_function_itself():
    _, found = nm.trace(named, *SPECS).evaluate({}, x=ARRAYS[0], w=ARRAYS[1])
    assert_all_close(found, expected(*ARRAYS))


def test_what_lacks_the_batch_gets_one_sum_over_devices():
    plan = nm.plan(nm.trace(named, *SPECS), nm.Mesh(data=8), "batch:data")
    sums = [one for one in plan.collectives if one.elements == 4 * 6]
    assert [one.kind for one in sums] == ["AllReduce"]
    assert plan.count("AllGather") == 0


@pytest.mark.parametrize("call, tanh", [(nm.call_jax, jnp.tanh), (nm.call_tf, tf.tanh)])
def test_derivatives_of_derivatives(call, tanh):
    def twice(x, w):
        def slope(x):
            y = call(lambda x, w: tanh(x @ w), x, w, result=nm.spec([B, H]), batch=[B])
            return nm.grad(nm.sum(y * y), x)

        return nm.grad(nm.sum(nm.sin(slope(x))), [x, w])

    def twice_jax(x, w):
        slope = jax.grad(lambda x, w: jnp.sum(jnp.tanh(x @ w) ** 2))
        return jax.grad(lambda x, w: jnp.sum(jnp.sin(slope(x, w))), (0, 1))(x, w)

    step = nm.compile(twice, *SPECS, mesh=MESH, layout="batch:b", strict=True)
    _, found = step(step.init(0), *ARRAYS)
    assert_all_close(found, twice_jax(*ARRAYS))


def test_an_artifact_carries_the_function(tmp_path):
    program = nm.trace(
        lambda x: nm.call_jax(jnp.linalg.cholesky, x, result=nm.spec([M, H])),
        nm.spec([M, H := nm.Dimension("hidden", 4)]),
    )
    path = tmp_path / "step.nm"
    nm.export(program, mesh=nm.Mesh(data=1), layout="").save(path)
    step = nm.runtime.load(path)
    square = uniform(0, 4, 4)
    square = square @ square.T + 4 * np.eye(4, dtype=np.float32)
    _, found = step(step.init(0), square)
    np.testing.assert_allclose(found, np.linalg.cholesky(square), rtol=1e-4, atol=1e-5)


def double(x):
    """A Pallas kernel; CPUs run it only as an interpreter does."""

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)(x)


def test_pallas_kernels_run_on_each_devices_shard():
    def function(x):
        return nm.call_jax(double, x, result=nm.spec([B, M]), batch=[B])

    step = nm.compile(function, nm.spec([B, M]), mesh=MESH, layout="batch:b", strict=True)
    _, found = step(step.init(0), ARRAYS[0])
    np.testing.assert_array_equal(found, ARRAYS[0] * 2)


def test_a_platform_without_code_says_why():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    def compiled(x):
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    def function(x):
        return nm.call_jax(compiled, x, result=nm.spec([B, M]))

    with pytest.raises(nm.NamedMeshError, match=r"(?s)compiled has no code for cpu.*interpret"):
        nm.compile(function, nm.spec([B, M]), mesh=nm.Mesh(data=1), layout="")


@pytest.mark.parametrize(
    ("function", "result", "batch", "message"),
    [
        (jnp.flip, nm.spec([B, H]), [], r"makes float32\[8, 4\], not float32\[batch=8, hidden=6\]"),
        (jnp.flip, [nm.spec([B, M])] * 2, [], r"makes float32\[8, 4\], not float32.*, float32"),
        (jnp.linalg.inv, nm.spec([B, M]), [], "inv raised ValueError"),
        (jnp.sum, nm.spec([]), [B], "a result lacks the batch dimension batch"),
        (jnp.flip, nm.spec([B, M]), [H], "no tensor has the batch dimension hidden"),
        (jnp.flip, "x", [], "is not a spec"),
        (jnp.flip, [], [], "is not a spec"),
    ],
)
def test_mistakes_are_named_where_it_is_called(function, result, batch, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(lambda x: nm.call_jax(function, x, result=result, batch=batch), nm.spec([B, M]))


def test_vmap_maps_the_function_too():
    """Given the whole batch, a function whose result has no dimensions would see all of it."""

    def largest(x):
        return nm.vmap(lambda row: nm.call_jax(jnp.max, row, result=nm.spec([])), over=B)(x)

    def both(x):
        y = largest(x)
        return y, nm.grad(nm.sum(y * y), x)

    step = nm.compile(both, nm.spec([B, M]), mesh=nm.Mesh(data=8), layout="batch:data", strict=True)
    _, (y, slope) = step(step.init(0), ARRAYS[0])
    np.testing.assert_array_equal(y, ARRAYS[0].max(1))
    largest_alone = ARRAYS[0] == ARRAYS[0].max(1, keepdims=True)
    np.testing.assert_allclose(slope, np.where(largest_alone, 2 * ARRAYS[0], 0), rtol=1e-6)
    assert step.plan.collectives == ()


def test_lowering_a_function_leaves_virtual_devices_to_the_mesh():
    code = """
import namedmesh as nm, jax.numpy as jnp, numpy as np
B, = nm.dims("batch=4")
f = lambda x: nm.call_jax(jnp.sin, x, result=nm.spec([B]), batch=[B])
step = nm.compile(f, nm.spec([B]), mesh=nm.Mesh(d=4), layout="batch:d")
print(step(step.init(0), np.zeros(4, np.float32))[1])
"""
    environment = {name: text for name, text in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.stdout.strip() == "[0. 0. 0. 0.]", done.stderr


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_constants_of_a_function_beside_a_loop(partitioner):
    """XLA merged them with the loop's first values, which have another sharding, and aborted."""
    rows, columns = nm.dims("rows=10 columns=16")
    both = [nm.spec([rows, columns])] * 2

    def step(x):
        turn = lambda carry, row: (nm.tanh(carry + row), nm.reverse(carry, columns))
        _, turned = nm.scan(turn, nm.zeros([columns]), x, over=rows)
        square, zeros = nm.call_jax(lambda x: (x * x, jnp.zeros_like(x)), turned, result=both)
        return square + nm.cos(zeros) * x

    program = nm.trace(step, x=nm.spec([rows, columns]))
    plan = nm.plan(program, nm.Mesh(x=2, y=2, z=2), "columns:z+y")
    x = np.random.default_rng(0).normal(size=(10, 16)).astype(np.float32)
    got = nm.Step(plan, strict=True, partitioner=partitioner)(None, x=x)[1]
    np.testing.assert_allclose(got, program.evaluate({}, x=x)[1], rtol=1e-5, atol=1e-5)
