"""float64 and int64 where jax is told to have them, and an error where it is not."""

import jax
import numpy as np
import pytest

import namedmesh as nm

B, R, C = nm.dims("batch=8 row=16 column=8")
RNG = np.random.default_rng(0)
X, WHOLE = RNG.normal(size=(8, 16)), RNG.integers(0, 2**40, (8, 16))


def step(x, i):
    w = nm.param("w", [R, C], nm.normal_init(1.0), dtype="float64")
    y = nm.einsum([x, w], [B, C])
    loss = nm.mean(nm.square(nm.sin(y)))
    nm.assign(w, w - nm.grad(loss, w) * 0.1)
    return loss, nm.sum(i * i, R), nm.softmax(y, C), nm.sort(y, C), nm.max(i, B), nm.cumsum(i, R)


PROGRAM = nm.trace(step, nm.spec([B, R], "float64"), nm.spec([B, R], "int64"))


@pytest.fixture
def wide():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("layout", ["batch:data, row:model", "batch:model, column:data"])
def test_64_bits_are_kept_under_layouts(wide, layout):
    compiled = nm.compile(PROGRAM, mesh=nm.Mesh(data=2, model=4), layout=layout, strict=True)
    first = compiled.init(0)
    before = {"w": np.asarray(first["w"])}
    state, found = compiled(first, X, WHOLE)
    after, expected = PROGRAM.evaluate(before, x=X, i=WHOLE)
    pairs = [*zip(found, expected, strict=True), (state["w"], after["w"])]
    for one, other in ((np.asarray(a), np.asarray(b)) for a, b in pairs):
        assert one.dtype == other.dtype and one.dtype.itemsize == 8
        np.testing.assert_allclose(one, other, rtol=1e-13)


def test_jax_in_32_bits_is_told_of_before_anything_is_compiled():
    with pytest.raises(nm.NamedMeshError, match=r"tensor x is float64, and jax is set to 32 bits"):
        nm.compile(PROGRAM, mesh=nm.Mesh(data=2), layout="batch:data")
