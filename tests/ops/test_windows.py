import numpy as np
import pytest

import namedmesh as nm
from tests.checks import (
    MESH,
    Case,
    assert_same,
    assert_sharded_same,
    evaluated,
    expected_of,
    function_of,
    moved_bytes,
    uniform,
)

B, S, M = nm.dims("batch=4 seq=8 model=10")


def window(x, start, size):
    start = int(np.clip(start, 0, x.shape[1] - size))
    return x[:, start : start + size]


def updated(x, u, start):
    start = int(np.clip(start, 0, x.shape[1] - u.shape[1]))
    made = x.copy()
    made[:, start : start + u.shape[1]] = u
    return made


def shifted(x, by, value=0.0):
    made = np.full(x.shape, value)
    made[:, max(by, 0) : x.shape[1] + min(by, 0)] = x[:, max(-by, 0) : x.shape[1] - max(by, 0)]
    return made


def padded(x, low, high, value=0.0):
    return np.pad(x, [(0, 0), (0, 0), (low, high)], constant_values=value)


CASES = {
    "slice": Case(lambda x: nm.slice(x, S, 2, 5), lambda x: x[:, 2:7]),
    "slice_strided": Case(lambda x: nm.slice(x, S, 1, 3, 3), lambda x: x[:, 1::3]),
    "slice_strided_end": Case(lambda x: nm.slice(x, M, 0, 5, 2), lambda x: x[:, :, ::2]),
    "slice_one": Case(lambda x: nm.slice(x, B, 3, 1), lambda x: x[3:]),
    "pad": Case(lambda x: nm.pad(x, M, 2, 1), lambda x: padded(x, 2, 1)),
    "pad_value": Case(lambda x: nm.pad(x, M, high=3, value=-1.5), lambda x: padded(x, 0, 3, -1.5)),
    "pad_first": Case(
        lambda x: nm.pad(x, S, 1), lambda x: np.concatenate([np.zeros((4, 1, 10)), x], 1)
    ),
    "pad_int": Case(
        lambda i: nm.pad(i, S, 1, 2, 7),
        lambda i: np.pad(i, [(0, 0), (1, 2)], constant_values=7),
        "i",
        (),
    ),
    "pad_bool": Case(
        lambda i: nm.pad(i > 0, S, 1, 2), lambda i: np.pad(i > 0, [(0, 0), (1, 2)]), "i", ()
    ),
    "reverse": Case(lambda x: nm.reverse(x, S), lambda x: x[:, ::-1]),
    "reverse_model": Case(lambda x: nm.reverse(x, M), lambda x: x[:, :, ::-1]),
    "roll": Case(lambda x: nm.roll(x, S, 3), lambda x: np.roll(x, 3, 1)),
    "roll_back": Case(lambda x: nm.roll(x, M, -13), lambda x: np.roll(x, -13, 2)),
    "roll_round": Case(lambda x: nm.roll(x, S, 8) * 1.0, lambda x: x),
    "shift": Case(lambda x: nm.shift(x, S, 2), lambda x: shifted(x, 2)),
    "shift_back": Case(lambda x: nm.shift(x, S, -3, value=1.5), lambda x: shifted(x, -3, 1.5)),
    "shift_not": Case(lambda x: nm.shift(x, S, 0) * 1.0, lambda x: x),
    "dynamic_slice": Case(
        lambda x, n: nm.dynamic_slice(x, n, S, 3), lambda x, n: window(x, n, 3), ("x", "n"), "x"
    ),
    "dynamic_slice_far": Case(
        lambda x, n: nm.dynamic_slice(x, n + 40, S, 3), lambda x, n: x[:, 5:], ("x", "n"), "x"
    ),
    "dynamic_slice_below": Case(
        lambda x, n: nm.dynamic_slice(x, n - 40, S, 3), lambda x, n: x[:, :3], ("x", "n"), "x"
    ),
    "dynamic_slice_fixed": Case(lambda x: nm.dynamic_slice(x, 4, S, 2), lambda x: x[:, 4:6]),
    "dynamic_update": Case(
        lambda x, u, n: nm.dynamic_update(x, u, n, S),
        lambda x, u, n: updated(x, u, n),
        ("x", "u", "n"),
        ("x", "u"),
    ),
    "dynamic_update_far": Case(
        lambda x, u, n: nm.dynamic_update(x, u, n + 40, S),
        lambda x, u, n: updated(x, u, 40),
        ("x", "u", "n"),
        ("x", "u"),
    ),
    "dynamic_update_below": Case(
        lambda x, u, n: nm.dynamic_update(x, u, n - 40, S),
        lambda x, u, n: updated(x, u, -40),
        ("x", "u", "n"),
        ("x", "u"),
    ),
    "dynamic_update_reordered": Case(
        lambda x, u, n: nm.dynamic_update(x, nm.transpose(u, [M, B, S.resized(3)]), n, S),
        updated,
        ("x", "u", "n"),
        ("x", "u"),
    ),
}
SPECS = {
    "x": nm.spec([B, S, M]),
    "u": nm.spec([B, S.resized(3), M]),
    "n": nm.spec([], "int32"),
    "i": nm.spec([B, S], "int32"),
}
ARRAYS = {
    "x": uniform(1, 4, 8, 10),
    "u": uniform(2, 4, 3, 10),
    "n": np.int32(4),
    "i": np.random.default_rng(3).integers(-3, 4, (4, 8)).astype(np.int32),
}


def test_values_and_gradients():
    program = nm.trace(function_of(CASES), **SPECS)
    assert_same(evaluated(program, ARRAYS), expected_of(CASES, ARRAYS))


@pytest.mark.parametrize("layout", ["batch:a", "seq:b, batch:a", "seq:a, model:b"])
def test_sharded(layout):
    assert_sharded_same(function_of(CASES), SPECS, ARRAYS, layout)


def test_windows_along_an_unsplit_dimension_are_free():
    along_others = {name: case for name, case in CASES.items() if name != "slice_one"}
    program = nm.trace(function_of(along_others), **SPECS)
    assert moved_bytes(nm.plan(program, MESH, "batch:b"), "forward", "backward", "update") == 0


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: nm.slice(x, S, 5, 4), "do not fit in seq=8"),
        (lambda x: nm.slice(x, S, 0, 5, 2), "do not lie"),
        (lambda x: nm.slice(x, S, -1, 2), "do not lie"),
        (lambda x: nm.pad(x, S, -1), "before"),
        (lambda x: nm.shift(x, S, 8), "cannot move"),
        (lambda x: nm.dynamic_slice(x, 0, S, 9), "do not lie"),
        (lambda x: nm.dynamic_slice(x, 0.5, S, 2), "int32 scalar"),  # pyright: ignore
        (lambda x: nm.dynamic_update(x, nm.zeros([B, S.resized(9), M]), 0, S), "does not fit"),
        (lambda x: nm.dynamic_update(x, nm.zeros([B, S, M], "int32"), 0, S), "dtypes differ"),
        (lambda x: nm.reverse(x, nm.Dimension("seq", 9)), "has seq=8, not seq=9"),
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=SPECS["x"])
