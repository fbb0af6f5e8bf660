"""Complex numbers and Fourier transforms."""

from __future__ import annotations

import jax.numpy as jnp

import namedmesh as nm
from benchmarks.coverage.entry import ELEMENTWISE, Entry
from benchmarks.coverage.kit import Kit


def entries(kit: Kit) -> dict[str, Entry]:
    """Everything in ops/fourier; results are told by real and imaginary parts."""
    B, R, C = kit.B, kit.R, kit.C
    H = nm.Dimension("half", R.size // 2 + 1)
    real, other = kit.real(B, R, C), kit.real(B, R, C)
    wide = lambda x: nm.cast(x, "float32")
    parts = lambda z: (nm.real(z), nm.imag(z))
    parts_of = lambda z: (jnp.real(z), jnp.imag(z))
    pair = lambda x, y: nm.complex(wide(x), wide(y))
    pair_of = lambda x, y: x + 1j * y

    def along(named, reference, inputs=(real, other), own=(R,)):
        reasons = {} if own else ELEMENTWISE
        return Entry(named, reference, inputs, own=own, roundings=16, reasons=reasons)

    return {
        "fft": along(
            lambda x, y: parts(nm.fft(pair(x, y), R)),
            lambda x, y: parts_of(jnp.fft.fft(pair_of(x, y), axis=1)),
        ),
        "ifft": along(
            lambda x, y: parts(nm.ifft(pair(x, y), R)),
            lambda x, y: parts_of(jnp.fft.ifft(pair_of(x, y), axis=1)),
        ),
        "rfft": along(
            lambda x: parts(nm.rfft(wide(x), R, H)),
            lambda x: parts_of(jnp.fft.rfft(x, axis=1)),
            [real],
            own=(R, H),
        ),
        "irfft": along(
            lambda x, y: nm.irfft(pair(x, y), H, R),
            lambda x, y: jnp.fft.irfft(pair_of(x, y), R.size, axis=1),
            [kit.real(B, H, C), kit.real(B, H, C)],
            own=(R, H),
        ),
        "complex": along(
            lambda x, y: parts(pair(x, y) * pair(y, x)),
            lambda x, y: parts_of(pair_of(x, y) * pair_of(y, x)),
            own=(),
        ),
        "conj": along(
            lambda x, y: parts(nm.conj(pair(x, y)) * pair(x, x)),
            lambda x, y: parts_of(jnp.conj(pair_of(x, y)) * pair_of(x, x)),
            own=(),
        ),
        "real": along(
            lambda x, y: nm.real(pair(x, y) * pair(x, y)),
            lambda x, y: jnp.real(pair_of(x, y) ** 2),
            own=(),
        ),
        "imag": along(
            lambda x, y: nm.imag(pair(x, y) * pair(x, y)),
            lambda x, y: jnp.imag(pair_of(x, y) ** 2),
            own=(),
        ),
    }
