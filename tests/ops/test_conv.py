"""Convolutions against jax, under layouts that split batch, space and channels."""

from typing import Any

import jax
import numpy as np
import pytest

import namedmesh as nm
from tests.checks import assert_near, assert_same, uniform

LAYOUTS = {
    "whole": ("", nm.Mesh(a=1)),
    "rows": ("rows:a", nm.Mesh(a=4)),
    "rows and columns": ("rows:a, columns:b", nm.Mesh(a=2, b=4)),
    "batch and rows": ("batch:b, rows:a", nm.Mesh(a=4, b=2)),
    "channels in": ("chan:a, rows:b", nm.Mesh(a=2, b=2)),
    "channels out": ("out:a", nm.Mesh(a=4)),
    "two axes": ("rows:a+b", nm.Mesh(a=2, b=2)),
}
# rows, columns, window, stride, dilation, base dilation, padding
CASES = {
    "plain": ((16, 12), (3, 3), (1, 1), (1, 1), (1, 1), "same"),
    "valid, uneven": ((13, 11), (3, 2), (1, 1), (1, 1), (1, 1), "valid"),
    "strided": ((16, 16), (3, 3), (2, 2), (1, 1), (1, 1), "same"),
    "dilated, padded": ((15, 16), (5, 3), (2, 1), (2, 1), (1, 1), (2, 3)),
    "spread": ((9, 8), (3, 3), (1, 1), (1, 1), (2, 3), (1, 1)),
    "larger than a shard": ((8, 8), (7, 7), (1, 1), (1, 1), (1, 1), "same"),
}


def dims(sizes, window):
    text = f"batch=2 rows={sizes[0]} columns={sizes[1]} kr={window[0]} kc={window[1]} chan=4 out=8"
    return nm.dims(text)


def everything(convolve):
    """A result, and first and second derivatives, by both operands."""

    def all_of(x, w):
        y = convolve(x, w)
        dx, dw = nm.grad(nm.sum(y * y) * 0.5, [x, w])
        ddx, ddw = nm.grad(nm.sum(dx * dx) + nm.sum(dw * dw), [x, w])
        return {"y": y, "dx": dx, "dw": dw, "ddx": ddx, "ddw": ddw}

    return all_of


def by_jax(convolve, x, w):
    """The same of a function of jax."""
    loss = lambda x, w: (convolve(x, w) ** 2).sum() * 0.5
    first = jax.grad(loss, (0, 1))
    second = jax.grad(lambda x, w: sum((one**2).sum() for one in first(x, w)), (0, 1))
    y, (dx, dw), (ddx, ddw) = convolve(x, w), first(x, w), second(x, w)
    return {"y": y, "dx": dx, "dw": dw, "ddx": ddx, "ddw": ddw}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_equal_to_jax_with_two_derivatives(case, layout):
    sizes, window, stride, dilation, base, padding = CASES[case]
    B, R, C, KR, KC, CI, CO = dims(sizes, window)
    x, w = uniform(1, 2, *sizes, 4), uniform(2, *window, 4, 8)
    by_dim = lambda pair: dict(zip((R, C), pair, strict=True))
    convolve = lambda x, w: nm.conv(
        x, w, {R: KR, C: KC}, stride=by_dim(stride), dilation=by_dim(dilation),
        base_dilation=by_dim(base), padding=padding,
    )  # fmt: skip
    reference = lambda x, w: jax.lax.conv_general_dilated(
        x, w, stride, padding.upper() if isinstance(padding, str) else [padding, padding],
        lhs_dilation=base, rhs_dilation=dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest",
    )  # fmt: skip
    places, mesh = LAYOUTS[layout]
    specs = nm.spec([B, R, C, CI]), nm.spec([KR, KC, CI, CO])
    step = nm.compile(everything(convolve), *specs, mesh=mesh, layout=places, strict=True)
    assert_near(step(step.init(0), x=x, w=w)[1], by_jax(reference, x, w))


