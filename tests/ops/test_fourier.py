"""Fourier transforms along whole and split dimensions against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm

B, S, F = nm.dims("batch=4 seq=8 frequency=5")
X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


def run(function, layout, **options):
    return nm.compile(
        function, nm.spec([B, S]), mesh=nm.Mesh(a=2, b=2), layout=layout, strict=True, **options
    )


@pytest.mark.parametrize("layout, partitioner", [("seq:a", "gspmd"), ("batch:a, seq:b", "shardy")])
def test_transforms_and_gradients(layout, partitioner):
    def named(x):
        half = nm.rfft(x, S, F)
        back = nm.irfft(half * half, F, S)
        loss = nm.sum(back * back) + nm.sum(nm.real(half * nm.conj(half)))
        return nm.fft(x, S), half, back, nm.grad(loss, x)

    def plain(x):
        half = jnp.fft.rfft(x)
        back = jnp.fft.irfft(half * half)
        loss = (back**2).sum() + (half * half.conj()).real.sum()
        return loss, (jnp.fft.fft(x), half, back)

    _, found = run(named, layout, partitioner=partitioner)(None, X)
    (_, expected), slope = jax.value_and_grad(plain, has_aux=True)(X)
    for one, other in zip(found, (*expected, slope), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)


def test_a_split_dimension_takes_two_alltoalls():
    step = run(lambda x: nm.fft(x, S), "seq:a")
    assert step.plan.count("AllToAll") == 2 and step.plan.count("AllGather") == 0
    lonely = nm.trace(lambda x: nm.fft(x, S), nm.spec([S]))
    plan = nm.plan(lonely, nm.Mesh(a=2), "seq:a")
    assert plan.count("AllToAll") == 0 and plan.count("AllGather") == 1


@pytest.mark.parametrize("by_jax", [False, True])
@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_a_dimension_that_does_not_divide_is_transformed(by_jax, partitioner):
    A, R, C = nm.dims("batch=8 row=3 column=6")
    x = np.random.default_rng(0).normal(size=(8, 3, 6)).astype(np.float32)

    def once(z):
        if by_jax:
            return nm.call_jax(jnp.fft.fft, z, result=nm.spec([A, R, C], "complex64"))
        return nm.fft(z, C)

    def twice(x):
        return once(once(nm.cast(2 * x, "complex64")) * 3)

    step = nm.compile(
        twice, nm.spec([A, R, C]), mesh=nm.Mesh(x=8), layout="column:x", strict=True,
        partitioner=partitioner,
    )  # fmt: skip
    expected = np.fft.fft(np.fft.fft(2 * x) * 3)
    np.testing.assert_allclose(np.asarray(step(None, x)[1]), expected, atol=1e-3)


def test_loops_with_a_bound_have_a_derivative():
    M = nm.Dimension("model", 4)
    x = np.array([1, 2, 0.5, 1], np.float32)

    def grow(x):
        y, n = nm.while_loop(
            lambda y, n: nm.sum(y) < 50.0, lambda y, n: (y * 1.5 + x, n + 1), x, 0, most=9
        )
        return n, nm.grad(nm.sum(y * y), x)

    def plain(x):
        y = x
        for _ in range(4):
            y = y * 1.5 + x
        return (y * y).sum()

    step = nm.compile(grow, nm.spec([M]), mesh=nm.Mesh(a=2), layout="model:a", strict=True)
    count, slope = step(None, x)[1]
    assert int(count) == 4
    np.testing.assert_allclose(slope, jax.grad(plain)(x), rtol=1e-5)


def test_remat_by_the_names_of_variables():
    L, M, H = nm.dims("layer=3 model=4 hidden=8")

    def slope(x, remat):
        def layer(x, _):
            w = nm.param("w", [M, H], init=nm.constant_init(0.1))
            hidden = nm.einsum([x, w], over=M)
            active = nm.tanh(hidden)
            return x + nm.einsum([active, w], over=H), None

        y, _ = nm.scan(layer, x, over=L, stack=True, remat=remat)
        return nm.grad(nm.sum(y * y), x)

    programs = {
        str(remat): nm.trace(lambda x, remat=remat: slope(x, remat), nm.spec([M]))
        for remat in ("full", ["hidden"], ["active"])
    }
    results = [p.evaluate(p.initial_state(), x=X[0, :4])[1] for p in programs.values()]
    for one in results:
        np.testing.assert_allclose(one, results[0], rtol=1e-6)
    share = {name: sum(p.recomputed.values()) for name, p in programs.items()}
    assert share["full"] > share["['hidden']"] > share["['active']"] == 0
    with pytest.raises(nm.NamedMeshError, match="is called hiden"):
        nm.trace(lambda x: slope(x, ["hiden"]), nm.spec([M]))


def test_absolute_values_have_the_derivative_of_jax():
    x = np.random.default_rng(0).normal(size=(8, 8)).astype("f")
    x[0] = 0
    B, R = nm.dims("batch=8 row=8")
    size = lambda x: nm.sum(nm.absolute(nm.fft(x, R)))
    mesh = nm.Mesh(a=2, b=4)
    slope = lambda x: (size(x), nm.grad(size(x), x))
    step = nm.compile(slope, nm.spec([B, R]), mesh=mesh, layout="batch:a, row:b", strict=True)
    total, found = step(None, x)[1]
    expected, slopes = jax.value_and_grad(lambda x: jnp.abs(jnp.fft.fft(x)).sum())(x)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    np.testing.assert_allclose(found, slopes, atol=1e-5)
