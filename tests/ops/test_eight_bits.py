"""Tensors in eight bits against ml_dtypes in numpy: scales, products, derivatives, what is sent."""

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import namedmesh as nm

B, M, H, E = nm.dims("batch=8 model=16 hidden=12 expert=4")
E4, E5 = "float8_e4m3fn", "float8_e5m2"
MOST = {E4: 448.0, E5: 57344.0}
LAYOUTS = {
    "one device": ("a=1", "", None),
    "rows": ("a=8", "batch:a", None),
    "rows and columns": ("a=4, b=2", "batch:a, hidden:b", None),
    "summed over": ("a=4, b=2", "batch:a, model:b", None),
    "weights at rest": ("a=4", "batch:a", "model:a"),
    "uneven": ("a=5", "hidden:a", None),
}


def power_of_two(x):
    """The least power of two that x does not exceed."""
    mantissa, exponent = np.frexp(np.float64(x))
    return np.ldexp(1.0, exponent - (mantissa == 0.5))


def narrow(x, dtype=E4, axis=None):
    """Quantize in numpy: values and scales, which keep their axes."""
    most = np.abs(np.asarray(x, np.float64)).max(axis=axis, keepdims=True)
    scale = np.where(most > 0, power_of_two(most / MOST[dtype]), 1.0)
    return np.asarray(x / scale, np.float32).astype(dtype), scale.astype(np.float32)


def rounded(x, dtype=E4, axis=None):
    values, scale = narrow(x, dtype, axis)
    return values.astype(np.float32) * scale


def draw(seed, *dims):
    sizes = [dim.size for dim in dims]
    return np.random.default_rng(seed).normal(size=sizes).astype(np.float32)


@pytest.mark.parametrize(
    ("size", "block", "blocks"), [(8, 5, 2), (96, 128, 1), (96, 64, 2), (7, 8, 1), (9, 4, 3)]
)
def test_blocks_are_the_largest_that_fit(size, block, blocks):
    (s,) = nm.dims(f"s={size}")
    x = np.exp2(8 * draw(5, s)).astype(np.float32)
    one = np.ones(size, np.float32)
    found = nm.evaluate(
        lambda x, y: nm.scaled_einsum([x, y], [], block=block), x=([s], x), y=([s], one)
    )
    cut = x.reshape(blocks, -1)
    np.testing.assert_allclose(found, rounded(cut, E4, 1).sum(), rtol=1e-6)


@pytest.mark.parametrize("dtype", [E4, E5])
@pytest.mark.parametrize("factor", [1.0, 0.0, 1e-30, 1e30, 448.0, 2.0**-9])
def test_values_and_scale_are_those_of_numpy(dtype, factor):
    x = draw(0, B, M) * np.float32(factor)
    values, scale = nm.evaluate(lambda x: nm.quantize(x, dtype), x=([B, M], x))
    expected, by = narrow(x, dtype)
    np.testing.assert_array_equal(values.view(np.uint8), expected.view(np.uint8))
    assert scale == by.item()
    back = nm.evaluate(lambda x: nm.dequantize(*nm.quantize(x, dtype)), x=([B, M], x))
    digits = {E4: 2.0**-4, E5: 2.0**-3}[dtype]
    np.testing.assert_allclose(back, x, rtol=digits, atol=scale * 2.0**-9)


@pytest.mark.parametrize("exact", [448.0, 449.0, 447.9, 224.0, 7.0, 1e-3])
def test_the_largest_magnitude_fits_and_the_scale_is_the_least(exact):
    values, scale = nm.evaluate(nm.quantize, x=([M], np.full(16, -exact, np.float32)))
    assert np.abs(values.astype(np.float32)).max() * scale == pytest.approx(exact, rel=2.0**-4)
    assert exact / scale <= 448.0 < 2 * exact / scale * (1 + 1e-6)


def test_scales_of_rows_and_of_blocks():
    x = draw(1, B, M) * np.exp(3 * draw(2, B, M))
    values, scale = nm.evaluate(lambda x: nm.quantize(x, over=M), x=([B, M], x))
    expected, by = narrow(x, axis=1)
    np.testing.assert_array_equal(scale, by[:, 0])
    np.testing.assert_array_equal(values.view(np.uint8), expected.view(np.uint8))
    blocks = lambda x: nm.quantize(x, blocks={M: 4})
    values, scale = nm.evaluate(blocks, x=([B, M], x))
    expected, by = narrow(x.reshape(8, 4, 4), axis=2)
    np.testing.assert_array_equal(scale, by[..., 0])
    np.testing.assert_array_equal(values.view(np.uint8), expected.reshape(8, 16).view(np.uint8))
    back = nm.evaluate(lambda x: nm.dequantize(*blocks(x)), x=([B, M], x))
    np.testing.assert_array_equal(back, rounded(x.reshape(8, 4, 4), axis=2).reshape(8, 16))
    both = lambda x: nm.quantize(x, over=B, blocks={M: 4})
    _, scale = nm.evaluate(both, x=([B, M], x))
    np.testing.assert_array_equal(scale, narrow(x.reshape(8, 4, 4), axis=(0, 2))[1][0, :, 0])


