import math
import subprocess
import sys

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
    moved_bytes,
    uniform,
)

B, S, M = nm.dims("batch=4 seq=3 model=10")

erf = np.vectorize(math.erf)


def inverse_erf(y):
    """By Newton's method on erf."""
    x = np.zeros_like(y)
    for _ in range(60):
        x = x - (erf(x) - y) / (2 / math.sqrt(math.pi) * np.exp(-(x**2)))
    return x


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


PAIR = ("x", "v")

CASES = {
    "add": Case(nm.add, lambda x, v: x + v, PAIR),
    "subtract": Case(nm.subtract, lambda x, v: x - v, PAIR),
    "subtract_reversed": Case(lambda x, v: v - x, lambda x, v: v - x, PAIR),
    "multiply": Case(nm.multiply, lambda x, v: x * v, PAIR),
    "divide": Case(nm.divide, lambda x, v: x / v, PAIR),
    "floor_divide": Case(nm.floor_divide, lambda x, v: np.floor(x / v), PAIR),
    "remainder": Case(nm.remainder, lambda x, v: x - v * np.floor(x / v), PAIR),
    "power": Case(nm.power, lambda p, v: p**v, ("p", "v")),
    "power_constant": Case(lambda x: x**3.0, lambda x: x**3),
    "power_of_constant": Case(lambda x: 2.0**x, lambda x: 2.0**x),
    "maximum": Case(nm.maximum, np.maximum, PAIR),
    "minimum": Case(nm.minimum, np.minimum, PAIR),
    "negative": Case(nm.negative, lambda x: -x),
    "absolute": Case(nm.absolute, np.abs),
    "sign": Case(nm.sign, np.sign),
    "square": Case(nm.square, lambda x: x * x),
    "exp": Case(nm.exp, np.exp),
    "log": Case(nm.log, np.log, "p"),
    "sqrt": Case(nm.sqrt, np.sqrt, "p"),
    "rsqrt": Case(nm.rsqrt, lambda p: p**-0.5, "p"),
    "reciprocal": Case(nm.reciprocal, lambda p: 1 / p, "p"),
    "sin": Case(nm.sin, np.sin),
    "cos": Case(nm.cos, np.cos),
    "tanh": Case(nm.tanh, np.tanh),
    "sigmoid": Case(nm.sigmoid, sigmoid),
    "softplus": Case(nm.softplus, lambda x: np.log1p(np.exp(x))),
    "erf": Case(nm.erf, erf),
    "erfinv": Case(nm.erfinv, inverse_erf, "u"),
    "relu": Case(nm.relu, lambda x: np.maximum(x, 0)),
    "gelu": Case(nm.gelu, lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2)))),
    "swish": Case(nm.swish, lambda x: x * sigmoid(x)),
    "leaky_relu": Case(nm.leaky_relu, lambda x: np.where(x > 0, x, 0.2 * x)),
    "leaky_relu_slope": Case(
        lambda x: nm.leaky_relu(x, 0.5), lambda x: np.where(x > 0, x, 0.5 * x)
    ),
    "elu": Case(nm.elu, lambda x: np.where(x > 0, x, np.exp(x) - 1)),
    "log1p": Case(nm.log1p, np.log1p, "p"),
    "expm1": Case(nm.expm1, np.expm1),
    "floor": Case(nm.floor, np.floor),
    "ceil": Case(nm.ceil, np.ceil),
    "round": Case(nm.round, np.round),
    "clip": Case(lambda x: nm.clip(x, -0.9, 1.1), lambda x: np.clip(x, -0.9, 1.1)),
    "clip_low": Case(lambda x: nm.clip(x, low=0.25), lambda x: np.maximum(x, 0.25)),
    "where": Case(
        lambda x, v: nm.where(x > v, x * 2.0, v), lambda x, v: np.where(x > v, x * 2, v), PAIR
    ),
    "stop_gradient": Case(lambda x: nm.stop_gradient(x) * 1.0, lambda x: x, wrt=()),
    "broadcast_outer": Case(lambda c, w: c * w, lambda c, w: w[:, :, None] * c, ("c", "w")),
    "broadcast_inner": Case(lambda w, x: w + x, lambda w, x: x + w[None], ("w", "x")),
    "cast": Case(lambda x: nm.cast(x, "int32"), lambda x: np.trunc(x).astype(np.int32), wrt=()),
    "is_finite": Case(
        lambda x: nm.is_finite(1.0 / (x - x)), lambda x: np.zeros(x.shape, bool), wrt=()
    ),
    "equal": Case(lambda i: nm.equal(i, 2), lambda i: i == 2, "i", ()),
    "not_equal": Case(lambda i: nm.not_equal(i, 2), lambda i: i != 2, "i", ()),
    "less": Case(lambda x, v: x < v, lambda x, v: x < v, PAIR, ()),
    "less_equal": Case(lambda i: i <= 2, lambda i: i <= 2, "i", ()),
    "greater": Case(lambda x, v: x > v, lambda x, v: x > v, PAIR, ()),
    "greater_equal": Case(lambda i: i >= 2, lambda i: i >= 2, "i", ()),
    "logical_and": Case(lambda i: (i > 1) & (i < 4), lambda i: (i > 1) & (i < 4), "i", ()),
    "logical_or": Case(lambda i: (i < 1) | (i > 3), lambda i: (i < 1) | (i > 3), "i", ()),
    "logical_xor": Case(lambda i: (i > 1) ^ (i > 3), lambda i: (i > 1) ^ (i > 3), "i", ()),
    "logical_not": Case(lambda i: ~(i > 1), lambda i: i <= 1, "i", ()),
    "int_add": Case(lambda i: 3 + i * 2, lambda i: 3 + 2 * i, "i", ()),
    "int_divide": Case(lambda i: (i - 3) // 2, lambda i: (i - 3) // 2, "i", ()),
    "int_remainder": Case(lambda i: (i - 3) % 2, lambda i: (i - 3) % 2, "i", ()),
    "int_absolute": Case(lambda i: abs(i - 3), lambda i: abs(i - 3), "i", ()),
    "int_maximum": Case(lambda i: nm.clip(i, 1, 3), lambda i: np.clip(i, 1, 3), "i", ()),
    "bitwise_and": Case(lambda i: nm.bitwise_and(i, 6), lambda i: i & 6, "i", ()),
    "bitwise_or": Case(lambda i: nm.bitwise_or(i, 9), lambda i: i | 9, "i", ()),
    "bitwise_xor": Case(lambda i: nm.bitwise_xor(i, -3), lambda i: i ^ -3, "i", ()),
    "bitwise_not": Case(nm.bitwise_not, lambda i: ~i, "i", ()),
    "shift_left": Case(lambda i: nm.shift_left(i, 2), lambda i: i << 2, "i", ()),
    "shift_right": Case(lambda i: nm.shift_right(i - 3, 1), lambda i: (i - 3) >> 1, "i", ()),
    "int_where": Case(lambda i: nm.where(i > 2, i, -1), lambda i: np.where(i > 2, i, -1), "i", ()),
}

