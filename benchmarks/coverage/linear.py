"""Linear algebra of matrices that are whole on a device, products with diagonals."""

from __future__ import annotations

import jax.numpy as jnp
import jax.scipy.linalg

import namedmesh as nm
from benchmarks.coverage.entry import Entry
from benchmarks.coverage.kit import Kit


def entries(kit: Kit) -> dict[str, Entry]:
    """Everything in ops/linear_algebra."""
    B, S = kit.B, kit.dim("side", 3, 2)
    R, C, K = kit.dim("row", 4, 3), kit.dim("column", 4, 3), kit.dim("value", 4, 3)
    wide, real, tall = kit.unit(B, R, C), kit.real(B, R, S), kit.unit(B, kit.R, C)

    def along(named, reference, *inputs):
        return Entry(named, reference, inputs or (wide,), own=[R, C], roundings=40)

    def shifted(x):
        """Make a matrix that is far from singular, and not symmetric."""
        return x + nm.eye(R, C, kit.dtype) * 4.0

    def positive(x):
        """Make a symmetric matrix of eigenvalues that are apart."""
        other = nm.rename(x, {R: C, C: R})
        place = nm.range(R, kit.dtype) * 3.0 + 4.0
        return (x + other) * 0.5 + nm.eye(R, C, kit.dtype) * place

    eye = lambda x: jnp.eye(x.shape[-1])
    apart = lambda x: eye(x) * (3.0 * jnp.arange(x.shape[-1]) + 4.0)
    shift = lambda x: x + 4.0 * eye(x)
    even = lambda x: (x + x.swapaxes(1, 2)) / 2 + apart(x)
    triangle = lambda x, b, lower: jax.scipy.linalg.solve_triangular(shift(x), b, lower=lower)

    def qr(x):
        q, r = nm.qr(x, kit.R, C, K)
        sign = nm.stop_gradient(nm.sign(nm.diagonal(r, K, C)))
        return q * sign, r * sign

    def qr_of(x):
        q, r = jnp.linalg.qr(x)
        sign = jnp.sign(jnp.diagonal(r, axis1=1, axis2=2))
        return q * sign[:, None, :], r * sign[:, :, None]

    def eigh(x):
        values, vectors = nm.eigh(positive(x), R, C, K)
        return values, vectors * vectors

    def eigh_of(x):
        values, vectors = jnp.linalg.eigh(even(x))
        return values, vectors**2

    def svd(x):
        u, s, v = nm.svd(positive(x), R, C, K)
        return u * u, s, v * v

    def svd_of(x):
        u, s, v = jnp.linalg.svd(even(x), full_matrices=False)
        return u**2, s, v.swapaxes(1, 2) ** 2

    solve_of = lambda x, b: jnp.linalg.solve(shift(x), b)
    return {
        "cholesky": along(
            lambda x: nm.cholesky(positive(x), R, C), lambda x: jnp.linalg.cholesky(even(x))
        ),
        "solve": along(
            lambda x, b: nm.rename(nm.solve(shifted(x), b, R, C), C, R), solve_of, wide, real
        ),
        "triangular_solve": along(
            lambda x, b: nm.triangular_solve(shifted(x), b, R, C),
            lambda x, b: triangle(x, b, True),
            wide,
            real,
        ),
        "triangular_solve (upper)": along(
            lambda x, b: nm.triangular_solve(shifted(x), b, R, C, lower=False),
            lambda x, b: triangle(x, b, False),
            wide,
            real,
        ),
        "inv": along(lambda x: nm.inv(shifted(x), R, C), lambda x: jnp.linalg.inv(shift(x))),
        "det": along(lambda x: nm.det(x, R, C), jnp.linalg.det),
        "slogdet": along(
            lambda x: nm.slogdet(shifted(x), R, C), lambda x: tuple(jnp.linalg.slogdet(shift(x)))
        ),
        "qr": Entry(qr, qr_of, [tall], own=[kit.R, C], roundings=80),
        "eigh": along(eigh, eigh_of),
        "svd": along(svd, svd_of),
        "einsum (of diagonals)": along(
            lambda x: nm.einsum([x, x * x], [R], same={C: R}),
            lambda x: jnp.einsum("brr,brr->r", x, x * x),
        ),
        "einsum (to a diagonal)": along(
            lambda x: nm.einsum([nm.sum(x, R), x], [B, R, C], same={C: R}),
            lambda x: jnp.einsum("bc,bcc->bc", x.sum(1), x)[..., None] * eye(x),
        ),
    }
