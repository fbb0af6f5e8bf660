"""Norms, rotations, biases, shared heads and losses against NumPy and jax, under layouts."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import (
    Heads,
    alibi,
    batch_norm,
    binary_cross_entropy,
    causal_mask,
    convolution,
    group_norm,
    layer_norm,
    rms_norm,
    rotary,
    self_attention,
    soft_cross_entropy,
    window_mask,
)
from tests.checks import assert_sharded_same
from tests.checks import uniform as numbers

B, R, C, V = nm.dims("batch=4 rows=6 channels=8 vocab=16")
S, T, M, N, G, K = nm.dims("seq=8 memory=8 model=16 heads=2 group=4 key=6")


def run(function, state=None, layout="batch:a", **arguments):
    """The results of a function, checked to be the same where the layout splits."""
    specs = {name: nm.spec(dims, str(array.dtype)) for name, (dims, array) in arguments.items()}
    arrays = {name: array for name, (_, array) in arguments.items()}
    program = nm.trace(function, **specs)
    first = {**program.initial_state(0), **(state or {})}
    assert_sharded_same(program, specs, arrays, layout)
    return program.evaluate(first, **arrays)


def standardized(x, axes, epsilon):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


@pytest.mark.parametrize("layout", ["batch:a, rows:b", "channels:a"])
def test_norms(layout):
    x = numbers(0, 4, 6, 8)
    scale, bias = numbers(1, 8), numbers(2, 8)
    state = {"group_scale": scale, "group_bias": bias}

    def norms(x):
        return {
            "group": group_norm(x, C, 2, over=[R], name="group"),
            "layer": layer_norm(x, [R, C], name="layer"),
            "rms": rms_norm(x, [R, C], name="rms"),
        }

    _, found = run(norms, state, layout, x=([B, R, C], x))
    grouped = standardized(x.reshape(4, 6, 2, 4), (1, 3), 1e-6).reshape(4, 6, 8)
    np.testing.assert_allclose(found["group"], grouped * scale + bias, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["layer"], standardized(x, (1, 2), 1e-6), rtol=1e-4, atol=1e-4)
    expected = x / np.sqrt(np.square(x).mean((1, 2), keepdims=True) + 1e-6)
    np.testing.assert_allclose(found["rms"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["batch:a", "rows:b, channels:a"])
def test_batch_norm_follows_the_batch_and_then_its_averages(layout):
    x = numbers(0, 4, 6, 8)
    state = {"norm_mean": numbers(1, 8), "norm_variance": numbers(2, 8, low=0.5, high=2.0)}

    def train(x):
        return batch_norm(x, [B, R], training=True, momentum=0.9)

    updated, found = run(train, state, layout, x=([B, R, C], x))
    np.testing.assert_allclose(found, standardized(x, (0, 1), 1e-5), rtol=1e-4, atol=1e-4)
    for name, now in (("norm_mean", x.mean((0, 1))), ("norm_variance", x.var((0, 1)))):
        np.testing.assert_allclose(updated[name], 0.9 * state[name] + 0.1 * now, rtol=1e-5)
    _, found = run(lambda x: batch_norm(x, [B, R], training=False), state, layout, x=([B, R, C], x))
    expected = (x - state["norm_mean"]) / np.sqrt(state["norm_variance"] + 1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["seq:a", "key:a", "heads:a"])
def test_rotary_is_a_product_of_complex_numbers(layout):
    x = numbers(0, 8, 2, 6)
    places = np.array([0, 1, 2, 3, 0, 1, 2, 9], "int32")
    _, found = run(
        lambda x, p: rotary(x, p, K, base=100.0), None, layout, x=([S, N, K], x), p=([S], places)
    )
    turned = x[..., :3] + 1j * x[..., 3:]
    angle = places[:, None] * 100.0 ** (-np.arange(3) / 3)
    turned = turned * np.exp(1j * angle)[:, None]
    expected = np.concatenate([turned.real, turned.imag], -1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_rotated_products_depend_on_the_distance_alone():
    def products(q, k):
        moved = [rotary(x, nm.range(S) + by, K) for x in (q, k) for by in (0, 5)]
        return [nm.sum(moved[i] * nm.roll(moved[i + 2], S, 1), over=K) for i in (0, 1)]

    pair = {"q": ([S, N, K], numbers(0, 8, 2, 6)), "k": ([S, N, K], numbers(1, 8, 2, 6))}
    near, far = nm.evaluate(products, **pair)
    np.testing.assert_allclose(near[1:], far[1:], rtol=1e-3, atol=1e-4)


def test_alibi_and_windows():
    bias = nm.evaluate(lambda: alibi(nm.range(T) - nm.range(S), N))
    for s in range(8):
        for t in range(8):
            for n in range(2):
                wanted = -abs(t - s) * 2.0 ** (-8 * (n + 1) / 2)
                assert math.isclose(bias[t, s, n], wanted, rel_tol=1e-5, abs_tol=1e-6)
    named = nm.evaluate(lambda: nm.transpose(window_mask(S, T, 3), [S, T]))
    expected = [[0 <= s - t < 3 for t in range(8)] for s in range(8)]
    assert np.array_equal(named, expected)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("layout", ["batch:a", "heads:a", "group:b"])
def test_queries_that_share_keys(layout, biased):
    """As attention with the keys and values of each head repeated for its queries."""
    heads = Heads(M, N, K, G)
    x = 0.3 * numbers(0, 4, 8, 16)
    sizes = {"wq": (16, 2, 4, 6), "wk": (16, 2, 6), "wv": (16, 2, 6), "wo": (2, 4, 6, 16)}
    state = {name: 0.3 * numbers(i, *size) for i, (name, size) in enumerate(sizes.items(), 1)}
    memory = heads.memory(S)

    def layer(x):
        bias = alibi(nm.range(memory) - nm.range(S), N) if biased else None
        return self_attention(x, S, heads, mask=causal_mask(S, memory), bias=bias)

    _, found = run(layer, state, layout, x=([B, S, M], x))
    q = np.einsum("bsm,mngk->bsngk", x, state["wq"])
    k, v = (np.einsum("bsm,mnk->bsnk", x, state[name]) for name in ("wk", "wv"))
    scores = np.einsum("bsngk,btnk->bngst", q, k) / math.sqrt(6)
    if biased:
        slopes = 2.0 ** (-8 * (np.arange(2) + 1) / 2)
        apart = np.abs(np.arange(8)[:, None] - np.arange(8))
        scores = scores - slopes[:, None, None, None] * apart
    scores = np.where(np.tril(np.ones((8, 8), bool)), scores, -np.inf)
    weights = np.asarray(jax.nn.softmax(scores, -1))
    mixed = np.einsum("bngst,btnk->bsngk", weights, v)
    expected = np.einsum("bsngk,ngkm->bsm", mixed, state["wo"])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["batch:a", "vocab:b"])
def test_losses(layout):
    x, p = numbers(0, 4, 16), np.asarray(jax.nn.softmax(numbers(1, 4, 16)))

    def losses(x, p):
        soft = soft_cross_entropy(x, p, V)
        yes = binary_cross_entropy(x * 30.0, p)
        return {"soft": soft, "yes": yes, "dx": nm.grad(nm.sum(soft) + nm.sum(yes), x)}

    _, found = run(losses, None, layout, x=([B, V], x), p=([B, V], p))

    def in_jax(x):
        soft = -jnp.sum(p * jax.nn.log_softmax(x), -1)
        wide = x * 30.0
        yes = -p * jax.nn.log_sigmoid(wide) - (1 - p) * jax.nn.log_sigmoid(-wide)
        return jnp.sum(soft) + jnp.sum(yes), (soft, yes)

    (_, (soft, yes)), dx = jax.value_and_grad(in_jax, has_aux=True)(jnp.asarray(x))
    np.testing.assert_allclose(found["soft"], soft, rtol=1e-5)
    np.testing.assert_allclose(found["yes"], yes, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["dx"], dx, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["batch:a", "rows:a", "channels:a, filter:b"])
def test_convolutions(layout):
    """Plain, strided and depthwise, against jax, and back with the same weight's shape."""
    D = nm.Dimension("filter", 4)
    columns = nm.Dimension("columns", 12)
    x, w = numbers(0, 4, 6, 12, 8), numbers(1, 3, 3, 8, 4)
    each = numbers(2, 3, 1, 8)
    state = {"w": w, "w_bias": numbers(3, 4), "each": each}

    def layers(x):
        y = convolution(x, {R: 3, columns: 3}, [C], [D], stride={R: 1, columns: 2}, bias=True)
        wide = convolution(
            y, {columns.resized(6): 2}, [D], [C], stride=2, transposed=True, name="back"
        )
        return {"y": y, "each": convolution(x, {R: 3, columns: 1}, [], [], keep=[C], name="each"),
                "back": wide}  # fmt: skip

    _, found = run(layers, state, layout, x=([B, R, columns, C], x))
    numbers_of = ("NHWC", "HWIO", "NHWC")

    def slide(x, w, *options, **named):
        return jax.lax.conv_general_dilated(jnp.asarray(x), jnp.asarray(w), *options, **named)

    plain = slide(x, w, (1, 2), "SAME", dimension_numbers=numbers_of)
    np.testing.assert_allclose(found["y"], plain + state["w_bias"], rtol=1e-4, atol=1e-4)
    depth = slide(
        x, each.reshape(3, 1, 1, 8), (1, 1), "SAME", dimension_numbers=numbers_of,
        feature_group_count=8,
    )  # fmt: skip
    np.testing.assert_allclose(found["each"], depth, rtol=1e-4, atol=1e-4)
    assert found["back"].shape == x.shape