SPECS = {
    "x": nm.spec([B, S, M]),
    "v": nm.spec([B, S, M]),
    "p": nm.spec([B, S, M]),
    "u": nm.spec([B, S, M]),
    "w": nm.spec([S, M]),
    "c": nm.spec([B]),
    "i": nm.spec([B, S, M], "int32"),
}


def away_from(values, points, gap=0.02):
    """The values moved off the points where a derivative jumps."""
    for point in points:
        near = np.abs(values - point) < gap
        values = np.where(near, point + np.where(values >= point, gap, -gap), values)
    return values.astype(np.float32)


@pytest.fixture(scope="module")
def arrays():
    v = away_from(uniform(2, 4, 3, 10), [0, 1], 0.3)
    x = away_from(uniform(1, 4, 3, 10), [-2, -1.5, -1, -0.9, -0.5, 0, 0.25, 0.5, 1, 1.1, 1.5, 2])
    x = np.where(np.abs(x - v) < 0.02, v + 0.03, x).astype(np.float32)
    ratio = x / v
    x = np.where(np.abs(ratio - np.round(ratio)) < 0.01, x + 0.02 * v, x).astype(np.float32)
    return {
        "x": x,
        "v": v,
        "p": uniform(3, 4, 3, 10, low=0.3, high=3.0),
        "u": uniform(4, 4, 3, 10, low=-0.9, high=0.9),
        "w": uniform(5, 3, 10),
        "c": uniform(6, 4),
        "i": np.random.default_rng(7).integers(0, 6, (4, 3, 10)).astype(np.int32),
    }


def test_values_and_gradients(arrays):
    program = nm.trace(function_of(CASES), **SPECS)
    assert_same(evaluated(program, arrays), expected_of(CASES, arrays), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "layout, divides", [("batch:b, model:a", True), ("batch:a, model:b", False)]
)
def test_sharded(arrays, layout, divides):
    step = assert_sharded_same(function_of(CASES), SPECS, arrays, layout)
    if divides:
        assert moved_bytes(step.plan, "forward") == 0


def test_gradients_where_the_derivative_jumps():
    """Ties and zeros: the same choices as TensorFlow and JAX make, and never a NaN."""

    def jumps(x):
        made = {
            "maximum": nm.maximum(x, 0.0),
            "minimum": nm.minimum(x, 0.0),
            "relu": nm.relu(x),
            "absolute": nm.absolute(x),
            "power_zero": nm.power(x, 0.0),
            "power_one": nm.power(x, 1.0),
            "zero_base": nm.power(0.0, nm.square(x) + 1.0),
            "where": nm.where(x > 0, nm.square(x), x * 3.0),
        }
        return {name: nm.grad(nm.sum(y), x) for name, y in made.items()}

    x = np.array([-1.0, 0.0, 2.0], np.float32)
    found = evaluated(nm.trace(jumps, x=nm.spec([S])), {"x": x})
    expected = {
        "maximum": [0, 1, 1],
        "minimum": [1, 1, 0],
        "relu": [0, 0, 1],
        "absolute": [-1, 0, 1],
        "power_zero": [0, 0, 0],
        "power_one": [1, 1, 1],
        "zero_base": [0, 0, 0],
        "where": [3, 3, 4],
    }
    assert_same(found, {name: np.array(value, np.float32) for name, value in expected.items()})


