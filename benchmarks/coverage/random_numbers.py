"""Constants, random numbers and initializers: what is made of no operands, or of keys."""

from __future__ import annotations

import numpy as np

import namedmesh as nm
from benchmarks.coverage.entry import Entry, Input, as_dtype
from benchmarks.coverage.kit import Kit


def entries(kit: Kit) -> dict[str, Entry]:
    """Constants, nm.random and the initializers."""
    return _constants(kit) | _random(kit) | _initializers(kit)


def _constants(kit: Kit) -> dict[str, Entry]:
    """Return each is multiplied by an operand, since constants alone have no place on a mesh."""
    B, R, C = kit.B, kit.R, kit.C
    dims, sizes, dtype = [R, C], (R.size, C.size), kit.dtype
    numbers = (np.arange(R.size * C.size).reshape(sizes) % 16 - 8) / 4

    def made(make, array):
        return Entry(lambda x: x * make(), lambda x: x * array, [kit.real(B, R, C)], own=dims)

    return {
        "zeros": made(lambda: nm.zeros(dims, dtype) + 1.0, np.ones(sizes)),
        "ones": made(lambda: nm.ones(dims, dtype), np.ones(sizes)),
        "full": made(lambda: nm.full(dims, 2.5, dtype), np.full(sizes, 2.5)),
        "constant": made(lambda: nm.constant(numbers, dims, dtype), numbers),
        "linspace": made(
            lambda: nm.linspace(R, -1.0, 2.0, dtype), np.linspace(-1, 2, R.size)[:, None]
        ),
        "range (with a step)": made(
            lambda: nm.range(R, dtype, start=3, step=-2), 3 - 2 * np.arange(R.size)[:, None]
        ),
        "range": made(lambda: nm.range(R, dtype), np.arange(R.size)[:, None]),
    }


def _random(kit: Kit) -> dict[str, Entry]:
    """Random numbers are the same under every layout, and in their range."""
    B, R, C = kit.B, kit.R, kit.C
    dims, dtype, random = [B, R, C], kit.dtype, nm.random
    seed = kit.whole(below=1000)

    def drawn(draw, holds, *inputs, own=dims):
        # A key made of an operand is not known before the step runs, so nothing is precomputed.
        named = lambda seed, *given: draw(random.key_from_seed(seed), *given)
        return Entry(named, None, [seed, *inputs], own, holds=holds)

    shapes = Input(nm.spec([C]), lambda rng, sizes: rng.uniform(0.3, 2, sizes))
    between = lambda low, high: lambda x: ((x >= low) & (x <= high)).all() and x.std() > 0
    return {
        "random.bits": drawn(lambda key: random.bits(key, dims), lambda x: len(np.unique(x)) > 100),
        "random.uniform": drawn(
            lambda key: random.uniform(key, dims, -1.0, 3.0, dtype), between(-1, 3)
        ),
        "random.normal": drawn(lambda key: random.normal(key, dims, dtype=dtype), between(-6, 6)),
        "random.truncated_normal": drawn(
            lambda key: random.truncated_normal(key, dims, dtype=dtype), between(-2, 2)
        ),
        "random.gumbel": drawn(lambda key: random.gumbel(key, dims, dtype), between(-4, 20)),
        "random.exponential": drawn(
            lambda key: random.exponential(key, dims, dtype), between(0, 20)
        ),
        "random.laplace": drawn(lambda key: random.laplace(key, dims, dtype), between(-20, 20)),
        "random.logistic": drawn(lambda key: random.logistic(key, dims, dtype), between(-20, 20)),
        "random.cauchy": drawn(lambda key: random.cauchy(key, dims, dtype), between(-1e8, 1e8)),
        "random.rademacher": drawn(
            lambda key: random.rademacher(key, dims, dtype), lambda x: (abs(x) == 1).all()
        ),
        "random.gamma": drawn(
            lambda key, a: random.gamma(key, dims, a, dtype), between(0, 50), shapes
        ),
        "random.beta": drawn(
            lambda key, a: random.beta(key, dims, a, 2.0, dtype), between(0, 1), shapes
        ),
        "random.dirichlet": drawn(
            lambda key, a: random.dirichlet(key, dims, a, R, dtype), between(0, 1), shapes
        ),
        "random.student_t": drawn(
            lambda key, a: random.student_t(key, dims, a, dtype), between(-1e6, 1e6), shapes
        ),
        "random.poisson": drawn(
            lambda key, a: random.poisson(key, dims, a * a * 8.0), between(0, 80), shapes
        ),
        "random.uniform (bounds of each row)": drawn(
            lambda key, a: random.uniform(key, dims, -a, a), between(-2, 2), shapes
        ),
        "random.randint": drawn(lambda key: random.randint(key, dims, 1, 7), between(1, 6)),
        "random.bernoulli": drawn(lambda key: random.bernoulli(key, dims, 0.25), between(0, 1)),
        "random.permutation": drawn(
            lambda key: random.permutation(key, R), lambda x: sorted(x) == list(range(R.size))
        ),
        "random.categorical": drawn(
            lambda key, x: random.categorical(key, x, over=R),
            between(0, R.size - 1),
            kit.real(B, R, C),
            own=[R],
        ),
        "random.key_from_seed": drawn(lambda key: random.bits(key, dims), between(0, 2**32)),
        "random.key": drawn(lambda _: random.bits(random.key(3), dims), between(0, 2**32)),
        "random.fold_in": drawn(
            lambda key: random.bits(random.fold_in(key, 3), dims), between(0, 2**32)
        ),
        "random.fold_in_name": drawn(
            lambda key: random.bits(random.fold_in_name(key, "w"), dims), between(0, 2**32)
        ),
    }


def _initializers(kit: Kit) -> dict[str, Entry]:
    """Return an initializer is called with a key, as nm.param does."""
    R, C = kit.R, kit.C

    def made(init, holds):
        shape = nm.Shape([R, C])
        named = lambda seed: init(nm.random.key_from_seed(seed), shape, kit.dtype)
        return Entry(named, None, [kit.whole(below=1000)], [R, C], holds=holds)

    within = lambda high: lambda x: x.std() > 0 and np.abs(x).max() <= as_dtype(high, kit.dtype)

    def orthogonal(x):
        short = x.T if x.shape[0] > x.shape[1] else x
        short = short.astype(np.float64)
        return np.allclose(short @ short.T, np.eye(len(short)), atol=0.05)

    return {
        "constant_init": made(nm.constant_init(0.5), lambda x: (x == 0.5).all()),
        "normal_init": made(nm.normal_init(0.5), within(3.0)),
        "truncated_normal_init": made(nm.truncated_normal_init(0.5), within(1.5)),
        "uniform_init": made(nm.uniform_init(0.5), within(0.5)),
        "fan_in_init": made(nm.fan_in_init(R), within(6 * R.size**-0.5)),
        "glorot_init": made(nm.glorot_init(R, C), within((6 / (R.size + C.size)) ** 0.5)),
        "he_init": made(nm.he_init(R), within(6 * (2 / R.size) ** 0.5)),
        "orthogonal_init": made(nm.orthogonal_init(R, C), orthogonal),
    }
