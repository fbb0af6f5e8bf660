import ml_dtypes
import numpy as np
import pytest

import namedmesh as nm
from tests.checks import (
    Case,
    assert_same,
    assert_sharded_same,
    evaluated,
    expected_of,
    function_of,
    uniform,
)

B, S, M, H, E = nm.dims("batch=4 seq=3 model=10 hidden=8 expert=2")


def numpy_einsum(equation):
    return lambda *operands: np.einsum(equation, *operands)


CASES = {
    "matmul": Case(
        lambda x, w: nm.einsum([x, w], [B, S, H]), numpy_einsum("bsm,mh->bsh"), ("x", "w")
    ),
    "reordered": Case(
        lambda x, w: nm.einsum([w, x], [H, S, B]), numpy_einsum("bsm,mh->hsb"), ("x", "w")
    ),
    "batched": Case(
        lambda x, y: nm.einsum([x, y], [B, S]), numpy_einsum("bsm,bsm->bs"), ("x", "y")
    ),
    "to_scalar": Case(lambda x, y: nm.einsum([x, y], []), numpy_einsum("bsm,bsm->"), ("x", "y")),
    "outer": Case(lambda c, v: nm.einsum([c, v], [E, B]), numpy_einsum("b,e->eb"), ("c", "v")),
    "elementwise": Case(
        lambda x, c: nm.einsum([x, c], [B, S, M]), numpy_einsum("bsm,b->bsm"), ("x", "c")
    ),
    "one_operand": Case(lambda x: nm.einsum([x], [M, B]), numpy_einsum("bsm->mb")),
    "lonely_dims": Case(lambda x, w: nm.einsum([x, w], [B]), numpy_einsum("bsm,mh->b"), ("x", "w")),
    "unshared": Case(lambda x, v: nm.einsum([x, v], [B, S]), numpy_einsum("bsm,e->bs"), ("x", "v")),
    "experts": Case(
        lambda x, k: nm.einsum([x, k], [E, B, S, H]), numpy_einsum("bsm,emh->ebsh"), ("x", "k")
    ),
    "three": Case(
        lambda x, w, k: nm.einsum([x, w, k], [E, B]),
        numpy_einsum("bsm,mh,emh->eb"),
        ("x", "w", "k"),
    ),
    "four": Case(
        lambda x, w, c, v: nm.einsum([c, x, v, w], [B, E, H]),
        numpy_einsum("bsm,mh,b,e->beh"),
        ("x", "w", "c", "v"),
    ),
    "self": Case(lambda x: nm.einsum([x, x], [B]), lambda x: np.einsum("bsm,bsm->b", x, x)),
    "int": Case(lambda i, j: nm.einsum([i, j], [B, H]), numpy_einsum("bm,mh->bh"), ("i", "j"), ()),
}
SPECS = {
    "x": nm.spec([B, S, M]),
    "y": nm.spec([B, S, M]),
    "w": nm.spec([M, H]),
    "k": nm.spec([E, M, H]),
    "c": nm.spec([B]),
    "v": nm.spec([E]),
    "i": nm.spec([B, M], "int32"),
    "j": nm.spec([M, H], "int32"),
}
ARRAYS = {
    "x": uniform(1, 4, 3, 10),
    "y": uniform(2, 4, 3, 10),
    "w": uniform(3, 10, 8),
    "k": uniform(4, 2, 10, 8),
    "c": uniform(5, 4),
    "v": uniform(6, 2),
    "i": np.random.default_rng(7).integers(-9, 9, (4, 10)).astype(np.int32),
    "j": np.random.default_rng(8).integers(-9, 9, (10, 8)).astype(np.int32),
}


def test_values_and_gradients():
    program = nm.trace(function_of(CASES), **SPECS)
    assert_same(evaluated(program, ARRAYS), expected_of(CASES, ARRAYS), rtol=2e-5, atol=5e-5)


@pytest.mark.parametrize("layout", ["batch:a, model:b", "batch:b, hidden:a", "model:a+b"])
def test_sharded(layout):
    assert_sharded_same(function_of(CASES), SPECS, ARRAYS, layout, precision="highest")


def test_path_is_the_cheap_one():
    """A chain whose obvious order is a thousand times more expensive than the best."""
    A, C, D = nm.dims("a1=1000 c1=1000 d1=1")

    def chain(x, y, z):
        return nm.einsum([x, y, z], [A])

    program = nm.trace(
        chain,
        x=nm.spec([A, C]),
        y=nm.spec([C, nm.Dimension("e1", 1000)]),
        z=nm.spec([nm.Dimension("e1", 1000), D]),
    )
    assert program.flops() <= 3 * 2 * 1000 * 1000


def test_flops():
    program = nm.trace(lambda x, w: nm.einsum([x, w], [B, S, H]), x=SPECS["x"], w=SPECS["w"])
    assert program.flops() == 2 * 4 * 3 * 10 * 8