def test_stop_gradient_and_whole_numbers_carry_no_gradient():
    def still(x):
        y = nm.stop_gradient(x) * x + nm.cast(nm.cast(x, "int32"), "float32") * 5.0
        return nm.grad(nm.sum(y), x)

    x = uniform(8, 3)
    assert_same({"dx": evaluated(nm.trace(still, x=nm.spec([S])), {"x": x})}, {"dx": x})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_cast_and_its_gradient(dtype):
    def there_and_back(x):
        y = nm.cast(nm.cast(x, dtype) * 2.0, "float32")
        return y, nm.grad(nm.sum(y), x)

    x = np.array([0.5, -1.25, 3.0], np.float32)
    y, dx = evaluated(nm.trace(there_and_back, x=nm.spec([S])), {"x": x})
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_array_equal(dx, np.full(3, 2.0))


def test_erf_is_exact_to_float32():
    points = nm.Dimension("points", 2001)
    x = np.linspace(-6, 6, 2001).astype(np.float32)
    found = evaluated(nm.trace(nm.erf, nm.spec([points])), {"x": x})
    np.testing.assert_allclose(found, erf(x.astype(np.float64)), rtol=5e-7, atol=1e-12)


def test_constants():
    def constants():
        return {
            "full": nm.full([B, S], 2.5),
            "zeros": nm.zeros([S], "int32"),
            "ones": nm.ones([B], "bool"),
            "range": nm.range(M),
            "range_float": nm.range(S, "float32"),
            "scalar": nm.full([], -1),
        }

    expected = {
        "full": np.full((4, 3), 2.5, np.float32),
        "zeros": np.zeros(3, np.int32),
        "ones": np.ones(4, bool),
        "range": np.arange(10, dtype=np.int32),
        "range_float": np.arange(3, dtype=np.float32),
        "scalar": np.float32(-1),
    }
    assert_same(evaluated(nm.trace(constants), {}), expected)
    assert_sharded_same(constants, {}, {}, "batch:a, model:b")


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x, i: x + i, "dtypes"),
        (lambda x, i: x & x, "bool"),
        (lambda x, i: nm.exp(i), "float"),
        (lambda x, i: i + 0.5, "number 0.5"),
        (lambda x, i: nm.where(x, x, x), "bool condition"),
        (lambda x, i: x if x > 0 else -x, "while tracing"),
        (lambda x, i: x + nm.zeros([S.resized(5)]), "size 3 in x and 5"),
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=nm.spec([S]), i=nm.spec([S], "int32"))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * np.float32(2),
        lambda x: np.float32(2) * x,
        lambda x: np.array(2.0) * x,
        lambda x: np.int64(2) * x,
        lambda x: nm.where(np.float64(0) < x, x, x) * np.int32(2),  # pyright: ignore
        lambda x: x * True + x,
    ],
)
def test_numbers_of_numpy_are_numbers(function):
    x = uniform(1, 3)
    made = nm.trace(function, x=nm.spec([S])).evaluate({}, x=x)[1]
    np.testing.assert_array_equal(made, 2 * x)


def test_a_tensor_is_equal_to_itself_and_a_key_of_dicts():
    def function(x):
        y = x * 2.0
        assert (x == x, x != x) == (True, False)
        return {y: 1, x: 2}[x] * y

    x = uniform(1, 3)
    np.testing.assert_array_equal(nm.trace(function, x=nm.spec([S])).evaluate({}, x=x)[1], 4 * x)


def test_operators_need_no_other_import():
    program = "import namedmesh as nm; M = nm.Dimension('model', 2)\n"
    program += "print(nm.trace(lambda x: x**2.0 + 1.0 > x, x=nm.spec([M])).outputs[0].dtype)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout == "bool\n", run.stderr


@pytest.mark.parametrize("layout", ["", "batch:a", "batch:a, model:b"])
def test_compute_once_keeps_the_value_and_the_gradient_behind_a_barrier(layout):
    batch, model = nm.dims("batch=4 model=6")

    def unit(x, once):
        size = nm.sqrt(nm.sum(x * x, over=model))
        y = x / (nm.compute_once(size) if once else size)
        return y, nm.grad(nm.sum(nm.sin(y)), x)

    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    results = []
    for once in (True, False):
        program = nm.trace(lambda x, once=once: unit(x, once), x=nm.spec([batch, model]))
        artifact = nm.export(program, nm.Mesh(a=2, b=2), layout)
        assert (b"optimization_barrier" in artifact.step_module) == once
        results.append(nm.runtime.Executable(artifact, strict=True)(None, x=x)[1])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
