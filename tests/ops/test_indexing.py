"""Reading and changing elements by index, against NumPy, also where what is indexed is split."""

import numpy as np
import pytest

import namedmesh as nm
from tests.checks import Case, assert_same, assert_sharded_same, evaluated, expected_of, function_of
from tests.checks import uniform as numbers

B, H, W, K = nm.dims("batch=4 height=8 width=6 chosen=3")
ARRAYS = {
    "x": numbers(0, 4, 8, 6),
    "v": numbers(1, 3, 6),
    "i": np.array([7, 0, 7], "int32"),
    "j": np.array([1, 2, 1], "int32"),
    "b": np.array([1, 0, 7, 3], "int32"),
    "out": np.array([-1, 8, 2], "int32"),
}
SPECS = {
    "x": nm.spec([B, H, W]),
    "v": nm.spec([K, W]),
    **{name: nm.spec([K], "int32") for name in ("i", "j", "out")},
    "b": nm.spec([B], "int32"),
}


def changed(function, *index):
    """Changes a copy by a loop over the values, the last of several for one place last."""

    def change(x, value):
        x = x.copy()
        function(x, index, value)
        return x

    return change


def setting(x, index, value):
    x[index] = value


def one_by_one(function):
    """Applies a function of two numbers at every index in turn."""

    def change(x, i, v):
        x = x.copy()
        for n, at in enumerate(i.astype(int)):
            if 0 <= at < x.shape[1]:
                x[:, at] = function(x[:, at], v[n])
        return x

    return change


def two_by_two(x, i, j, v):
    x = x.copy()
    for n in range(len(i)):
        x[:, int(i[n]), int(j[n])] += v[n, 0]
    return x


def whole(*arrays):
    return (array.astype(int) for array in arrays)


def front(values, size):
    """The first few, and zeros."""
    return np.concatenate([values, np.zeros(size)])[:size]