def test_the_derivative_of_yes_or_no_is_how_far_the_probability_is_off():
    """At a score of zero too, which relus make."""
    scores = np.array([0.0, 1e-6, -3.0, 20.0, -90.0, 0.0], np.float32)
    targets = np.array([0.0, 1.0, 0.25, 1.0, 0.0, 1.0], np.float32)
    D = nm.Dimension("score", 6)
    slope = lambda x, y: nm.grad(nm.sum(binary_cross_entropy(x, y)), x)
    found = nm.evaluate(slope, x=([D], scores), y=([D], targets))
    wanted = 1 / (1 + np.exp(-scores.astype(np.float64))) - targets
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)


def test_groups_lie_where_their_channels_lay():
    norm = lambda x: group_norm(x, C, 4, over=[R])
    plan = nm.plan(nm.trace(norm, nm.spec([B, R, C])), nm.Mesh(a=2, b=2), "rows:a, channels:b")
    assert [(one.kind, one.axes) for one in plan.collectives] == [("AllReduce", ("a",))] * 2


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: group_norm(x, C, 3, over=[R]), "3 groups do not divide channels=8"),
        (lambda x: rotary(x, nm.range(R), nm.Dimension("odd", 3)), "no pairs"),
        (lambda x: window_mask(S, T, 0), "window=0 is not positive"),
    ],
)
def test_errors(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=nm.spec([B, R, C]))
