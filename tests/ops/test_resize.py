"""Resizing against jax, under layouts that split space."""

from typing import Any

import jax
import numpy as np
import pytest

import namedmesh as nm
from tests.checks import assert_near, assert_same, uniform

LAYOUTS = {
    "rows and columns": ("rows:a, columns:b", nm.Mesh(a=2, b=4)),
    "batch and rows": ("batch:b, rows:a", nm.Mesh(a=3, b=2)),
}
SIZES = {
    "doubled and halved": ((16, 16), (32, 8)),
    "no common divisor": ((13, 29), (31, 12)),
    "far": ((32, 5), (5, 32)),
}


def dims(sizes):
    return nm.dims(f"batch=2 rows={sizes[0]} columns={sizes[1]} model=3")


def resizing(method, before, after):
    """A function of names, and the same of jax: the result, and the derivative of its cubes."""
    _, R, C, _ = dims(before)
    options: Any = {"method": method.split(",")[0], "antialias": method != "linear, not smooth"}

    def named(x):
        y = nm.resize(x, {R: after[0], C: after[1]}, **options)
        return {"y": y, "dx": nm.grad(nm.sum(y * y * y), x)}

    def by_jax(x):
        resize = lambda x: jax.image.resize(x, (2, *after, 3), **options)
        with jax.enable_x64(True):  # jax rounds positions to the dtype of x
            wide = x.astype(np.float64)
            return {"y": resize(wide), "dx": jax.grad(lambda x: (resize(x) ** 3).sum())(wide)}

    return named, by_jax


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("method", ["linear", "linear, not smooth", "nearest"])
def test_equal_to_jax(method, sizes):
    before, after = SIZES[sizes]
    named, by_jax = resizing(method, before, after)
    x = uniform(1, 2, *before, 3)
    assert_near(nm.evaluate(named, x=([*dims(before)], x)), by_jax(x))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_equal_to_jax_where_space_is_split(method, sizes, layout):
    before, after = SIZES[sizes]
    named, by_jax = resizing(method, before, after)
    places, mesh = LAYOUTS[layout]
    x = uniform(1, 2, *before, 3)
    step = nm.compile(named, nm.spec([*dims(before)]), mesh=mesh, layout=places, strict=True)
    assert_near(step(step.init(0), x=x)[1], by_jax(x))


def test_second_derivatives():
    S = nm.Dimension("seq", 9)

    def twice(x):
        first = nm.grad(nm.sum(nm.square(nm.resize(x, {S: 14})) * 0.5), x)
        return nm.grad(nm.sum(first * x), x)

    matrix = np.asarray(jax.image.resize(np.eye(9, dtype=np.float32), (14, 9), "linear"))
    x = uniform(2, 9)
    assert_same({"ddx": nm.evaluate(twice, x=([S], x))}, {"ddx": 2 * matrix.T @ matrix @ x})


@pytest.mark.parametrize("dtype", ["int32", "bool", "bfloat16"])
def test_the_nearest_of_any_dtype(dtype):
    (S,) = nm.dims("seq=10")
    x = np.arange(10) % 3
    step = nm.compile(
        lambda x: nm.cast(nm.resize(nm.cast(x, dtype), {S: 23}, "nearest"), "int32"),
        nm.spec([S], "int32"), mesh=nm.Mesh(a=4), layout="seq:a", strict=True,
    )  # fmt: skip
    kept = (x != 0).astype(np.int32) if dtype == "bool" else x
    wanted = [kept[int((o + 0.5) * 10 / 23)] for o in range(23)]
    assert_same({"y": step(step.init(0), x=x.astype(np.int32))[1]}, {"y": np.array(wanted)})


def test_narrow_numbers_are_averaged_in_float32():
    (S,) = nm.dims("seq=64")
    x = np.linspace(0.5, 1.5, 64).astype(np.float32)
    shrink = lambda x: nm.cast(nm.resize(nm.cast(x, "bfloat16"), {S: 2}), "float32")
    wanted = jax.image.resize(x.astype(jax.numpy.bfloat16).astype(np.float32), (2,), "linear")
    found = nm.evaluate(shrink, x=([S], x))
    np.testing.assert_array_equal(found, wanted.astype(jax.numpy.bfloat16).astype(np.float32))


def sent(resize, dims, mesh=nm.Mesh(a=4), layout="rows:a"):
    plan = nm.plan(nm.trace(resize, nm.spec(dims)), mesh, layout)
    return [(one.kind, one.elements, one.phase) for one in plan.collectives]


def test_what_neighbours_send():
    """Doubled, a shard reaches half an element over its edges; copies and means of two, none."""
    R, C = nm.dims("rows=16 columns=6")
    row = ("CollectivePermute", 6, "forward")
    assert sent(lambda x: nm.resize(x, {R: 32}), [R, C]) == [row, row]
    assert sent(lambda x: nm.resize(x, {R: 32}, "nearest"), [R, C]) == []
    assert sent(lambda x: nm.resize(x, {R: 8}, "nearest"), [R, C]) == []
    assert sent(lambda x: nm.resize(x, {R: 8}), [R, C]) == [row, row]
    assert sent(lambda x: nm.resize(x, {R: 8}, antialias=False), [R, C]) == []
    assert sent(lambda x: nm.resize(x, {C: 8}), [R, C]) == []


def test_the_derivative_sends_as_much():
    R, C = nm.dims("rows=16 columns=6")
    doubled = lambda x: nm.grad(nm.sum(nm.square(nm.resize(x, {R: 32}))), x)
    row, back = ("CollectivePermute", 6, "forward"), ("CollectivePermute", 6, "backward")
    assert sent(doubled, [R, C]) == [row, row, back, back]


R, M = nm.dims("rows=4 model=2")
NOTHING: Any = {}
MISTAKES = {
    "does not map dimensions": lambda x: nm.resize(x, NOTHING),
    "rows=4 cannot have 0 elements": lambda x: nm.resize(x, {R: 0}),
    "method of resizing": lambda x: nm.resize(x, {R: 8}, "lineal"),
    "has no dimension": lambda x: nm.resize(x, {nm.Dimension("seq", 4): 8}),
    "too few divisors in common": lambda x: nm.resize(x, {R: 2**29 + 1}),
    "resize": lambda x: nm.resize(nm.cast(x, "int32"), {R: 8}),
}


@pytest.mark.parametrize("problem", MISTAKES)
def test_mistakes_are_named(problem):
    with pytest.raises(nm.NamedMeshError, match=problem):
        nm.trace(MISTAKES[problem], nm.spec([R, M]))
