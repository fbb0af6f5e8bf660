import numpy as np
import pytest

import namedmesh as nm
from namedmesh.ir.literal import numpy_dtype
from namedmesh.ops import random_bits
from namedmesh.ops.random import _open_unit, key_from_seed
from tests.checks import MESH, assert_same, assert_sharded_same, evaluated

B, S, M = nm.dims("batch=8 seq=6 model=10")
N = nm.Dimension("draws", 200_000)


def mix(x):
    """lowbias32 on Python integers (https://nullprogram.com/blog/2018/07/31/)."""
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


def hashed(key, low, high=None):
    """The bits of one counter under a key."""
    x = mix(low ^ key[0]) + key[1]
    return mix((x if high is None else x + mix((high + 0x9E3779B9) % 2**32)) % 2**32)


def folded(key, number):
    """A key from a key and a number."""
    words = mix((key[1] + 0x85EBCA6B) % 2**32), key[0]
    return (hashed(words, number), hashed(words, number, 1))


@pytest.mark.parametrize("seed", [0, 1, 12345, -1])
def test_bits_hash_the_row_major_index(seed):
    found = evaluated(nm.trace(lambda: nm.random.bits(nm.random.key(seed), [B, S])), {})
    key = folded((0, 0), seed % 2**32)
    expected = np.array([hashed(key, i) for i in range(48)], np.uint32)
    np.testing.assert_array_equal(np.asarray(found), expected.reshape(8, 6))


def bits_of(keys, count):
    """The first bits of several keys, side by side."""
    C = nm.Dimension("count", count)
    program = nm.trace(
        lambda key: nm.random.bits(key, [C]), key=nm.spec([random_bits.KEY], "uint32")
    )
    return np.stack(
        [np.asarray(evaluated(program, {"key": np.array(key, np.uint32)})) for key in keys]
    )


def flipped(one, other):
    """The share of differing bits at each of the 32 positions."""
    return np.unpackbits((one ^ other).view(np.uint8).reshape(-1, 4), axis=1).mean(0)


def test_every_bit_of_key_and_counter_moves_half_of_the_bits():
    keys = (
        [(123, 456)]
        + [(123 ^ 1 << i, 456) for i in range(32)]
        + [(123, 456 ^ 1 << i) for i in range(32)]
    )
    plain, *changed = bits_of(keys, 4096)
    for other in changed:
        np.testing.assert_allclose(flipped(plain, other), 0.5, atol=0.06)
    for i in range(12):
        neighbour = plain[np.arange(4096) ^ 1 << i]
        np.testing.assert_allclose(flipped(plain, neighbour), 0.5, atol=0.06)


def test_bits_are_even_and_neighbours_independent():
    (bits,) = bits_of([(1, 2)], 2**20)
    counts = np.stack(
        [np.bincount(part, minlength=256) for part in bits.view(np.uint8).reshape(-1, 4).T]
    )
    chi = ((counts - 4096.0) ** 2 / 4096).sum(1)
    assert (chi > 170).all() and (chi < 355).all(), chi  # 255 degrees of freedom
    unit = bits / 2.0**32 - 0.5
    for lag in (1, 2, 7, 64, 4096):
        assert abs(np.mean(unit[:-lag] * unit[lag:]) * 12) < 5e-3, lag


def test_counters_beyond_32_bits_use_the_second_word():
    """Counts a dimension that makes more than 2^32 elements; checks its last rows alone."""
    rows, columns = nm.dims("rows=3 columns=4")
    from namedmesh.ir.context import Context

    class Huge(Context):
        def size(self, dim):
            return {"rows": 3, "columns": 4}[dim.name]

        def offset(self, dim):
            return {"rows": 2**20, "columns": 2**31 - 4}[dim.name]

    def bits(key):
        return nm.random.bits(key, [nm.Dimension("rows", 2**21), nm.Dimension("columns", 2**31)])

    program = nm.trace(bits, key=nm.spec([random_bits.KEY], "uint32"))
    import tensorflow as tf

    (op,) = [op for op in program.ops if op.kind == "bits"]
    found = np.asarray(op.lower(Huge(), tf.constant([7, 9], tf.uint32)))
    first = np.broadcast_to(np.arange(2**31 - 4, 2**31), (3, 4)).ravel()
    second = np.repeat(np.arange(2**20, 2**20 + 3), 4)
    expected = [
        hashed((7, 9), int(low), int(high)) for low, high in zip(first, second, strict=True)
    ]
    np.testing.assert_array_equal(found.ravel(), np.array(expected, np.uint32))
    assert (rows.size, columns.size) == found.shape


