"""Models of the literature written with nm, under three layouts, against plain jax: to 1e-5."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm

RNG = np.random.default_rng(0)
MESH = nm.Mesh(a=2, b=2)


def draw(*sizes, scale=0.3):
    return RNG.normal(size=sizes).astype(np.float32) * np.float32(scale)


def assert_near(found, expected, tolerance=1e-5):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def normalize(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("layout", ["batch:a", "seq:a", "batch:b, seq:a, hidden:b"])
def test_fnet(layout):
    """Lee-Thorp et al., 2021: the real part of a Fourier transform in place of attention."""
    B, S, M, H = nm.dims("batch=4 seq=8 model=8 hidden=16")
    weights = {"up": draw(2, 8, 16), "down": draw(2, 16, 8)}
    x = draw(4, 8, 8, scale=1.0)

    def named(x, up, down):
        def layer(x, w):
            mixed = nm.real(nm.fft(nm.fft(x, M), S))
            centred = x + mixed - nm.mean(x + mixed, over=M)
            x = centred / nm.sqrt(nm.mean(nm.square(centred), over=M) + 1e-6)
            inner = nm.gelu(nm.einsum([x, w["up"]], [B, S, H]))
            return x + nm.einsum([inner, w["down"]], [B, S, M]), None

        L = up.shape[0]
        y, _ = nm.scan(layer, x, {"up": up, "down": down}, over=L)
        loss = nm.mean(nm.square(y))
        return loss, nm.grad(loss, {"x": x, "up": up, "down": down})

    def plain(given):
        x = given["x"]
        for up, down in zip(given["up"], given["down"], strict=True):
            x = normalize(x + jnp.fft.fft(jnp.fft.fft(x, axis=2), axis=1).real)
            x = x + jax.nn.gelu(x @ up, approximate=False) @ down
        return (x**2).mean()

    L = nm.Dimension("layer", 2)
    specs = nm.spec([B, S, M]), nm.spec([L, M, H]), nm.spec([L, H, M])
    step = nm.compile(named, *specs, mesh=MESH, layout=layout, strict=True)
    _, found = step(None, x, weights["up"], weights["down"])
    assert_near(found, jax.value_and_grad(plain)({"x": x, **weights}))
    if layout == "seq:a":
        assert step.plan.count("AllToAll") >= 4


@pytest.mark.parametrize("layout", ["edge:a", "head:a, edge:b", "node:a, edge:b"])
def test_graph_attention(layout):
    """Velickovic et al., 2018: softmax over the edges that end at a node."""
    N, E, M, K, D = nm.dims("node=6 edge=16 model=5 head=2 size=4")
    source, target = (RNG.integers(0, 6, 16).astype(np.int32) for _ in range(2))
    given = {
        "x": draw(6, 5, scale=1.0), "w": draw(5, 2, 4), "left": draw(2, 4), "right": draw(2, 4)
    }  # fmt: skip

    def named(x, w, left, right, source, sink):
        h = nm.einsum([x, w], [N, K, D])
        scores = [nm.einsum([h, one], [N, K]) for one in (left, right)]
        edges = nm.gather(scores[0], source, N) + nm.gather(scores[1], sink, N)
        share = nm.segment_softmax(nm.leaky_relu(edges, 0.2), sink, N)
        y = nm.segment_sum(nm.gather(h, source, N) * share, sink, N)
        loss = nm.sum(nm.square(nm.elu(y)))
        return loss, nm.grad(loss, {"x": x, "w": w, "left": left, "right": right})

    def plain(given):
        h = jnp.einsum("nm,mkd->nkd", given["x"], given["w"])
        left, right = ((h * given[one]).sum(-1) for one in ("left", "right"))
        scores = jax.nn.leaky_relu(left[source] + right[target], 0.2)
        weights = jnp.exp(scores - jax.ops.segment_max(scores, target, 6)[target])
        share = weights / jax.ops.segment_sum(weights, target, 6)[target]
        y = jax.ops.segment_sum(h[source] * share[..., None], target, 6)
        return (jax.nn.elu(y) ** 2).sum()

    sizes = {"x": [N, M], "w": [M, K, D], "left": [K, D], "right": [K, D]}
    specs: dict[str, Any] = {name: nm.spec(dims) for name, dims in sizes.items()}
    specs |= {"source": nm.spec([E], "int32"), "sink": nm.spec([E], "int32")}
    step = nm.compile(named, **specs, mesh=MESH, layout=layout, strict=True)
    _, found = step(None, **given, source=source, sink=target)
    assert_near(found, jax.value_and_grad(plain)(given))


class PlainSoap:
    """SOAP in jax, of matrices."""

    def __init__(self, weights, rate, every):
        self.rate, self.every, self.count = rate, every, 0
        self.first, self.second = (jax.tree.map(jnp.zeros_like, weights) for _ in range(2))
        self.moments = {k: [jnp.zeros((n, n)) for n in w.shape] for k, w in weights.items()}
        self.bases = {}

    def update(self, weights, grads):
        new, b1, b2, t = dict(weights), 0.95, 0.95, self.count
        for key, g in grads.items():
            if t > 0:
                left, right = self.bases[key]
                turned = left.T @ g @ right
                self.first[key] = self.first[key] * b1 + g * (1 - b1)
                self.second[key] = self.second[key] * b2 + turned**2 * (1 - b2)
                scale = jnp.sqrt(self.second[key] / (1 - b2**t)) + 1e-8
                change = (left.T @ self.first[key] @ right) / (1 - b1**t) / scale
                new[key] = weights[key] - self.rate * left @ change @ right.T
            pairs = zip(self.moments[key], (g @ g.T, g.T @ g), strict=True)
            both = self.moments[key] = [m * b2 + p * (1 - b2) for m, p in pairs]
            if t == 0:
                self.bases[key] = [jnp.linalg.eigh(m)[1] for m in both]
            elif t % self.every == 0:
                pairs = zip(both, self.bases[key], strict=True)
                self.bases[key] = [jnp.linalg.qr(m @ q)[0] for m, q in pairs]
        self.count += 1
        return new


@pytest.mark.parametrize(
    "layout", ["batch:a", "batch:a, hidden:b", "batch:a|model:b, model_twin:a"]
)
def test_soap_on_a_transformer(layout):
    """Vyas et al., 2024: one layer of attention and a feed-forward one, five steps."""
    B, S, M, T, H = nm.dims("batch=8 seq=6 model=4 key=6 hidden=4")
    names = {"q": (M, H), "k": (M, H), "v": (M, H), "o": (H, M), "up": (M, H), "down": (H, M)}
    weights = {name: draw(4, 4, scale=0.7) for name in names}

    def train(x, y):
        w = {name: nm.param(name, dims, init=weights[name]) for name, dims in names.items()}
        q, k, v = (nm.einsum([x, w[name]], [B, S, H]) for name in "qkv")
        scores = nm.einsum([q, nm.rename(k, S, T)], [B, S, T]) * 0.5
        mixed = nm.einsum([nm.softmax(scores, over=T), nm.rename(v, S, T)], [B, S, H])
        h = x + nm.einsum([mixed, w["o"]], [B, S, M])
        inner = nm.tanh(nm.einsum([h, w["up"]], [B, S, H]))
        loss = nm.mean(nm.square(h + nm.einsum([inner, w["down"]], [B, S, M]) - y))
        nm.layers.Soap(1e-3, every=2).apply(nm.grad(loss))
        return loss

    def plain(w, x, y):
        q, k, v = (x @ w[name] for name in "qkv")
        h = x + jax.nn.softmax(q @ k.swapaxes(1, 2) * 0.5) @ v @ w["o"]
        return ((h + jnp.tanh(h @ w["up"]) @ w["down"] - y) ** 2).mean()

    layout, _, params = layout.partition("|")
    specs = nm.spec([B, S, M]), nm.spec([B, S, M])
    step = nm.compile(train, *specs, mesh=MESH, layout=layout, params=params or None, strict=True)
    state, soap, current = step.init(0), PlainSoap(weights, 1e-3, 2), weights
    slope = jax.jit(jax.value_and_grad(plain))
    for _ in range(5):  # of other data: in its own basis most of a gradient is zero
        x, y = draw(8, 6, 4, scale=1.0), draw(8, 6, 4, scale=1.0)
        state, loss = step(state, x, y)
        expected, grads = slope(current, x, y)
        current = soap.update(current, grads)
        assert_near(loss, expected)
    for name, value in current.items():
        assert_near(state[name], value)
