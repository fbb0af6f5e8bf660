"""Tracing from arrays that are examples of inputs."""

import numpy as np
import pytest

import namedmesh as nm


def test_examples_in_place_of_specs():
    """Dimensions and an array are as good as a spec; wide numbers become those of devices."""
    B, M = nm.dims("batch=2 model=3")
    x, i = np.arange(6.0).reshape(2, 3), np.array([1, 2])

    def double(x, rest):
        return {"x": 2 * x, "i": 2 * rest["i"]}

    program = nm.trace(double, ([B, M], x), {"i": ([B], i)})
    assert {name: (one.dtype, str(one.shape)) for name, one in program.inputs.items()} == {
        "x": ("float32", "[batch=2, model=3]"),
        "i": ("int32", "[batch=2]"),
    }
    step = nm.compile(lambda x: 2 * x, ([B, M], x), mesh=nm.Mesh(a=2), layout="batch:a")
    _, found = step(step.init(0), x=x.astype("float32"))
    np.testing.assert_array_equal(found, 2 * x)
    with pytest.raises(nm.NamedMeshError, match="no example of"):
        nm.trace(double, ([M, B], x), {"i": ([B], i)})