SOME = nm.dims("height=2")[0]
CASES = {
    "one": Case(lambda x: x[H, 3], lambda x: x[:, 3]),
    "take": Case(lambda x: nm.take(x, W, -1), lambda x: x[:, :, -1]),
    "two": Case(lambda x: x[H, -1, W, 2], lambda x: x[:, -1, 2]),
    "row": Case(lambda x: x[H, 1:7:2], lambda x: x[:, 1:7:2]),
    "backwards": Case(
        lambda x: x[{H: np.s_[::-1], W: np.s_[4:0:-2]}], lambda x: x[:, ::-1, 4:0:-2]
    ),
    "list": Case(lambda x: x[H, [5, 1]], lambda x: x[:, [5, 1]]),
    "tensor": Case(lambda x, i: x[H, i], lambda x, i: x[:, i.astype(int)], ("x", "i"), ("x",)),
    "tensors": Case(
        lambda x, i, j: x[{H: i, W: j}],
        lambda x, i, j: x[(slice(None), *whole(i, j))],
        ("x", "i", "j"),
        ("x",),
    ),
    "shuffled": Case(
        lambda x: x[H, nm.constant([7, 0, 2, 1, 4, 3, 6, 5], [H])],
        lambda x: x[:, [7, 0, 2, 1, 4, 3, 6, 5]],
    ),
    "equal constants": Case(
        lambda x: (
            x.at[H, 1].set(0.0)
            + nm.rename(x, H, nm.Dimension("h", 8)).sum(nm.Dimension("h", 8)).at[W, 1].set(0.0)
        ),
        lambda x: (
            changed(setting, slice(None), 1)(x, 0.0)
            + changed(setting, slice(None), slice(None), 1)(x.sum(1, keepdims=True), 0.0)
        ),
    ),
    "outside": Case(
        lambda x, i: x[H, i],
        lambda x, i: np.stack([x[:, int(n)] if 0 <= n < 8 else 0 * x[:, 0] for n in i], 1),
        ("x", "out"),
        ("x",),
    ),
    "of each": Case(
        lambda x, b: x[H, b], lambda x, b: x[np.arange(4), b.astype(int)], ("x", "b"), ("x",)
    ),
    "set one": Case(
        lambda x: x.at[H, 3].set(7.0), lambda x: changed(setting, slice(None), 3)(x, 7.0)
    ),
    "set row": Case(
        lambda x: x.at[H, 5:1:-2, W, 2].set(nm.constant([1.0, 2.0], [SOME])),
        lambda x: changed(setting, slice(None), slice(5, 1, -2), 2)(x, [1.0, 2.0]),
    ),
    "add row": Case(
        lambda x, v: x.at[H, 2:5].add(nm.rename(v, K, H.resized(3))),
        lambda x, v: np.concatenate([x[:, :2], x[:, 2:5] + v, x[:, 5:]], 1),
        ("x", "v"),
    ),
    "set": Case(
        lambda x, i, v: x.at[H, i].set(v),
        one_by_one(lambda old, new: new),
        ("x", "i", "v"),
        ("x", "v"),
    ),
    "set outside": Case(
        lambda x, i, v: x.at[H, i].set(v),
        one_by_one(lambda old, new: new),
        ("x", "out", "v"),
        ("x", "v"),
    ),
    "set of each": Case(
        lambda x, b: x.at[H, b].set(0.5),
        lambda x, b: changed(setting, np.arange(4), b.astype(int))(x, 0.5),
        ("x", "b"),
        ("x",),
    ),
    "add": Case(
        lambda x, i, v: x.at[H, i].add(v),
        one_by_one(lambda old, new: old + new),
        ("x", "i", "v"),
        ("x", "v"),
    ),
    "add at two": Case(
        lambda x, i, j, v: x.at[{H: i, W: j}].add(v[W, 0]),
        two_by_two,
        ("x", "i", "j", "v"),
        ("x", "v"),
    ),
    "max": Case(
        lambda x, i, v: x.at[H, i].max(v), one_by_one(np.maximum), ("x", "i", "v"), ("x", "v")
    ),
    "min": Case(
        lambda x, i, v: x.at[H, i].min(v), one_by_one(np.minimum), ("x", "i", "v"), ("x", "v")
    ),
    "compress": Case(
        lambda x: nm.compress(x, x > 0.3, H, K),
        lambda x: np.stack(
            [[front(column[column > 0.3], 3) for column in image.T] for image in x]
        ).transpose(0, 2, 1),
    ),
    "compress rows": Case(
        lambda x: nm.compress(x, nm.range(H) % 3 < 1, H, H.resized(4)),
        lambda x: np.concatenate([x[:, ::3], 0 * x[:, :1]], 1),
    ),
    "constant": Case(
        lambda x: x * nm.constant(ARRAYS["x"][0], [H, W]), lambda x: x * ARRAYS["x"][0]
    ),
}


def test_against_numpy():
    found = evaluated(nm.trace(function_of(CASES), **SPECS), ARRAYS)
    assert_same(found, expected_of(CASES, ARRAYS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["height:a, batch:b", "height:b, width:a", "height:a+b"])
def test_sharded(layout):
    assert_sharded_same(function_of(CASES), SPECS, ARRAYS, layout)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "bfloat16"])
def test_other_dtypes(dtype):
    """Setting keeps the dtype, bool included."""

    def change(x):
        return {
            "one": x.at[H, 3].set(nm.ones([], dtype)),
            "many": x.at[H, nm.constant([1, 2], [K.resized(2)])].set(nm.ones([], dtype)),
            "read": x[H, 3],
        }

    x = np.arange(8) % 2
    found = nm.evaluate(lambda x: change(nm.cast(x, dtype)), x=([H], x.astype("int32")))
    one, many = x.copy(), x.copy()
    one[3], many[1:3] = 1, 1
    assert_same(
        {name: np.asarray(array).astype("int32") for name, array in found.items()},
        {"one": one, "many": many, "read": x[3]},
    )


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: x[3], "cannot be indexed by position"),
        (lambda x: x[H, 9], "9 is outside height=8"),
        (lambda x: x[H, 1.5], "does not index height=8"),
        (lambda x: x[H, x > 0], "is not known while tracing"),
        (lambda x: x[H, x], "not integers"),
        (lambda x: x[H, 3:3], "selects nothing"),
        (lambda x: x[K, 1], "no dimension chosen"),
        (lambda x: x[H, 1, H, 2], "indexed twice"),
        (lambda x: x.at[H, 1].set(x), "has not"),
        (lambda x: x.at[H, 1].set(nm.zeros([W], "int32")), "dtype"),
        (lambda x: nm.constant([[1, 2], [3]], [H]), "rows of equal lengths"),
        (lambda x: nm.constant([1, 2], [H]), "does not have the dimensions"),
        (lambda x: nm.constant(["a"] * 8, [H]), "no numbers"),
        (lambda x: nm.constant([1.5] * 8, [H], "int32"), "not every number"),
        (lambda x: nm.constant(x), "a tensor already"),
        (lambda x: nm.compress(x, x, H, K), "bool"),
        (lambda x: nm.compress(x, x > 0, H, W), "has width already"),
        (lambda x: nm.compress(x, nm.ones([H, K], "bool"), H, K), "no dimension chosen"),
    ],
)
def test_errors(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=nm.spec([B, H, W]))