def test_a_given_magnitude_cuts_off_what_exceeds_it():
    x = np.array([0.5, -3.0, np.inf, np.nan], np.float32)
    most = lambda x: nm.quantize(x, largest=nm.full([], 1.0))
    values, scale = nm.evaluate(most, x=([nm.Dimension("model", 4)], x))
    assert scale == 2.0**-8
    np.testing.assert_array_equal(values.astype(np.float32), [128.0, -448.0, np.nan, np.nan])


def reference(x, w, dy, gradients=E5):
    """A product with its gradients, of values rounded in numpy."""
    x8, w8, dy8 = rounded(x), rounded(w), rounded(dy, gradients)
    return x8 @ w8, dy8 @ w8.T, x8.T @ dy8


def product(gradients, x, w, dy):
    y = nm.scaled_einsum([x, w], [B, H], gradients=gradients)
    return [y, *nm.grad(y, [x, w], cotangent=dy)]


@pytest.mark.parametrize("gradients", [E4, E5])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_and_derivatives_under_layouts(layout, gradients):
    mesh, text, params = LAYOUTS[layout]
    values = {"x": draw(3, B, M), "w": draw(4, M, H), "dy": draw(5, B, H)}
    specs: dict[str, Any] = {"x": nm.spec([B, M]), "dy": nm.spec([B, H])}

    def step(x, dy):
        return product(gradients, x, nm.param("w", [M, H]), dy)

    compiled = nm.compile(
        step, mesh=nm.Mesh.parse(mesh), layout=text, params=params, strict=True, **specs
    )
    state = compiled.place({"w": values["w"]})
    _, found = compiled(state, x=values["x"], dy=values["dy"])
    expected = reference(**values, gradients=gradients)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
    if params:
        gathered = [one for one in compiled.plan.collectives if one.kind == "AllGather"]
        assert {one.dtype for one in gathered} == {E4}
        reduced = [one.kind for one in compiled.plan.collectives if one.elements == 16 * 12]
        assert reduced == ["AllGather", "ReduceScatter"]  # the gradient, to where the weight rests


def test_wide_operands_and_experts_have_scales_of_their_own():
    x, w = draw(6, E, B, M), draw(7, E, M, H) * np.arange(1, 5, dtype=np.float32)[:, None, None]
    call = lambda x, w: nm.scaled_einsum([nm.cast(x, "bfloat16"), w], [E, B, H])
    y = nm.evaluate(call, x=([E, B, M], x), w=([E, M, H], w))
    assert y.dtype == "bfloat16"
    x = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    pairs = zip(x, w, strict=True)
    expected = np.stack([rounded(one) @ rounded(other) for one, other in pairs])
    np.testing.assert_allclose(y.astype(np.float32), expected, rtol=2.0**-8, atol=1e-5)


def test_products_of_blocks():
    x, w, dy = draw(8, B, M) * np.exp(draw(9, B, M)), draw(10, M, H), draw(11, B, H)

    def step(x, w, dy):
        y = nm.scaled_einsum([x, w], [B, H], block=4)
        return [y, *nm.grad(y, [x, w], cotangent=dy)]

    found = nm.evaluate(step, x=([B, M], x), w=([M, H], w), dy=([B, H], dy))

    def cut(x, axis, dtype=E4):
        """Round in blocks of four along an axis."""
        x = np.moveaxis(x, axis, -1)
        shape = x.shape
        return np.moveaxis(rounded(x.reshape(-1, 4), dtype, 1).reshape(shape), -1, axis)

    expected = (
        cut(x, 1) @ cut(w, 0), cut(dy, 1, E5) @ cut(w, 1).T, cut(x, 0).T @ cut(dy, 0, E5),
    )  # fmt: skip
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kinds", [(E4, E4), (E4, E5), (E5, E4)])
def test_einsum_of_values_in_eight_bits(kinds):
    x, w = (draw(12, B, M).astype(kinds[0]), draw(13, M, H).astype(kinds[1]))
    expected = x.astype(np.float32) @ w.astype(np.float32)
    pairs = {"x": ([B, M], x), "w": ([M, H], w)}
    found = nm.evaluate(lambda x, w: nm.einsum([x, w], [B, H]), **pairs)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)
    half = nm.evaluate(lambda x, w: nm.einsum([x, w], [B, H], preferred="bfloat16"), **pairs)
    np.testing.assert_array_equal(half, expected.astype(ml_dtypes.bfloat16))
    outer = nm.evaluate(lambda x, w: nm.einsum([x, w], [H]), **pairs)  # a sum of one alone
    np.testing.assert_allclose(outer, expected.sum(0), rtol=1e-5, atol=1e-4)


