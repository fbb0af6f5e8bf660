"""Casts between all dtypes, beyond the range of the result too: one answer, whoever computes it."""

import ml_dtypes
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.ir.tensor import COMPLEX, FLOATS, FLOATS8
from namedmesh.ir.tensor import DTYPES as ALL_DTYPES

NUMBERS = {
    "float": [
        0.0, -0.0, 0.4, -0.6, 1.5, 2.5, -2.5, 126.9, 127.9, 128.0, -128.9, -129.0, 254.9, 255.9,
        256.0,
        300.9, -1.0, -300.9, 65504.0, 65520.0, 1e5, 2147483520.0, 2147483647.0, 2147483648.0,
        -2147483648.0, -2147483904.0, 4294967040.0, 4294967296.0, 1e10, 9.2e18, 2.0**63, -(2.0**63),
        -1e19, 1e38, 3.4e38, np.inf, -np.inf, np.nan, 6e-8,
    ],
    "int": [
        0, 1, -1, 44, 127, 128, -128, -129, 255, 256, 300, -300, 2**15, 65535, 2**24 + 1, 2**31 - 1,
        2**31, -(2**31), -(2**31) - 1, 2**32 - 1, 2**32, 2**53 + 1, 2**62 + 1, 2**63 - 1, -(2**63),
    ],
}  # fmt: skip
# Complex numbers are only cast to and from floats: tests/ops/test_fourier.py.
DTYPES = [name for name in ALL_DTYPES if name not in COMPLEX]
ALL_FLOATS = (*FLOATS, *FLOATS8)
DTYPE = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in DTYPES}


def numbers(dtype: str) -> np.ndarray:
    """Numbers of a dtype, at and around the limits of all others."""
    with np.errstate(all="ignore"):
        if dtype == "bool":
            return np.array([False, True])
        if dtype in ALL_FLOATS:
            return np.array(NUMBERS["float"]).astype(DTYPE[dtype])
        limits = np.iinfo(dtype)
        whole = [one for one in NUMBERS["int"] if limits.min <= one <= limits.max]
        return np.array(whole, DTYPE[dtype])


def expected(x: np.ndarray, dtype: str) -> np.ndarray:
    """The documented answer, number by number with Python's exact integers."""
    if dtype in ALL_FLOATS:
        with np.errstate(all="ignore"):
            return x.astype(DTYPE[dtype])
    if dtype == "bool":
        return np.array([bool(one != 0) for one in x.tolist()])
    limits = np.iinfo(dtype)
    results = []
    for one in x.astype(np.float64).tolist() if x.dtype.name in ALL_FLOATS else x.tolist():
        if isinstance(one, float):
            one = 0 if np.isnan(one) else limits.max if one > limits.max else one
            one = limits.min if one < limits.min else int(one)
        results.append((int(one) - limits.min) % 2 ** (8 * DTYPE[dtype].itemsize) + limits.min)
    return np.array(results, DTYPE[dtype])


def cast_to_all(dtypes):
    return lambda **x: {
        name: {dtype: nm.cast(one, dtype) for dtype in dtypes} for name, one in x.items()
    }


NARROW = [dtype for dtype in DTYPES if DTYPE[dtype].itemsize < 8]  # which devices compute in
INPUTS = {f"from_{dtype}": numbers(dtype) for dtype in DTYPES}
SPECS = {
    name: nm.spec([nm.Dimension(f"count_{name}", array.size)], name.removeprefix("from_"))
    for name, array in INPUTS.items()
}


@pytest.fixture(scope="module")
def results():
    _, evaluated = nm.trace(cast_to_all(DTYPES), **SPECS).evaluate({}, **INPUTS)
    narrow = [f"from_{dtype}" for dtype in NARROW]
    program = nm.trace(cast_to_all(NARROW), **{name: SPECS[name] for name in narrow})
    step = nm.compile(program, mesh=nm.Mesh(all=1))
    _, compiled = step(None, **{name: INPUTS[name] for name in narrow})
    return {"evaluated": evaluated, "compiled": compiled}


PAIRS = [(one, other, "evaluated") for one in DTYPES for other in DTYPES]
PAIRS += [(one, other, "compiled") for one in NARROW for other in NARROW]


@pytest.mark.parametrize("source, to, by", PAIRS)
def test_every_pair(results, source, to, by):
    x, result = INPUTS[f"from_{source}"], np.asarray(results[by][f"from_{source}"][to])
    wanted = expected(x, to)
    assert result.dtype == wanted.dtype
    different = [
        (one.item(), made.item(), right.item())
        for one, made, right in zip(x, result, wanted, strict=True)
        if made != right and not (np.isnan(made) and np.isnan(right))
    ]
    assert not different, f"(number, {by}, expected): {different}"


@pytest.mark.parametrize(
    "dtype, values",
    [
        ("int32", np.array([1, 2**31])),
        ("int32", np.array([-(2**31) - 1, 0])),
        ("int32", [2**70, 1]),
        ("uint8", [300, 0]),
        ("uint8", [-1, 0]),
        ("int8", np.array([200, 0])),
        ("uint32", np.array([-1, 0])),
        ("float32", np.array([1e300, 1.0])),
        ("float16", np.array([70000.0, 1.0])),
        ("float16", np.array([70000, 1])),
        ("bfloat16", np.array([1e39, 1.0])),
    ],
)
def test_an_input_that_does_not_fit_is_an_error(dtype, values):
    program = nm.trace(lambda x: nm.sum(x), x=nm.spec(nm.dims("model=2"), dtype))
    with pytest.raises(nm.NamedMeshError, match=f"do not fit {dtype}") as error:
        program.evaluate({}, x=values)
    assert "give numbers from" in error.value.fix


def test_numbers_that_fit_are_converted():
    program = nm.trace(lambda x: x, x=nm.spec(nm.dims("model=2"), "float32"))
    for values in (
        [1, 2],
        np.array([1, 2]),
        np.array([1.0, np.inf]),
        np.array([1.5, -np.inf], np.float16),
    ):
        np.testing.assert_array_equal(program.evaluate({}, x=values)[1], values)
    M = nm.Dimension("model", 2)
    assert nm.evaluate(lambda x: x + 1, x=([M], np.array([2**31 - 2, -5]))).tolist() == [
        2**31 - 1,
        -4,
    ]
    for wrong in (np.array([2**31, 0]), np.array([0, -(2**40)])):
        with pytest.raises(nm.NamedMeshError, match="input x has numbers from"):
            nm.evaluate(lambda x: x, x=([M], wrong))
    with pytest.raises(nm.NamedMeshError, match="does not convert to int32"):
        nm.trace(lambda x: x, x=nm.spec([M], "int32")).evaluate({}, x=np.array([1.0, 2.0]))