def test_methods_are_the_functions():
    """What a method makes, its function makes of the same arguments."""
    x = nm.spec([B, H, W])
    pairs = {
        "sum": lambda x: x.sum(H),
        "mean": lambda x: x.mean([H, W], where=x > 0),
        "max": lambda x: x.max(),
        "min": lambda x: x.min(B),
        "prod": lambda x: x.prod(W),
        "var": lambda x: x.var(W, correction=1),
        "std": lambda x: x.std(W),
        "argmax": lambda x: x.argmax(H),
        "argmin": lambda x: x.argmin(H),
        "cumsum": lambda x: x.cumsum(H, reverse=True),
        "cast": lambda x: x.cast("int32"),
        "rename": lambda x: x.rename(H, nm.Dimension("tall", 8)),
        "reshape": lambda x: x.reshape([H, W], nm.Dimension("pixel", 48)),
        "transpose": lambda x: x.transpose([W, H, B]),
        "broadcast": lambda x: x.broadcast([K, B, H, W]),
        "any": lambda x: (x > 1).any(H),
        "all": lambda x: (x > -1).all([B, W]),
    }
    array = ARRAYS["x"]
    found = nm.evaluate(
        lambda x: {name: make(x) for name, make in pairs.items()}, x=(x.shape, array)
    )
    expected = {
        "sum": array.sum(1),
        "mean": (array * (array > 0)).sum((1, 2)) / (array > 0).sum((1, 2)),
        "max": array.max(),
        "min": array.min(0),
        "prod": array.prod(2),
        "var": array.var(2, ddof=1),
        "std": array.std(2),
        "argmax": array.argmax(1),
        "argmin": array.argmin(1),
        "cumsum": array[:, ::-1].cumsum(1)[:, ::-1],
        "cast": array.astype("int32"),
        "rename": array,
        "reshape": array.reshape(4, 48),
        "transpose": array.transpose(2, 1, 0),
        "broadcast": np.broadcast_to(array, (3, 4, 8, 6)),
        "any": (array > 1).any(1),
        "all": (array > -1).all((0, 2)),
    }
    assert_same(found, expected)


def test_signs_of_logic_are_those_of_bits_for_whole_numbers():
    array = np.arange(-4, 4, dtype="int32")
    signs = {
        "and": lambda x: x & 6,
        "or": lambda x: 3 | x,
        "xor": lambda x: x ^ 5,
        "not": lambda x: ~x,
        "numpy": lambda x: np.int32(6) & x,
    }
    found = nm.evaluate(lambda x: {name: make(x) for name, make in signs.items()}, x=([H], array))
    assert_same(found, {name: make(array) for name, make in signs.items()})


def test_equal_constants_on_different_axes():
    """XLA merges constants of equal values; each lies where its own reader does all the same."""
    N, M = nm.dims("rows=8 columns=8")
    mask = np.arange(8) % 3 < 1
    x = numbers(5, 8, 8)

    def both(x):
        first = nm.where(nm.constant(mask, [N]), x, 0.0)
        return first + nm.where(nm.constant(mask, [M]), x, 1.0)

    step = assert_sharded_same(both, {"x": nm.spec([N, M])}, {"x": x}, "rows:a, columns:b")
    assert not step.plan.collectives