def test_rows_and_their_cotangents_are_sent_in_eight_bits():
    G = nm.Dimension("group", 8)
    x, dy = draw(14, G, E, M), draw(15, G, E, M)

    def step(x, dy):
        y = nm.send_in_8_bits(nm.reshard(x * 2.0, G), E)
        return y, nm.grad(y, x, cotangent=dy)

    mesh, layout = nm.Mesh(all=4), "group:all, expert:all"
    specs: dict[str, Any] = {
        "x": nm.spec([G, E, M], whole=[E]),
        "dy": nm.spec([G, E, M], whole=[G]),
    }
    compiled = nm.compile(step, mesh=mesh, layout=layout, strict=True, **specs)
    sent = [(one.dtype, one.phase) for one in compiled.plan.collectives if one.kind == "AllToAll"]
    assert sent == [(E4, "forward"), (E5, "backward")]
    _, (y, dx) = compiled(x=x, dy=dy)
    np.testing.assert_array_equal(y, rounded(2 * x))
    np.testing.assert_array_equal(dx, 2 * rounded(dy, E5))


def test_in_loops_recomputed_mapped_and_in_manual_regions():
    L = nm.Dimension("layer", 3)
    w, x = draw(16, L, M, M) / 4, draw(17, B, M)
    K = nm.Dimension("key", 16)

    def layer(x, w):
        y = nm.scaled_einsum([x, nm.rename(w, nm.Dimension("row", 16), K)], [B, K])
        return nm.rename(nm.tanh(y), K, M), None

    def step(remat, x, w):
        w = nm.rename(w, nm.Dimension("model", 16), nm.Dimension("model", 16))
        loss = nm.sum(nm.scan(layer, x, w, over=L, remat=remat)[0] ** 2)
        return loss, nm.grad(loss, [x, w])

    R = nm.Dimension("row", 16)
    given = {"x": ([B, M], x), "w": ([L, M, R], w)}
    plain, (dx, dw) = nm.evaluate(functools.partial(step, "none"), **given)
    again, (dx_again, dw_again) = nm.evaluate(functools.partial(step, "full"), **given)
    y = x
    for one in w:
        y = np.tanh(rounded(y) @ rounded(one))
    np.testing.assert_allclose(plain, (y**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(again, plain, rtol=1e-6)
    np.testing.assert_allclose(dx_again, dx, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dw_again, dw, rtol=1e-5, atol=1e-6)
    assert np.abs(dw).max() > 0

    def mapped(x, w):
        alone = lambda x: nm.scaled_einsum([x, w], [H])
        y = nm.vmap(alone, B)(x)
        return y, nm.grad(nm.sum(y), w)

    y, dw = nm.evaluate(mapped, x=([B, M], x), w=([M, H], draw(18, M, H)))
    expected = rounded(x, axis=1) @ rounded(draw(18, M, H))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dw, np.repeat(rounded(x, axis=1).sum(0)[:, None], 12, 1), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x, w: nm.quantize(x, "int8"), "not a floating point dtype of 8 bits"),
        (lambda x, w: nm.quantize(x, blocks={M: 5}), "cannot be cut along model=16"),
        (lambda x, w: nm.quantize(x, blocks={H: 4}), "cannot be cut along hidden=12"),
        (lambda x, w: nm.quantize(nm.cast(x, "int32")), "takes float operands"),
        (lambda x, w: nm.scaled_einsum([x, w, w], [B, H]), "3 operands, not two"),
        (lambda x, w: nm.scaled_einsum([x, w], [H]), "batch of one operand alone"),
        (lambda x, w: nm.scaled_einsum([x, w], [B, H], gradients="e5m2"), "'e5m2' is not"),
        (lambda x, w: nm.send_in_8_bits(x, M, dtype="uint8"), "'uint8' is not"),
        (lambda x, w: nm.quantize(x)[0] + 1, "takes number operands"),
        (lambda x, w: nm.param("q", [M], dtype="float8_e4m3fn"), "not floating point"),
    ],
)
def test_mistakes_are_told(call, text):
    with pytest.raises(nm.NamedMeshError, match=text) as told:
        nm.trace(call, x=nm.spec([B, M]), w=nm.spec([M, H]))
    assert "fix:" in str(told.value)


def test_a_size_that_no_block_divides_is_an_error():
    x = ([nm.Dimension("s", 7)], np.ones(7, np.float32))
    for block in (2, 5):
        text = f"s=7 is summed over and cannot be cut into blocks of 2 to {block}"
        with pytest.raises(nm.NamedMeshError, match=text):
            nm.evaluate(lambda x, y, n=block: nm.scaled_einsum([x, y], [], block=n), x=x, y=x)
    nm.evaluate(lambda x, y: nm.scaled_einsum([x, y], [], block=1), x=x, y=x)
