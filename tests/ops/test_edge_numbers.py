"""Ops on nan, infinities, zeros with a sign and small integers: as numpy has them, everywhere."""

import ml_dtypes
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.ir.literal import numpy_dtype
from tests.checks import MESH

B, M, K, V = nm.dims("batch=8 model=4 best=5 vocab=8")
EDGES = [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1.0, -1.0, 2.0, 3.0]


def draw(dtype: str) -> np.ndarray:
    """Numbers of a dtype, most of them at its edges."""
    kind = numpy_dtype(dtype)
    choices = np.array(EDGES)
    if kind.kind in "iu":
        least, most = np.iinfo(kind).min, np.iinfo(kind).max
        choices = np.array([least, most, 0, 1, most - 1, least + 1, 5, 7])
    return np.random.default_rng(0).choice(choices, (8, 4)).astype(kind)


def run(function, layout, **arrays):
    """The results by name: evaluated (layout None) or on a mesh."""
    specs = {name: nm.spec(dims, str(array.dtype)) for name, (dims, array) in arrays.items()}
    values = {name: array for name, (_, array) in arrays.items()}
    program = nm.trace(function, **specs)
    if layout is None:
        results = program.evaluate(program.initial_state(), **values)[1]
        return {name: value.numpy() for name, value in results.items()}
    step = nm.compile(program, mesh=MESH, layout=layout)
    return {name: np.asarray(value) for name, value in step(step.init(0), **values)[1].items()}


def assert_equal(found, expected):
    """Every entry is the same number, nan included."""
    for name, want in expected.items():
        got = found[name]
        if got.dtype == ml_dtypes.bfloat16:
            got = got.astype(np.float32)
        np.testing.assert_array_equal(got, np.asarray(want).astype(got.dtype), err_msg=name)


def order(x):
    values, indices = nm.top_k(x, B, K)
    return {
        "argsort": nm.argsort(x, B),
        "falling": nm.argsort(x, B, descending=True),
        "sort": nm.sort(x, B),
        "top": values,
        "top_indices": indices,
        "argmax": nm.argmax(x, B),
        "argmin": nm.argmin(x, B),
        "max": nm.max(x, over=B),
        "min": nm.min(x, over=B),
        "least": nm.min(x),
    }


def numpy_order(x):
    """What order makes, by numpy, for which nan is the largest number and zeros are equal."""
    x = x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x
    rising = np.argsort(x, 0, kind="stable")
    falling = (len(x) - 1 - np.argsort(x[::-1], 0, kind="stable"))[::-1]
    return {
        "argsort": rising,
        "falling": falling,
        "sort": np.take_along_axis(x, rising, 0),
        "top": np.take_along_axis(x, falling[:5], 0),
        "top_indices": falling[:5],
        "argmax": x.argmax(0),
        "argmin": x.argmin(0),
        "max": x.max(0),
        "min": x.min(0),
        "least": x.min(),
    }


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float64", "int32", "int64", "uint32", "int8"]
)
def test_order_is_numpys(dtype):
    x = draw(dtype)
    assert_equal(run(order, None, x=([B, M], x)), numpy_order(x))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint32"])
@pytest.mark.parametrize("layout", ["batch:b", "batch:a, model:b"])
def test_order_is_numpys_on_a_mesh(dtype, layout):
    x = draw(dtype)
    assert_equal(run(order, layout, x=([B, M], x)), numpy_order(x))


@pytest.mark.parametrize("layout", [None, "batch:b"])
@pytest.mark.parametrize("at", [0, 7, slice(0, 8)])
def test_a_maximum_is_nan_where_an_element_is(layout, at):
    x = np.arange(1.0, 9.0, dtype=np.float32)
    x[at] = np.nan
    found = run(lambda x: {"max": nm.max(x), "min": nm.min(x)}, layout, x=([B], x))
    assert np.isnan(found["max"]) and np.isnan(found["min"])


def test_a_maximum_over_a_split_dimension_is_one_planned_collective():
    program = nm.trace(lambda x: nm.max(x, over=B), x=nm.spec([B, M], "bfloat16"))
    step = nm.compile(program, mesh=MESH, layout="batch:b", strict=True)
    assert [(one.kind, one.dtype) for one in step.plan.collectives] == [("AllReduce", "int32")]


@pytest.mark.parametrize(
    "x", [[np.inf, 1.0], [np.inf, np.inf], [np.inf, -np.inf], [-np.inf, -np.inf], [np.nan, np.inf]]
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_logsumexp_of_infinities(x, dtype):
    P = nm.Dimension("pair", 2)
    found = nm.evaluate(lambda x: nm.logsumexp(x), x=([P], np.array(x, dtype)))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, np.logaddexp(*np.array(x)).astype(dtype))


