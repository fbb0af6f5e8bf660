"""Windows with a traced start along a split dimension: by each device's own rows, against NumPy."""

import numpy as np
import pytest

import namedmesh as nm
from tests.checks import uniform

S, B, M = nm.dims("seq=12 batch=4 model=3")
X, UPDATE = uniform(0, 4, 12, 3), uniform(1, 4, 5, 3)
LAYOUTS = [
    ("seq:a", nm.Mesh(a=4), "gspmd"),
    ("seq:a", nm.Mesh(a=8), "shardy"),
    ("seq:a, batch:b", nm.Mesh(a=4, b=2), "gspmd"),
    ("seq:a+b", nm.Mesh(a=3, b=2), "shardy"),
]


def run(function, update, start, layout, mesh, partitioner):
    specs = nm.spec([B, S, M]), nm.spec([B, S.resized(update.shape[1]), M]), nm.spec([], "int32")
    step = nm.compile(
        function, *specs, mesh=mesh, layout=layout, strict=True, partitioner=partitioner
    )
    return step(step.init(0), X, update, np.int32(start))[1]


@pytest.mark.parametrize(("layout", "mesh", "partitioner"), LAYOUTS)
@pytest.mark.parametrize(("size", "start"), [(1, 4), (5, 0), (5, 11), (8, 3)])
def test_slices_and_updates(size, start, layout, mesh, partitioner):
    update = np.resize(UPDATE, [4, size, 3])

    def function(x, update, start):
        y = nm.dynamic_slice(x, start, S, size)
        z = nm.dynamic_update(x, update, start, S)
        dx = nm.grad(nm.sum(nm.sin(y)), x)
        return y, dx, z, *nm.grad(nm.sum(nm.sin(z)), [x, update])

    y, dx, z, dz, du = run(function, update, start, layout, mesh, partitioner)
    first = min(start, 12 - size)
    inside = slice(first, first + size)
    np.testing.assert_array_equal(y, X[:, inside])
    slope = np.zeros_like(X)
    slope[:, inside] = np.cos(X[:, inside])
    np.testing.assert_allclose(dx, slope, rtol=1e-6)
    replaced, slope = X.copy(), np.cos(X)
    replaced[:, inside], slope[:, inside] = update, 0
    np.testing.assert_array_equal(z, replaced)
    np.testing.assert_allclose(dz, slope, rtol=1e-6)
    np.testing.assert_allclose(du, np.cos(update), rtol=1e-6)


def test_a_slice_sends_its_elements_and_an_update_nothing():
    def function(x, row, start):
        return nm.dynamic_slice(x, start, S, 1), nm.dynamic_update(x, row, start, S)

    specs = nm.spec([B, S, M]), nm.spec([B, S.resized(1), M]), nm.spec([], "int32")
    plan = nm.plan(nm.trace(function, *specs), nm.Mesh(a=4), "seq:a")
    assert [(one.kind, one.elements) for one in plan.collectives] == [("AllReduce", 4 * 3)]