@pytest.mark.parametrize("layout", ["whole", "rows", "rows and columns"])
def test_groups_and_depthwise(layout):
    B, R, C, KR, KC = nm.dims("batch=2 rows=8 columns=8 kr=3 kc=3")
    G, CI, CO = nm.dims("heads=2 chan=3 out=5")
    places, mesh = LAYOUTS[layout]
    x, w = uniform(1, 2, 8, 8, 2, 3), uniform(2, 3, 3, 2, 3, 5)
    convolve = lambda x, w: nm.conv(x, w, {R: KR, C: KC}, keep=G)
    specs = nm.spec([B, R, C, G, CI]), nm.spec([KR, KC, G, CI, CO])
    step = nm.compile(everything(convolve), *specs, mesh=mesh, layout=places, strict=True)

    def reference(x, w):
        parts = [
            jax.lax.conv_general_dilated(
                x[:, :, :, g],
                w[:, :, g],
                (1, 1),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                precision="highest",
            )
            for g in range(2)
        ]
        return jax.numpy.stack(parts, 3)

    assert_near(step(step.init(0), x=x, w=w)[1], by_jax(reference, x, w))
    deep = lambda x, w: nm.conv(x, w, {R: KR, C: KC}, keep=[G, CI])
    found = nm.evaluate(
        deep, x=([B, R, C, G, CI], x), w=([KR, KC, G, CI], np.ascontiguousarray(w[..., 0]))
    )
    padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0), (0, 0)])
    want = sum(
        padded[:, i : i + 8, j : j + 8] * w[i, j, ..., 0] for i in range(3) for j in range(3)
    )
    assert_same({"y": found}, {"y": want})


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("split", [False, True])
def test_one_and_three_dimensions(rank, split):
    text = "".join(f" s{i}=8 k{i}=3" for i in range(rank))
    CI, CO, *pairs = nm.dims(f"chan=2 out=3{text}")
    spatial, windows = pairs[::2], pairs[1::2]
    x, w = uniform(1, *[8] * rank, 2), uniform(2, *[3] * rank, 2, 3)
    convolve = lambda x, w: nm.conv(x, w, dict(zip(spatial, windows, strict=True)), stride=2)
    letters = "DHW"[-rank:]
    numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    reference = lambda x, w: jax.lax.conv_general_dilated(
        x[None], w, [2] * rank, "SAME", dimension_numbers=numbers, precision="highest"
    )[0]
    specs = nm.spec([*spatial, CI]), nm.spec([*windows, CI, CO])
    mesh, layout = (nm.Mesh(a=2), "s0:a") if split else (nm.Mesh(a=1), "")
    step = nm.compile(everything(convolve), *specs, mesh=mesh, layout=layout, strict=True)
    assert_near(step(step.init(0), x=x, w=w)[1], by_jax(reference, x, w))


@pytest.mark.parametrize("layout", ["whole", "rows", "rows and columns"])
@pytest.mark.parametrize("padding", ["same", "valid", (1, 0)])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_transposed_is_the_derivative_of_a_convolution(stride, padding, layout):
    B, R, C, KR, KC, CI, CO = dims((8, 4), (3, 2))
    x, w = uniform(1, 2, 8, 4, 4), uniform(2, 3, 2, 4, 8)
    places, mesh = LAYOUTS[layout]
    convolve = lambda x, w: nm.conv_transpose(x, w, {R: KR, C: KC}, stride=stride, padding=padding)
    specs = nm.spec([B, R, C, CI]), nm.spec([KR, KC, CI, CO])
    step = nm.compile(everything(convolve), *specs, mesh=mesh, layout=places, strict=True)
    found = step(step.init(0), x=x, w=w)[1]
    pads = padding.upper() if isinstance(padding, str) else [padding, padding]

    def reference(x, w):
        forward = lambda y: jax.lax.conv_general_dilated(
            y, w, (stride, stride), pads, dimension_numbers=("NHWC", "HWOI", "NHWC"),
            precision="highest",
        )  # fmt: skip
        return jax.linear_transpose(forward, jax.ShapeDtypeStruct(found["y"].shape, "float32"))(x)[
            0
        ]

    assert_near(found, by_jax(reference, x, w))


@pytest.mark.parametrize("rows, devices", [(8, 2), (7, 8)])
def test_the_derivative_by_a_split_window_is_made_whole(rows, devices):
    """Each device then keeps its part: the compiler has nothing to send."""
    B, R, K, CI, CO = nm.dims(f"batch=2 rows={rows} window=4 chan=3 out=4")
    x, w = uniform(1, 2, rows, 3), uniform(2, 4, 3, 4)
    convolve = lambda x, w: nm.conv(x, w, {R: K})
    specs = nm.spec([B, R, CI]), nm.spec([K, CI, CO])
    mesh = nm.Mesh(a=devices)
    step = nm.compile(everything(convolve), *specs, mesh=mesh, layout="window:a", strict=True)
    reference = lambda x, w: jax.lax.conv_general_dilated(
        x, w, [1], "SAME", dimension_numbers=("NWC", "WIO", "NWC"), precision="highest"
    )
    assert_near(step(step.init(0), x=x, w=w)[1], by_jax(reference, x, w))


