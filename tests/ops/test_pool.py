"""Pooling against literal loops, under layouts that split space."""

import itertools

import numpy as np
import pytest

import namedmesh as nm
from tests.checks import assert_same, uniform

LAYOUTS = {
    "whole": ("", nm.Mesh(a=1)),
    "rows": ("rows:a", nm.Mesh(a=4)),
    "rows and columns": ("rows:a, columns:b", nm.Mesh(a=2, b=4)),
    "batch and rows": ("batch:b, rows:a", nm.Mesh(a=4, b=2)),
}
# rows and columns, window, stride, dilation, padding
CASES = {
    "halves": ((16, 8), (2, 2), (2, 2), 1, "valid"),
    "overlapping": ((12, 9), (3, 2), (1, 1), 1, "same"),
    "strided": ((13, 16), (3, 3), (2, 3), 1, "same"),
    "dilated": ((11, 16), (2, 3), (1, 2), 2, ((1, 2), (0, 3))),
}


def ends(size, window, stride, dilation, padding) -> tuple[int, int]:
    """Zeros before and after, by TensorFlow's rule."""
    if padding == "valid":
        return 0, 0
    if padding != "same":
        low, high = padding
        return low, high
    reach = (-(-size // stride) - 1) * stride + (window - 1) * dilation + 1
    missing = max(reach - size, 0)
    return missing // 2, missing - missing // 2


def by_loops(x, kind, window, stride, dilation, padding):
    """The result and the derivative of the sum of its squares, element by element."""
    pads = [padding, padding] if isinstance(padding, str) else padding
    low = [ends(x.shape[i + 1], window[i], stride[i], dilation, pads[i]) for i in range(2)]
    counts = [
        (x.shape[i + 1] + sum(low[i]) - (window[i] - 1) * dilation - 1) // stride[i] + 1
        for i in range(2)
    ]
    y = np.zeros((x.shape[0], *counts, x.shape[3]))
    dx = np.zeros(x.shape)
    for b, r, c, m in itertools.product(*map(range, y.shape)):
        met = []
        for i, j in itertools.product(*map(range, window)):
            row = r * stride[0] - low[0][0] + i * dilation
            column = c * stride[1] - low[1][0] + j * dilation
            if 0 <= row < x.shape[1] and 0 <= column < x.shape[2]:
                met.append((b, row, column, m))
        values = [x[place] for place in met]
        y[b, r, c, m] = {"max": max, "sum": sum, "mean": np.mean}[kind](values)
        for place, value in zip(met, values, strict=True):
            share = {"max": value == y[b, r, c, m], "sum": 1, "mean": 1 / len(met)}[kind]
            dx[place] += 2 * y[b, r, c, m] * share
    return {"y": y, "dx": dx}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["max", "mean", "sum"])
def test_equal_to_loops(kind, case, layout):
    sizes, window, stride, dilation, padding = CASES[case]
    B, R, C, M = nm.dims(f"batch=2 rows={sizes[0]} columns={sizes[1]} model=2")
    by_dim = lambda pair: dict(zip((R, C), pair, strict=True))

    def pooled(x):
        y = nm.pool(
            x, by_dim(window), kind, stride=by_dim(stride), dilation=dilation,
            padding=padding if isinstance(padding, str) else by_dim(padding),
        )  # fmt: skip
        return {"y": y, "dx": nm.grad(nm.sum(y * y), x)}

    places, mesh = LAYOUTS[layout]
    x = uniform(4, 2, *sizes, 2)
    step = nm.compile(pooled, nm.spec([B, R, C, M]), mesh=mesh, layout=places, strict=True)
    found = step(step.init(0), x=x)[1]
    assert_same(found, by_loops(x, kind, window, stride, dilation, padding), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_windows_are_laid_out(dtype):
    S, B, K = nm.dims("seq=13 batch=2 window=3")
    x = np.arange(26).reshape(13, 2).astype(dtype)
    laid = lambda x: nm.windows(x, {S: K}, stride=2, padding=(1, 2), value=-5)
    step = nm.compile(laid, nm.spec([S, B], dtype), mesh=nm.Mesh(a=4), layout="seq:a", strict=True)
    padded = np.pad(x, [(1, 2), (0, 0)], constant_values=-5)
    want = np.stack([padded[i : i + 14 : 2] for i in range(3)], -1)[:7]
    assert_same({"y": step(step.init(0), x=x)[1]}, {"y": want})


def test_second_derivatives_of_windows():
    S, K = nm.dims("seq=12 window=3")

    def twice(x):
        y = nm.windows(x, {S: K}, stride=2)
        first = nm.grad(nm.sum(y * y * y), x)
        return {"first": first, "second": nm.grad(nm.sum(first * first), x)}

    x = uniform(5, 12)
    step = nm.compile(twice, nm.spec([S]), mesh=nm.Mesh(a=4), layout="seq:a", strict=True)
    times = np.zeros(12)  # in how many windows each element is
    for o in range(5):
        times[2 * o : 2 * o + 3] += 1
    first = times * 3 * x**2
    assert_same(
        step(step.init(0), x=x)[1],
        {"first": first, "second": 2 * first * times * 6 * x},
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip


def test_what_neighbours_send():
    """Windows of 3 with stride 1 reach one element over each edge; halves reach none."""
    S, B = nm.dims("seq=16 batch=4")
    plan = lambda function: nm.plan(nm.trace(function, nm.spec([S, B])), nm.Mesh(a=4), "seq:a")
    smooth = plan(lambda x: nm.pool(x, {S: 3}, "mean", stride=1, padding="same"))
    assert [(one.kind, one.elements) for one in smooth.collectives] == [
        ("CollectivePermute", 4),
        ("CollectivePermute", 4),
    ]
    assert plan(lambda x: nm.pool(x, {S: 2})).collectives == ()


S, K, B = nm.dims("seq=4 window=2 batch=2")
MISTAKES = {
    "there is no kind of pooling 'avg'": lambda x: nm.pool(x, {S: 2}, "avg"),
    "does not say which window slides where": lambda x: nm.pool(x, {}),
    "dimension seq has size 0": lambda x: nm.pool(x, {S: 0}),
    "seq_window=5 does not fit into seq=4": lambda x: nm.pool(x, {S: 5}),
    "has a dimension batch already": lambda x: nm.windows(x, {S: B}),
    "stride 0 of seq is less than 1": lambda x: nm.windows(x, {S: K}, stride=0),
}


@pytest.mark.parametrize("problem", MISTAKES)
def test_mistakes_are_named(problem):
    with pytest.raises(nm.NamedMeshError, match=problem):
        nm.trace(MISTAKES[problem], nm.spec([S, B]))


def test_what_the_way_back_sends():
    """Halves that do not overlap take their cotangents back to their own rows alone."""
    S, B = nm.dims("seq=16 batch=4")
    back = lambda kind: lambda x: nm.grad(nm.sum(nm.square(nm.pool(x, {S: 2}, kind))), x)
    for kind in ("max", "mean"):
        plan = nm.plan(nm.trace(back(kind), nm.spec([S, B])), nm.Mesh(a=4), "seq:a")
        assert plan.collectives == ()
