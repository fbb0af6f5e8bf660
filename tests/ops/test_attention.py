"""nm.attention against attention written out, its derivatives, and its kernel, under layouts."""

import math
from typing import Any, cast

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.artifacts.stablehlo import prepare
from namedmesh.ops.random_bits import spread_bits
from tests.checks import assert_same, evaluated
from tests.ops.attention_cases import ARRAYS, LAYOUTS, SPECS, B, K, N, S, T, by_matrices, make_step


def write_out(q, k, v, over, key, *, mask, rate, dropout_key):
    """Attention by nm.softmax, differentiated op by op; dropout by the words it draws."""
    scores = nm.einsum([q, k], [B, N, S, T]) * (1.0 / math.sqrt(key.size))
    if mask is not None:
        scores = nm.where(mask, scores, -1e9)
    weights = nm.softmax(scores, over=over)
    if mask is not None:
        weights = nm.where(mask, weights, 0.0)
    if rate:
        kept = spread_bits(nm.random.bits(dropout_key, [B, N, S]), T) >= int(rate * 2**32)
        weights = nm.where(kept, weights / (1.0 - rate), 0.0)
    return nm.einsum([weights, v], [B, S, N, K])


def test_values_are_those_of_numpy():
    q, k, v = (ARRAYS[name].astype(np.float64) for name in "qkv")
    segments, memory = ARRAYS["segments"], ARRAYS["memory_segments"]
    mask = (segments[:, :, None] == memory[:, None, :]) & (memory[:, None, :] > 0)
    mask &= np.arange(32)[None, None] <= np.arange(16)[None, :, None] + 16
    wanted = np.zeros((8, 16, 4, 16))
    for b in range(8):
        for n in range(4):
            for s in range(16):
                allowed = [t for t in range(32) if mask[b, s, t]]
                scores = np.array([q[b, s, n] @ k[b, t, n] / 4.0 for t in allowed])
                parts = np.exp(scores - scores.max()) if allowed else scores
                for part, t in zip(parts, allowed, strict=True):
                    wanted[b, s, n] += part / parts.sum() * v[b, t, n]
    assert not mask.any(2).all()  # some queries may attend to nothing
    found = evaluated(nm.trace(make_step(), **SPECS), ARRAYS)
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_derivatives_are_those_of_attention_written_out(rate, masked):
    found = evaluated(nm.trace(make_step(rate, masked), **SPECS), ARRAYS)
    wanted = evaluated(nm.trace(make_step(rate, masked, write_out), **SPECS), ARRAYS)
    assert_same(found, wanted)


def test_second_derivatives_are_those_of_attention_written_out():
    def step(attend):
        def function(q, k, v):
            y = attend(q, k, v, T, K, mask=None, rate=0.0, dropout_key=None)
            dq, dk = nm.grad(nm.sum(nm.square(y)), [q, k])
            return dict(zip("qkv", nm.grad(nm.sum(dq * dq) + nm.sum(dk), [q, k, v]), strict=True))

        specs = {name: SPECS[name] for name in "qkv"}
        arrays = {name: ARRAYS[name] / 4 for name in "qkv"}
        return evaluated(nm.trace(function, **specs), arrays)

    assert_same(step(nm.attention), step(write_out))


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.filterwarnings("ignore:no dimension is mapped")
def test_layouts_and_kernels_change_no_number(layout, kernels, partitioner, monkeypatch):
    """Dropout included: named ops and kernel, and every device, drop the same weights."""
    called = []

    def find_kernel(name, options, reads, platforms):
        called.append(name)
        return by_matrices(options, reads)[name] if kernels else None

    monkeypatch.setattr(prepare, "find_kernel", find_kernel)
    program = nm.trace(make_step(rate=0.3), **SPECS)
    plan = nm.plan(program, nm.Mesh(a=2, b=4), layout)
    step = nm.Step(plan, strict=True, partitioner=partitioner)
    _, found = step(None, **ARRAYS)
    assert_same(found, evaluated(program, ARRAYS), rtol=2e-5, atol=2e-5)
    fits = {"memory:b": [], "key:b": [], "seq:b": ["attention"]}
    assert called == fits.get(layout, ["attention", "attention_backward"])


@pytest.mark.parametrize("dtype, rounding", [("float16", 2**-11), ("bfloat16", 2**-8)])
@pytest.mark.parametrize("block", [None, 8])
def test_narrow_dtypes_are_off_by_what_rounding_the_scores_makes(dtype, rounding, block):
    def step(q, k, v):
        q, k, v = (nm.cast(x, dtype) for x in (q, k, v))
        return {"y": nm.cast(nm.attention(q, k, v, T, K, block=block), "float32")}

    program = nm.trace(step, **{name: SPECS[name] for name in "qkv"})
    arrays = {name: ARRAYS[name] for name in "qkv"}
    _, found = nm.Step(nm.plan(program, nm.Mesh(a=8), "batch:a"), strict=True)(None, **arrays)
    q, k, v = (array.astype(np.float64) for array in arrays.values())
    scores = np.einsum("bsnk,btnk->bnst", q, k) / 4.0
    parts = np.exp(scores)
    wanted = np.einsum("bnst,btnk->bsnk", parts / parts.sum(-1, keepdims=True), v)
    off = np.abs(np.asarray(found["y"]) - wanted).max()
    assert off < 2 * rounding * np.abs(scores).max() * np.abs(v).max()


def few():
    """A mask of too few keys."""
    return nm.range(nm.Dimension("memory", 4)) > 0


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda q, k, v: nm.attention(q, k, v, S, K), "seq"),
        (lambda q, k, v: nm.attention(q, q, q, S, K), "queries have the keys' positions"),
        (lambda q, k, v: nm.attention(q, k, nm.sum(v, N), T, K), "values do not have"),
        (lambda q, k, v: nm.attention(nm.sum(q, N), k, v, T, K), "which queries lack"),
        (lambda q, k, v: nm.attention(q, k, nm.cast(v, "bfloat16"), T, K), "dtypes"),
        (lambda q, k, v: nm.attention(q, k, v, T, K, mask=nm.range(T)), "compare, e.g. mask > 0"),
        (
            lambda q, k, v: nm.attention(q, k, v, T, K, mask=few()),
            "memory=4, scores have memory=32",
        ),
        (lambda q, k, v: nm.attention(q, k, v, K, K), "positions and of a key at once"),
        (lambda q, k, v: nm.attention(q, k, v, T, K, scale=math.nan), "scale=nan"),
        (lambda q, k, v: nm.attention(q, k, v, T, K, block=cast(Any, 2.0)), "block=2.0"),
        (lambda q, k, v: nm.attention(q, k, v, T, K, mask=nm.range(K) > 0), "scores lack"),
        (lambda q, k, v: nm.attention(q, k, v, T, K, rate=1.0), "rate=1.0"),
        (lambda q, k, v: nm.attention(q, k, v, cast(Any, 3), K), "not a Dimension"),
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, **{name: SPECS[name] for name in "qkv"})