def test_a_split_row_sends_one_row_each_way():
    """3 x 3, stride 1: one row up and one down, of everything else that a device has."""
    B, R, C, KR, KC, CI, CO = dims((16, 12), (3, 3))
    convolve = lambda x, w: nm.conv(x, w, {R: KR, C: KC})
    program = nm.trace(convolve, nm.spec([B, R, C, CI]), nm.spec([KR, KC, CI, CO]))
    plan = nm.plan(program, nm.Mesh(a=4), "rows:a")
    row = B.size * C.size * CI.size
    assert [(one.kind, one.elements, str(one.hop)) for one in plan.collectives] == [
        ("CollectivePermute", row, "1-3 from -1 along a"),
        ("CollectivePermute", row, "0-2 from 1 along a"),
    ]
    assert program.flops() == 2 * 9 * B.size * R.size * C.size * CI.size * CO.size


def test_columns_send_the_corners_too():
    B, R, C, KR, KC, CI, CO = dims((16, 12), (3, 3))
    convolve = lambda x, w: nm.conv(x, w, {R: KR, C: KC})
    program = nm.trace(convolve, nm.spec([B, R, C, CI]), nm.spec([KR, KC, CI, CO]))
    plan = nm.plan(program, nm.Mesh(a=4, b=2), "rows:a, columns:b")
    rows, columns = B.size * CI.size * C.size // 2, B.size * CI.size * (R.size // 4 + 2)
    assert [one.elements for one in plan.collectives] == [rows, rows, columns, columns]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes(dtype):
    B, R, C, KR, KC, CI, CO = dims((8, 8), (3, 3))
    x, w = uniform(1, 2, 8, 8, 4), uniform(2, 3, 3, 4, 8)
    convolve = lambda x, w: nm.cast(
        nm.conv(nm.cast(x, dtype), nm.cast(w, dtype), {R: KR, C: KC}), "float32"
    )
    specs = nm.spec([B, R, C, CI]), nm.spec([KR, KC, CI, CO])
    step = nm.compile(convolve, *specs, mesh=nm.Mesh(a=4), layout="rows:a", strict=True)
    arrays = jax.numpy.asarray(x), jax.numpy.asarray(w)
    want = jax.lax.conv_general_dilated(
        *arrays, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest"
    )
    assert_same({"y": step(step.init(0), x=x, w=w)[1]}, {"y": want}, rtol=0.05, atol=0.3)


B, R, K, CI, CO = nm.dims("batch=2 rows=4 window=3 chan=2 out=3")
THREE: Any = (1, 2, 3)
MISTAKES = {
    "does not say which window slides where": lambda x, w: nm.conv(x, w, {}),
    "there is no padding 'sam'": lambda x, w: nm.conv(x, w, {R: K}, padding="sam"),
    "is not a pair": lambda x, w: nm.conv(x, w, {R: K}, padding=THREE),
    "stride 0 of rows is less than 1": lambda x, w: nm.conv(x, w, {R: K}, stride=0),
    "along which no window slides": lambda x, w: nm.conv(x, w, {R: K}, stride={B: 2}),
    "window=3 does not fit into rows=4": lambda x, w: nm.conv(
        x, w, {R: K}, dilation=2, padding="valid"
    ),
    "leaves nothing of rows=4": lambda x, w: nm.conv_transpose(x, w, {R: K}, padding=(3, 3)),
    "cannot be a dimension of both": lambda x, w: nm.conv(x, nm.rename(w, CI, R), {R: K}),
}


@pytest.mark.parametrize("problem", MISTAKES)
def test_mistakes_are_named(problem):
    with pytest.raises(nm.NamedMeshError, match=problem):
        nm.trace(MISTAKES[problem], nm.spec([B, R, CI]), nm.spec([K, CI, CO]))


@pytest.mark.parametrize(
    ("window", "stride", "rows"), [(2, 2, []), (3, 2, [1]), (4, 2, [1, 1]), (5, 3, [1, 1])]
)
def test_a_transposed_convolution_sends_the_rows_that_windows_reach(window, stride, rows):
    """Element i covers the places from i * stride - low to that plus the window."""
    S, K, P, Q = nm.dims(f"seq=24 window={window} chan=4 out=8")
    double = lambda x, w: nm.conv_transpose(x, w, {S: K}, stride=stride)
    plan = nm.plan(nm.trace(double, nm.spec([S, P]), nm.spec([K, P, Q])), nm.Mesh(a=4), "seq:a")
    assert [one.elements for one in plan.collectives] == [4 * count for count in rows]