def test_keys_are_no_bits_drawn_from_the_key_they_come_from():
    C = nm.Dimension("count", 1000)

    def draw():
        key = nm.random.key(3)
        keys = [nm.random.fold_in(key, n) for n in range(8)]
        return nm.stack(keys, B), nm.random.bits(key, [C])

    keys, bits = nm.evaluate(draw)
    assert not set(np.ravel(keys).tolist()) & set(bits.tolist())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize(("low", "high"), [(1.0, 2.0), (1000.0, 1064.0), (-3.0, -2.0), (-1.0, 0.1)])
def test_uniform_never_returns_its_upper_bound(dtype, low, high):
    x = nm.evaluate(lambda: nm.random.uniform(nm.random.key(0), [N], low, high, dtype))
    x = np.asarray(x, np.float64)
    assert low <= x.min() and x.max() < np.asarray(high, dtype=numpy_dtype(dtype))
    assert abs(x.mean() - (low + high) / 2) < (high - low) / 20


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (1.0, 0.0, "float32"),
        (1.0, 1.0, "float32"),
        (1000.0, 1001.0, "bfloat16"),
        (-3e38, 3e38, "float32"),
        (0.0, np.nan, "float32"),
        (0.0, np.inf, "float32"),
    ],
)
def test_uniform_of_no_range_is_an_error(low, high, dtype):
    with pytest.raises(nm.NamedMeshError, match="are no range"):
        nm.trace(lambda: nm.random.uniform(nm.random.key(0), [B], low, high, dtype))


@pytest.mark.parametrize("probability", [1.5, -0.1, float("nan")])
def test_a_probability_is_between_0_and_1(probability):
    with pytest.raises(nm.NamedMeshError, match="is not between 0 and 1"):
        nm.trace(lambda: nm.random.bernoulli(nm.random.key(0), [B], probability))


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_fold_in_makes_new_keys(dtype):
    def keys(n):
        key = nm.random.key(5)
        return [
            nm.random.fold_in(key, n),
            nm.random.fold_in(key, 1),
            nm.random.fold_in_name(key, "a"),
            nm.random.fold_in_name(key, "b"),
        ]

    program = nm.trace(keys, n=nm.spec([], dtype))
    found = [np.asarray(one) for one in evaluated(program, {"n": np.array(3, dtype)})]
    np.testing.assert_array_equal(found[0], np.array(folded(folded((0, 0), 5), 3), np.uint32))
    assert len({tuple(one) for one in found}) == 4


def draws(seed):
    """One of everything, from a seed given at run time."""
    key = key_from_seed(seed)
    logits = nm.log(nm.cast(nm.range(M) + 1, "float32"))
    return {
        "bits": nm.random.bits(key, [B, S, M]),
        "uniform": nm.random.uniform(key, [M, B], -3.0, 5.0),
        "normal": nm.random.normal(key, [M, B], 1.0, 2.0),
        "bernoulli": nm.random.bernoulli(key, [M, B], nm.cast(nm.range(M), "float32") / 10.0),
        "gumbel": nm.random.gumbel(key, [M, B]),
        "categorical": nm.random.categorical(
            nm.random.fold_in(key, 5), nm.broadcast(logits, [B, M]), M
        ),
    }


@pytest.mark.parametrize("layout", ["seq:a, batch:b", "model:b, batch:a", "model:a+b"])
def test_the_same_bits_under_every_layout(layout):
    specs, given = {"seed": nm.spec([], "int32")}, {"seed": np.int32(17)}
    program = nm.trace(draws, **specs)
    step = nm.compile(program, mesh=MESH, layout=layout, strict=True)
    _, found = step(step.init(), **given)
    expected = evaluated(program, given)
    for name in ("bits", "uniform", "bernoulli", "categorical"):
        np.testing.assert_array_equal(
            np.asarray(found[name]), np.asarray(expected[name]), err_msg=name
        )
    assert_same(
        {name: found[name] for name in ("normal", "gumbel")},
        {name: expected[name] for name in ("normal", "gumbel")},
    )


@pytest.mark.parametrize("layout", ["batch:a+b", "batch:b, seq:a"])
def test_drawing_communicates_nothing(layout):
    def drawn(seed):
        key = key_from_seed(seed)
        return (
            nm.random.bits(key, [B, S]),
            nm.random.normal(key, [B, S, M]),
            nm.random.gumbel(key, [S, B]),
        )

    step = assert_sharded_same(drawn, {"seed": nm.spec([], "int32")}, {"seed": np.int32(3)}, layout)
    assert step.plan.collectives == ()
    assert (
        step.audit.count("AllGather") + step.audit.count("AllReduce") + step.audit.count("AllToAll")
        == 0
    )


