"""Linear algebra against numpy under layouts; benchmarks.coverage has the derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm

B, R, C, K, S = nm.dims("batch=4 row=3 column=3 value=3 system=2")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 3, 3)).astype(np.float32) + 3 * np.eye(3, dtype=np.float32)
Y = RNG.normal(size=(4, 3, 2)).astype(np.float32)
EVEN = (X + X.swapaxes(1, 2)) / 2


def run(function, *specs):
    step = nm.compile(
        function, *specs, mesh=nm.Mesh(a=2, b=2), layout="batch:a, row:b", strict=True
    )
    return lambda *arrays: step(None, *arrays)[1]


def test_factors_multiply_back():
    def multiply(x):
        even = (x + nm.rename(x, {R: C, C: R})) * 0.5
        q, r = nm.qr(x, R, C, K)
        u, s, v = nm.svd(x, R, C, K)
        w, e = nm.eigh(even, R, C, K)
        lower = nm.cholesky(even, R, C)
        twin = nm.rename(lower, {R: C, C: K})
        return (
            nm.einsum([q, r], [B, R, C]),
            nm.einsum([u, s, v], [B, R, C]),
            nm.einsum([e, w, nm.rename(e, R, C)], [B, R, C]),
            nm.einsum([nm.rename(lower, C, K), twin], [B, R, C]),
            nm.einsum([x, nm.rename(nm.inv(x, R, C), R, K)], over=C),
            nm.det(x, R, C),
        )

    found = run(multiply, nm.spec([B, R, C]))(X)
    expected = X, X, EVEN, EVEN, np.broadcast_to(np.eye(3), X.shape), np.linalg.det(X)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


def test_systems_that_share_a_matrix():
    solve = lambda a, b: (nm.solve(a, b, R, C), nm.triangular_solve(a, b, R, C))
    found, lower = run(solve, nm.spec([R, C]), nm.spec([B, R, S]))(X[0], Y)
    np.testing.assert_allclose(found, np.linalg.solve(X[0], Y), atol=1e-4)
    np.testing.assert_allclose(lower, np.linalg.solve(np.tril(X[0]), Y), atol=1e-4)


def test_determinants_of_all_kinds():
    arrays = np.stack([np.zeros((3, 3)), np.eye(3)[[1, 0, 2]], np.diag([2.0, -3, 4])]).astype("f")
    found = nm.evaluate(lambda x: nm.det(x, R, C), x=([K, R, C], arrays))
    np.testing.assert_allclose(found, [0, -1, -24], rtol=1e-6)


def test_what_is_no_matrix_is_explained():
    with pytest.raises(nm.NamedMeshError, match="not the two sides of a square matrix"):
        nm.trace(lambda x: nm.inv(x, R, S), nm.spec([R, S]))
    with pytest.raises(nm.NamedMeshError, match="does not number the results"):
        nm.trace(lambda x: nm.svd(x, R, S, K), nm.spec([R, S]))
    with pytest.raises(nm.NamedMeshError, match="the dimension column=3 of the unknowns"):
        nm.trace(lambda a: nm.solve(a, a, R, C), nm.spec([R, C]))


def test_products_of_bytes_do_not_overflow():
    M, H = nm.dims("model=64 hidden=2")
    x, w = (RNG.integers(-128, 128, size).astype(np.int8) for size in ((4, 64), (64, 2)))
    step = nm.compile(
        lambda x, w: nm.einsum([x, w], [B, H]),
        nm.spec([B, M], "int8"),
        nm.spec([M, H], "int8"),
        mesh=nm.Mesh(a=4),
        layout="model:a",
        strict=True,
    )
    np.testing.assert_array_equal(step(None, x, w)[1], x.astype(int) @ w.astype(int))
    assert nm.evaluate(
        lambda x, w: nm.einsum([x, w], over=M), x=([B, M], x), w=([M, H], w)
    ).dtype == np.dtype("int32")


SQUARE = RNG.normal(size=(4, 3, 3)).astype(np.float32)
SINGULAR = np.concatenate([SQUARE[:2], np.zeros((1, 3, 3), "f"), np.ones((1, 3, 3), "f")])
SINGULAR[0, 1] = SINGULAR[0, 0]


@pytest.mark.parametrize("x", [SQUARE, SINGULAR, np.tile(np.eye(3, dtype="f"), (4, 1, 1))])
def test_determinants_have_the_derivative_of_jax_where_there_is_no_inverse(x):
    slope = lambda x: nm.grad(nm.sum(nm.det(x, R, C)), x)
    expected = jax.grad(lambda x: jnp.linalg.det(x).sum())(x)
    np.testing.assert_allclose(nm.evaluate(slope, x=([B, R, C], x)), expected, atol=1e-5)
    np.testing.assert_allclose(run(slope, nm.spec([B, R, C]))(x), expected, atol=1e-5)


def test_equal_eigenvalues_have_a_derivative_and_their_vectors_none_as_in_jax():
    weights = np.arange(3, dtype="f")
    values = lambda x: nm.sum(nm.eigh(x, R, C, K)[0] * nm.constant(weights, [K]))
    x = ([R, C], np.eye(3, dtype="f"))
    expected = jax.grad(lambda x: jnp.sum(jnp.linalg.eigh(x)[0] * weights))(x[1])
    found = nm.evaluate(lambda x: nm.grad(values(x), x), x=x)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    vectors = lambda x: nm.sum(nm.eigh(x, R, C, K)[1] * nm.constant(weights, [K]))
    assert np.isnan(nm.evaluate(lambda x: nm.grad(vectors(x), x), x=x)).any()


def test_what_has_no_inverse_is_nan_and_leaves_others_alone():
    invert = lambda x: nm.inv(x, R, C)
    for found in (
        nm.evaluate(invert, x=([B, R, C], SINGULAR)),
        run(invert, nm.spec([B, R, C]))(SINGULAR),
    ):
        np.testing.assert_allclose(found[1], np.linalg.inv(SINGULAR[1]), rtol=1e-3)
        assert np.isnan(found[2]).all()