def test_bfloat16():
    program = nm.trace(
        lambda x, w: nm.einsum([x, w], [B, S, H]),
        x=nm.spec([B, S, M], "bfloat16"),
        w=nm.spec([M, H], "bfloat16"),
    )
    import tensorflow as tf

    given = {name: tf.cast(ARRAYS[name], tf.bfloat16) for name in "xw"}
    found = evaluated(program, given)
    assert found.dtype == tf.bfloat16
    expected = np.einsum(
        "bsm,mh->bsh", *(np.asarray(tf.cast(given[name], tf.float32)) for name in "xw")
    )
    np.testing.assert_allclose(tf.cast(found, tf.float32), expected, rtol=0.02, atol=0.1)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x, i: nm.einsum(x, [B]), "list of tensors"),
        (lambda x, i: nm.einsum([x, x], [B, H]), "hidden is in none"),
        (lambda x, i: nm.einsum([x, i], [B]), "dtypes"),
        (lambda x, i: nm.einsum([x > 0, x > 1], [B]), "bool"),
        (lambda x, i: nm.einsum([x, nm.zeros([M.resized(4)])], [B]), "size 10 in x and 4"),
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=nm.spec([B, M]), i=nm.spec([B, M], "int32"))


def test_an_operand_may_be_called_result():
    def function(x):
        result = x * 2.0
        what = nm.einsum([result, result], [])
        return nm.broadcast(what, x.shape)

    program = nm.trace(function, x=nm.spec([nm.Dimension("batch", 2)]))
    np.testing.assert_array_equal(
        program.evaluate({}, x=np.array([1.0, 2.0], np.float32))[1], [20.0, 20.0]
    )


def test_over_names_what_is_summed():
    x, w = uniform(0, 4, 6), uniform(1, 6, 8)
    B, M, H = nm.dims("batch=4 model=6 hidden=8")
    found = nm.evaluate(lambda x, w: nm.einsum([x, w], over=M), x=([B, M], x), w=([M, H], w))
    np.testing.assert_allclose(found, x @ w, rtol=1e-5, atol=1e-5)
    with pytest.raises(nm.NamedMeshError, match="in none of the operands"):
        nm.evaluate(lambda x: nm.einsum([x], over=H), x=([B, M], x))
    with pytest.raises(nm.NamedMeshError, match="or by those to sum over"):
        nm.evaluate(lambda x: nm.einsum([x], [B], over=M), x=([B, M], x))


@pytest.mark.parametrize("layout", ["", "model:b, batch:a", "hidden:a"])
def test_preferred_adds_narrow_products_up_in_a_wide_dtype(layout):
    """The products of bfloat16 are exact in float32, and so nearly are their sums."""
    B, M, H = nm.dims("batch=4 model=512 hidden=8")
    x, w = (uniform(i, *sizes) for i, sizes in enumerate([(4, 512), (512, 8)]))

    def multiply(x, w):
        narrow = [nm.cast(x, "bfloat16"), nm.cast(w, "bfloat16")]
        y = nm.einsum(narrow, [B, H], preferred="float32")
        return {"y": y, "three": nm.einsum([*narrow, narrow[1]], [B, H], preferred="float32"),
                "dx": nm.grad(nm.sum(y), x)}  # fmt: skip

    program = nm.trace(multiply, x=nm.spec([B, M]), w=nm.spec([M, H]))
    step = nm.compile(program, mesh=nm.Mesh(a=2, b=4), layout=layout, strict=True)
    found = step(step.init(0), x=x, w=w)[1]
    wide = [array.astype(ml_dtypes.bfloat16).astype(np.float64) for array in (x, w)]
    np.testing.assert_allclose(found["y"], wide[0] @ wide[1], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found["three"], wide[0] @ wide[1] ** 2, rtol=2e-2, atol=0.2)
    assert np.asarray(found["dx"]).dtype == np.float32
    np.testing.assert_allclose(
        found["dx"], np.broadcast_to(wide[1].sum(1), (4, 512)), rtol=1e-2, atol=0.05
    )


def test_preferred_of_whole_numbers():
    B, M, H = nm.dims("batch=4 model=64 hidden=8")
    x, w = (
        np.random.default_rng(i).integers(-128, 128, s) for i, s in enumerate([(4, 64), (64, 8)])
    )
    given = {"x": ([B, M], x.astype("int8")), "w": ([M, H], w.astype("int8"))}
    found = nm.evaluate(lambda x, w: nm.einsum([x, w], [B, H], preferred="int32"), **given)
    assert np.array_equal(found, x @ w)
    with pytest.raises(nm.NamedMeshError, match="does not hold the products"):
        nm.evaluate(lambda x, w: nm.einsum([x, w], [B, H], preferred="float32"), **given)
