"""Programs of many dimensions, and of names in other alphabets."""

import numpy as np
import pytest

import namedmesh as nm

DIMS = nm.dims(" ".join(f"d{i}=2" for i in range(9)))
X = np.random.default_rng(0).permutation(512).astype(np.float32).reshape((2,) * 9)
OPS = {
    "max": (lambda x: nm.max(x, over=[DIMS[2], DIMS[7]]), lambda x: x.max((2, 7))),
    "sort": (lambda x: nm.sort(x, DIMS[4]), lambda x: np.sort(x, 4)),
    "softmax": (
        lambda x: nm.softmax(x, over=[DIMS[0], DIMS[5]]),
        lambda x: (
            np.exp(x - x.max((0, 5), keepdims=True))
            / np.exp(x - x.max((0, 5), keepdims=True)).sum((0, 5), keepdims=True)
        ),
    ),
    "slice": (lambda x: nm.slice(x, DIMS[3], 1, 1), lambda x: x[:, :, :, 1:2]),
    "reverse": (lambda x: nm.reverse(x, DIMS[3]), lambda x: np.flip(x, 3)),
    "where": (lambda x: nm.where(x > nm.mean(x), x, 0.0), lambda x: np.where(x > x.mean(), x, 0)),
    "gather": (
        lambda x: nm.gather(x, nm.argmax(x, DIMS[3]), DIMS[3]),
        lambda x: np.take_along_axis(x, x.argmax(3, keepdims=True), 3).squeeze(3),
    ),
    "gradient": (
        lambda x: nm.grad(nm.sum(nm.square(nm.max(x, over=DIMS[6]))), x),
        lambda x: np.where(x == x.max(6, keepdims=True), 2 * x, 0),
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_nine_dimensions_are_evaluated(name):
    named, reference = OPS[name]
    np.testing.assert_allclose(nm.evaluate(named, x=(DIMS, X)), reference(X), rtol=1e-5, atol=1e-6)


def test_names_in_other_alphabets_are_compiled():
    size = nm.Dimension("größe", 4)

    def program(ξ):
        with nm.scope("кот"):
            weight = nm.param("重み", [size], init=nm.constant_init(2.0))
        return {"总和": nm.sum(nm.sort(ξ, size) * weight)}

    step = nm.compile(program, mesh=nm.Mesh(b=4), layout="größe:b", strict=True, ξ=nm.spec([size]))
    _, results = step(step.init(0), ξ=np.arange(4, dtype=np.float32))
    assert float(results["总和"]) == 12.0


def test_a_bfloat16_scalar_is_evaluated():
    assert float(nm.evaluate(lambda: nm.full([], 1.5, "bfloat16"))) == 1.5


def test_a_long_range_of_16_bits():
    N = nm.Dimension("n", 1000)
    found = nm.evaluate(lambda: nm.range(N, "bfloat16"))
    np.testing.assert_allclose(np.asarray(found, np.float32), np.arange(1000), rtol=2**-8)


def test_a_range_beyond_its_dtype_is_an_error():
    with pytest.raises(nm.NamedMeshError, match="range: 999 does not fit int8"):
        nm.trace(lambda: nm.range(nm.Dimension("n", 1000), "int8"))
