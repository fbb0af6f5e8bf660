"""Attention against plain NumPy, its masks against loops, and the same under every layout."""

import math

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import (
    Heads,
    causal_mask,
    cross_attention,
    distance_bucket,
    relative_bias,
    segment_mask,
    self_attention,
)

B, S, T, M, N, K = nm.dims("batch=4 seq=6 target=5 model=8 heads=4 key=3")
HEADS = Heads(M, N, K)
MEMORY = HEADS.memory(S)


def attention(q_in, kv_in, state, allowed, bias: np.ndarray | float = 0.0):
    """Attention as a formula."""
    q, k, v = (
        np.einsum("bsm,mnk->bsnk", x, state[name])
        for x, name in ((q_in, "wq"), (kv_in, "wk"), (kv_in, "wv"))
    )
    scores = np.einsum("bsnk,btnk->bnst", q, k) / math.sqrt(3) + bias
    scores = np.where(allowed, scores, -1e9)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    context = np.einsum("bnst,btnk->bsnk", e / e.sum(-1, keepdims=True), v)
    return np.einsum("bsnk,nkm->bsm", context, state["wo"])


def packed(rng):
    """Two examples in each row, then padding."""
    return np.array(
        [[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 0, 0], [1, 1, 1, 1, 1, 1], [1, 1, 2, 2, 2, 2]], np.int32
    )


def packed_self_attention(x, segments):
    mask = segment_mask(segments, nm.rename(segments, S, MEMORY)) & causal_mask(S, MEMORY)
    bias = relative_bias(nm.range(MEMORY) - nm.range(S), N, both_ways=False)
    return self_attention(x, S, HEADS, mask=mask, bias=bias)


def test_packed_causal_self_attention_with_relative_positions():
    rng = np.random.default_rng(0)
    x, segments = rng.normal(size=(4, 6, 8)).astype(np.float32), packed(rng)
    program = nm.trace(packed_self_attention, nm.spec([B, S, M]), nm.spec([B, S], "int32"))
    state = {name: np.asarray(value) for name, value in program.initial_state(1).items()}
    got = program.evaluate(state, x=x, segments=segments)[1]
    allowed = np.zeros((4, 1, 6, 6), bool)
    bias = np.zeros((4, 6, 6))
    for i in range(6):
        for j in range(6):
            allowed[:, 0, i, j] = (
                (segments[:, i] == segments[:, j]) & (segments[:, j] != 0) & (j <= i)
            )
            bias[:, i, j] = state["relative_bias"][min(max(i - j, 0), 15)]
    real = (segments != 0)[..., None]
    np.testing.assert_allclose(
        np.where(real, got, 0),
        np.where(real, attention(x, x, state, allowed, bias), 0),
        rtol=1e-4,
        atol=1e-5,
    )


def test_cross_attention():
    rng = np.random.default_rng(1)
    x, memory = (
        rng.normal(size=(4, 5, 8)).astype(np.float32),
        rng.normal(size=(4, 6, 8)).astype(np.float32),
    )
    program = nm.trace(
        lambda x, memory: cross_attention(x, memory, S, T, HEADS),
        nm.spec([B, T, M]),
        nm.spec([B, S, M]),
    )
    state = {name: np.asarray(value) for name, value in program.initial_state(2).items()}
    got = program.evaluate(state, x=x, memory=memory)[1]
    np.testing.assert_allclose(got, attention(x, memory, state, True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("mesh", "layout", "params"),
    [
        ("data=4 model=2", "batch:data, heads:model", None),
        ("data=4 model=2", "batch:data", "model:model"),
        ("model=4", "heads:model", None),
        ("data=2 seq=2", "batch:data, seq:seq", None),
    ],
)
def test_gradients_agree_under_every_layout(mesh, layout, params):
    rng = np.random.default_rng(3)
    x, segments = rng.normal(size=(4, 6, 8)).astype(np.float32), packed(rng)

    def step(x, segments):
        y = packed_self_attention(x, segments)
        return {"y": y, **nm.grad(nm.sum(y * nm.sin(y)), {"x": x, **nm.parameters()})}

    program = nm.trace(step, nm.spec([B, S, M]), nm.spec([B, S], "int32"))
    compiled = nm.compile(
        program, mesh=nm.Mesh.parse(mesh), layout=layout, params=params, strict=True
    )
    assert compiled.audit.exact, str(compiled.audit)
    state = {name: np.asarray(value) for name, value in program.initial_state(0).items()}
    wanted = program.evaluate(state, x=x, segments=segments)[1]
    _, got = compiled(compiled.place(state), x, segments)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=2e-5, err_msg=name)


def test_heads_on_an_axis_cost_one_all_reduce_forward():
    program = nm.trace(lambda x: self_attention(x, S, HEADS), nm.spec([B, S, M]))
    plan = nm.plan(program, nm.Mesh(data=4, model=2), "batch:data, heads:model")
    assert [(one.kind, one.axes) for one in plan.collectives] == [("AllReduce", ("model",))]


@pytest.mark.parametrize("both_ways", [True, False])
def test_buckets_are_exact_near_and_logarithmic_far(both_ways):
    (D,) = nm.dims("distance=401")
    program = nm.trace(lambda: distance_bucket(nm.range(D) - 200, 32, 128, both_ways))
    got = program.evaluate({})[1].numpy()
    half = 16 if both_ways else 32
    for distance, value in zip(range(-200, 201), got, strict=True):
        side, n = (half * (distance > 0), abs(distance)) if both_ways else (0, max(-distance, 0))
        exact = half // 2
        far = exact + int(
            math.log(max(n, 1) / exact) / math.log(128 / exact) * (half - exact) + 1e-6
        )
        assert value == side + (n if n < exact else min(far, half - 1)), distance