@pytest.mark.parametrize(("x", "y"), [(3.0, 0.0), (0.5, 0.0), (2.0, 1.5), (0.0, 0.0)])
def test_second_derivatives_of_a_power(x, y):
    def both(x, y):
        dx, dy = nm.grad(x**y, [x, y])
        return [*nm.grad(dx, [x, y]), *nm.grad(dy, [x, y])]

    mixed = 0.0 if x == 0 else x ** (y - 1) * (1 + y * np.log(x))
    expected = [
        0.0 if x == 0 else y * (y - 1) * x ** (y - 2),
        mixed,
        mixed,
        0.0 if x == 0 else x**y * np.log(x) ** 2,
    ]
    np.testing.assert_allclose(nm.evaluate(both, x=([], x), y=([], y)), expected, rtol=1e-5)


@pytest.mark.parametrize("layout", [None, "vocab:b", "batch:a"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32"])
def test_indices_of_any_integer_dtype(dtype, layout):
    large = nm.Dimension("large", 300)
    indices = np.array([0, 1, 7, 5, 100, 3, 2, 127], dtype)
    table = np.arange(8, dtype=np.float32) + 1

    def function(table, i):
        return {
            "gather": nm.gather(table, i, V),
            "scatter": nm.scatter_add(nm.ones([B]), i, large),
            "one_hot": nm.one_hot(i, large),
            "cumsum": nm.cumsum(i, B),
        }

    found = run(function, layout, table=([V], table), i=([B], indices))
    assert_equal(
        found,
        {
            "gather": [table[i] if i < 8 else 0.0 for i in indices],
            "scatter": np.bincount(indices, minlength=300),
            "one_hot": np.eye(300)[indices],
            "cumsum": np.cumsum(indices, dtype=dtype),
        },
    )


@pytest.mark.parametrize("layout", [None, "vocab:b", "batch:a, vocab:b"])
def test_a_gather_of_bools(layout):
    table = np.array([True, False, True, True, False, False, True, False])
    indices = np.array([0, 1, 7, 6, 9, 2, 2, -1], np.int32)
    found = run(
        lambda table, i: {"gather": nm.gather(table, i, V)},
        layout,
        table=([V], table),
        i=([B], indices),
    )
    assert_equal(found, {"gather": [0 <= i < 8 and table[i] for i in indices]})


@pytest.mark.parametrize("layout", [None, "batch:b"])
def test_floor_division_is_numpys(layout):
    numbers = np.array([0.0, np.inf, -np.inf, 1.0, -1.0, 2.5, 0.1, 7.0], np.float32)
    divisors = np.array([0.1, -7.0, np.inf, -np.inf], np.float32)
    function = lambda x, y: {"quotient": nm.transpose(x // y, [B, M])}
    found = run(function, layout, x=([B], numbers), y=([M], divisors))
    with np.errstate(all="ignore"):
        assert_equal(found, {"quotient": numbers[:, None] // divisors})


@pytest.mark.parametrize("layout", [None, "batch:b"])
@pytest.mark.parametrize("dtype", ["uint32", "uint8"])
def test_unsigned_integers_have_signs_and_squares(dtype, layout):
    x = np.array([0, 1, 2, 5, 7, 100, np.iinfo(dtype).max - 1, np.iinfo(dtype).max], dtype)
    function = lambda x: {"-": -x, "abs": abs(x), "sign": nm.sign(x), "square": nm.square(x)}
    expected = {"-": -x, "abs": x, "sign": np.sign(x), "square": x * x}
    assert_equal(run(function, layout, x=([B], x)), expected)


@pytest.mark.parametrize(("low", "high"), [(2, 1), (0.0, float("nan"))])
def test_bounds_that_exclude_everything_are_an_error(low, high):
    with pytest.raises(nm.NamedMeshError, match=f"clip: low={low} is above high={high}"):
        nm.trace(lambda x: nm.clip(x, low, high), x=nm.spec([B]))


@pytest.mark.parametrize("layout", [None, "batch:b"])
def test_whole_numbers_divided_by_zero_and_by_minus_one(layout):
    dtypes = ("int32", "int8", "uint8", "uint32")
    x = {f"x_{dtype}": draw(dtype) for dtype in dtypes}
    y = {f"y_{dtype}": np.roll(draw(dtype), 3) for dtype in dtypes}
    y["y_int32"][:4] = y["y_int8"][:4] = -1

    def divide(**given):
        results = {}
        for dtype in dtypes:
            a, b = given[f"x_{dtype}"], given[f"y_{dtype}"]
            results |= {f"{dtype}/quotient": a // b, f"{dtype}/rest": a % b}
        return results

    found = run(divide, layout, **{name: ([B, M], array) for name, array in (x | y).items()})
    with np.errstate(all="ignore"):
        for dtype in dtypes:
            a, b = x[f"x_{dtype}"], y[f"y_{dtype}"]
            assert (b == 0).any()
            assert_equal(found, {f"{dtype}/quotient": a // b, f"{dtype}/rest": a % b})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_inverse_error_function_of_narrow_numbers(dtype):
    x = np.array([[-1.0, -0.5, 0.25, 1.0]] * 8).astype(numpy_dtype(dtype))
    found = run(lambda x: {"y": nm.erfinv(x)}, None, x=([B, M], x))["y"].astype(np.float32)
    np.testing.assert_allclose(found[0], [-np.inf, -0.476936, 0.225312, np.inf], rtol=1e-2)


@pytest.mark.parametrize("layout", [None, "batch:b"])
def test_the_inverse_error_function_in_the_tails(layout):
    # Of what erf is 1 less 1, 2, 4 ... times the last bit of float32, to ten digits.
    expected = [3.8325068569, 3.7439211628, 3.6533224240, 3.5605697070]
    x = np.tile(1 - np.array([1, 2, 4, 8]) * 2.0**-24, (8, 1)).astype(np.float32)
    found = run(lambda x: {"y": nm.erfinv(x)}, layout, x=([B, M], x))["y"]
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)


@pytest.mark.parametrize("layout", [None, "batch:b"])
def test_bits_moved_by_more_places_than_there_are(layout):
    dtypes = ("int32", "int8", "uint8", "uint32")
    arrays = {}
    for dtype in dtypes:
        bits = 8 * np.dtype(dtype).itemsize
        places = [0, 1, bits - 1, bits, bits + 1, 100, -1 if dtype[0] == "i" else 2, 3]
        y = np.repeat(np.array(places, dtype), 4).reshape(8, 4)
        arrays |= {f"x_{dtype}": ([B, M], draw(dtype)), f"y_{dtype}": ([B, M], y)}

    def move(**given):
        pairs = {dtype: (given[f"x_{dtype}"], given[f"y_{dtype}"]) for dtype in dtypes}
        left = {f"{dtype}/left": nm.shift_left(*pair) for dtype, pair in pairs.items()}
        return left | {f"{dtype}/right": nm.shift_right(*pair) for dtype, pair in pairs.items()}

    found = run(move, layout, **arrays)
    for dtype in dtypes:
        bits, x, y = 8 * np.dtype(dtype).itemsize, arrays[f"x_{dtype}"][1], arrays[f"y_{dtype}"][1]
        exact = [  # in Python's integers, of any length
            [(int(a) << int(b), int(a) >> int(b)) if 0 <= b < bits else (0, -1 if a < 0 else 0)]
            for a, b in zip(x.ravel(), y.ravel(), strict=True)
        ]
        left, right = np.array(exact, object).reshape(8, 4, 2).transpose(2, 0, 1)
        assert_equal(found, {f"{dtype}/left": (left % 2**bits).astype(np.uint64).astype(dtype)})
        assert_equal(found, {f"{dtype}/right": right})


@pytest.mark.parametrize("layout", [None, "batch:b"])
def test_means_of_float16_do_not_overflow(layout):
    N = nm.Dimension("many", 9000)
    x = np.linspace(0, 400, 72000, dtype=np.float16).reshape(8, 9000)

    def spread(x):
        own = x < 200.0
        return {
            "mean": nm.mean(x), "rows": nm.mean(x, over=N), "std": nm.std(x),
            "some": nm.mean(x, where=own), "spread": nm.std(x, where=own),
            "ones": nm.mean(x * 0 + 1),
        }  # fmt: skip

    found = run(spread, layout, x=([B, N], x))
    wide = x.astype(np.float64)
    some = wide[wide < 200]
    expected = {
        "mean": wide.mean(), "rows": wide.mean(1), "std": wide.std(),
        "some": some.mean(), "spread": some.std(), "ones": 1.0,
    }  # fmt: skip
    for name, value in expected.items():
        assert found[name].dtype == np.float16
        np.testing.assert_allclose(found[name].astype(np.float64), value, rtol=2e-3, err_msg=name)
