"""Python's signs and built-in functions on tensors: numpy's numbers, or an error of ours."""

import copy
import math
import operator

import numpy as np
import pytest

import namedmesh as nm

M, N = nm.dims("model=6 other=3")
FLOAT = np.array([-3.5, -2.0, -0.5, 0.5, 2.5, 7.25], np.float32)
OTHER = np.array([2.0, -1.5, 0.75, 3.0, -2.0, 4.0], np.float32)
INT = np.array([-7, -2, -1, 3, 8, 100], np.int32)
SMALL = np.array([3, -2, 5, 1, 2, 7], np.int32)
COUNT = np.array([0, 1, 2, 3, 4, 5], np.int32)
BOOL = np.array([True, False, True, True, False, False])
VALUES = {"f": FLOAT, "g": OTHER, "i": INT, "j": SMALL, "k": COUNT, "b": BOOL}
SIGNS = {
    "+x": (lambda x: +x, "f i"),
    "divmod": (lambda x, y: divmod(x, y), "fg ij"),
    "divmod by a number": (lambda x: divmod(x, 2), "f i"),
    "divmod of a number": (lambda y: divmod(7, y), "g j"),
    "round": (lambda x: np.round(x) if isinstance(x, np.ndarray) else round(x), "f"),
    "to digits": (lambda x: np.round(x, 1) if isinstance(x, np.ndarray) else round(x, 1), "f"),
    "floor": (lambda x: np.floor(x) if isinstance(x, np.ndarray) else math.floor(x), "f"),
    "ceil": (lambda x: np.ceil(x) if isinstance(x, np.ndarray) else math.ceil(x), "f"),
    "<<": (operator.lshift, "ik"),
    ">>": (operator.rshift, "ik"),
    "1 << y": (lambda y: np.int32(1) << y, "k"),
    "2 >> y": (lambda y: 200 >> y, "k"),
    "numpy's <<": (lambda y: np.int32(3) << y, "k"),
    "~": (operator.invert, "i b"),
    "abs": (abs, "f i"),
    "pow": (lambda x: pow(x, 2.0), "f"),
}


def both_in_lists(result):
    return list(result) if isinstance(result, tuple) else [result]


def test_signs_are_numpys():
    def program(f, g, i, j, k, b):
        given = {"f": f, "g": g, "i": i, "j": j, "k": k, "b": b}
        return {
            f"{name} {case}": both_in_lists(sign(*(given[one] for one in case)))
            for name, (sign, cases) in SIGNS.items()
            for case in cases.split()
        }

    made = nm.evaluate(program, **{name: ([M], value) for name, value in VALUES.items()})
    for name, (sign, cases) in SIGNS.items():
        for case in cases.split():
            expected = both_in_lists(sign(*(VALUES[one] for one in case)))
            for one, right in zip(made[f"{name} {case}"], expected, strict=True):
                np.testing.assert_allclose(one, right, rtol=1e-6, err_msg=f"{name} {case}")


def test_a_copy_of_a_tensor_is_the_tensor():
    def program(x):
        assert copy.copy(x) is x is copy.deepcopy(x) and copy.deepcopy({"x": [x]})["x"][0] is x
        return x

    nm.trace(program, nm.spec([M]))


class Odd:
    """An object that is nothing in particular."""


WRONG = [
    None, "x", b"x", 1j, [1, 2], (), {}, {1}, Odd(), np.arange(3), np.zeros((2, 2)), M, [M],
    slice(2), 2**70, 10**400, float("nan"), True, 0.5, np.array("x"), np.array(None), range(3), ...,
]  # fmt: skip
UNARY = [
    operator.pos, operator.neg, operator.invert, operator.abs, round, math.floor, math.ceil,
    math.trunc, int, float, bool, complex, len, iter, list, operator.index, range, reversed,
    math.sqrt, np.asarray, bytes, np.negative, np.exp, sum, max, sorted, hex,
]  # fmt: skip
FIRST = [  # of which the tensor is the first operand
    operator.contains, operator.getitem, operator.delitem, round,
    lambda x, y: operator.setitem(x, y, 1.0), lambda x, y: pow(x, y, 3),
]  # fmt: skip
BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift,
    operator.matmul, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
    divmod, operator.iadd, operator.imatmul, operator.ilshift, max, *FIRST,
]  # fmt: skip


def call(function, *arguments) -> str:
    """What is wrong with a call: an error that is not ours, or nothing."""
    try:
        function(*arguments)
    except nm.NamedMeshError as error:
        return "" if error.fix else f"no fix: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "bfloat16", "uint8"])
def test_no_sign_raises_an_error_that_is_not_ours(dtype):
    problems = []

    def program(x, y, s):
        for function in UNARY:
            for tensor in (x, s):
                problems.append((function, call(function, tensor)))
        for function in BINARY:
            for other in (*WRONG, y, s, x):
                problems.append((function, other, call(function, x, other)))
                if function not in FIRST:
                    problems.append((other, function, call(function, other, x)))
        return x

    nm.trace(program, nm.spec([M], dtype), nm.spec([N]), nm.spec([], dtype))
    raw = [one for one in problems if one[-1]]
    assert not raw, "\n".join(map(str, raw[:20]))