def test_a_large_draw_is_made_in_shards():
    """A device keeps its own shard of a draw and never the whole of it."""
    rows, columns = nm.dims("rows=1024 columns=4096")

    def drawn(seed):
        return nm.sum(nm.random.normal(key_from_seed(seed), [rows, columns]), over=columns)

    whole = 1024 * 4096 * 4
    step = nm.compile(drawn, seed=nm.spec([], "int32"), mesh=MESH, layout="rows:a+b", strict=True)
    assert step.report.temporary_bytes <= 2 * whole // 8
    step = nm.compile(
        drawn, seed=nm.spec([], "int32"), mesh=MESH, layout="columns:a+b", strict=True
    )
    assert step.report.temporary_bytes <= 2 * whole // 8


@pytest.fixture(scope="module")
def sample():
    def many():
        key = nm.random.key(0)
        logits = nm.log(nm.cast(nm.range(nm.Dimension("choice", 4)) + 1, "float32"))
        return {
            "uniform": nm.random.uniform(key, [N], 2.0, 4.0),
            "normal": nm.random.normal(key, [N], 1.0, 2.0),
            "gumbel": nm.random.gumbel(key, [N]),
            "bernoulli": nm.random.bernoulli(key, [N], 0.3),
            "categorical": nm.random.categorical(
                key, nm.broadcast(logits, [N, nm.Dimension("choice", 4)]), nm.Dimension("choice", 4)
            ),
            "half": nm.random.uniform(key, [N], dtype="float16"),
            "brain": nm.cast(nm.random.uniform(key, [N], dtype="bfloat16"), "float32"),
        }

    return {name: np.asarray(value) for name, value in evaluated(nm.trace(many), {}).items()}


def test_uniform_moments(sample):
    x = sample["uniform"]
    assert x.min() >= 2 and x.max() < 4
    assert abs(x.mean() - 3) < 0.006 and abs(x.var() - 4 / 12) < 0.005
    assert np.all(np.abs(np.histogram(x, 20, (2, 4))[0] / N.size - 0.05) < 0.0025)


def test_normal_moments(sample):
    x = (sample["normal"] - 1) / 2
    assert abs(x.mean()) < 0.01 and abs(x.std() - 1) < 0.01
    assert abs((x**3).mean()) < 0.03 and abs((x**4).mean() - 3) < 0.1
    assert abs((x < -1).mean() - 0.158655) < 0.004 and 3.9 < np.abs(x).max() < 6


def test_gumbel_moments(sample):
    x = sample["gumbel"]
    assert abs(x.mean() - 0.577216) < 0.015 and abs(x.var() - np.pi**2 / 6) < 0.03


def test_bernoulli_and_categorical_frequencies(sample):
    assert sample["bernoulli"].dtype == bool
    assert abs(sample["bernoulli"].mean() - 0.3) < 0.005
    counts = np.bincount(sample["categorical"], minlength=4) / N.size
    np.testing.assert_allclose(counts, np.arange(1, 5) / 10, atol=0.005)


@pytest.mark.parametrize("name", ["half", "brain"])
def test_short_floats_stay_below_the_upper_bound(sample, name):
    """Rounding to a short float must not bring in the bound that is excluded."""
    x = sample[name].astype(np.float32)
    assert x.min() >= 0 and x.max() < 1
    assert abs(x.mean() - 0.5) < 0.006


def test_extreme_bits_make_finite_numbers():
    words = np.array([0, 1, 511, 512, 2**31, 2**32 - 513, 2**32 - 512, 2**32 - 1], np.uint32)
    program = nm.trace(lambda words: _open_unit(words), words=nm.spec([B], "uint32"))
    unit = np.asarray(evaluated(program, {"words": words}))
    assert unit.min() > 0 and unit.max() < 1 and np.all(np.diff(unit) >= 0)
    assert np.all(np.isfinite(np.log(-np.log(unit))))


def test_nothing_random_carries_a_gradient():
    def still(x):
        noise = nm.random.normal(nm.random.key(1), [B])
        return nm.grad(nm.sum(x * noise), x) - noise

    np.testing.assert_allclose(
        evaluated(nm.trace(still, x=nm.spec([B])), {"x": np.zeros(8, np.float32)}), 0, atol=1e-7
    )


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: nm.random.bits(x, [B]), "no random key"),
        (lambda x: nm.random.fold_in(nm.random.key(0), 0.5), "int32 scalar"),
        (lambda x: key_from_seed(x), "int32 scalar"),
        (lambda x: nm.random.categorical(nm.random.key(0), x, S), "no dimension seq"),
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=nm.spec([B]))
