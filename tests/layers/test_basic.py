"""Dense layers, norms, embeddings, positions, dropout and losses against plain NumPy."""

import math

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import (
    cross_entropy,
    dense,
    dropout,
    embedding,
    feed_forward,
    layer_norm,
    learned_positions,
    rms_norm,
    sinusoids,
    vocabulary_logits,
    weighted_mean,
)

B, S, M, H, V, N, K = nm.dims("batch=4 seq=6 model=8 hidden=16 vocab=12 heads=2 key=4")


def run(function, seed: int = 0, **inputs):
    """Results and parameters of an unsharded run."""
    program = nm.trace(
        function,
        **{name: nm.spec(dims, str(array.dtype)) for name, (dims, array) in inputs.items()},
    )
    state = {name: np.asarray(value) for name, value in program.initial_state(seed).items()}
    return program.evaluate(state, **{name: array for name, (_, array) in inputs.items()})[1], state


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(4, 6, 8)).astype(np.float32)


def test_dense_contracts_and_brings_new_dimensions(x):
    got, state = run(lambda x: dense(x, [M], [N, K], bias=True), x=([B, S, M], x))
    np.testing.assert_allclose(
        got, np.einsum("bsm,mnk->bsnk", x, state["w"]) + state["w_bias"], rtol=1e-5, atol=1e-6
    )
    assert 0.5 < state["w"].std() * math.sqrt(8) < 1.5


@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward(x, gated):
    got, state = run(lambda x: feed_forward(x, M, H, gated=gated), x=([B, S, M], x))
    h = np.maximum(x @ state["wi"], 0)
    h = h * (x @ state["wi_gate"]) if gated else h
    np.testing.assert_allclose(got, h @ state["wo"], rtol=1e-4, atol=1e-5)


def test_norms(x):
    got, _ = run(
        lambda x: {"layer": layer_norm(x, M), "rms": rms_norm(x, M, name="rms")}, x=([B, S, M], x)
    )
    centred = x - x.mean(-1, keepdims=True)
    np.testing.assert_allclose(
        got["layer"],
        centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6),
        rtol=1e-4,
        atol=1e-5,
    )
    np.testing.assert_allclose(
        got["rms"], x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6), rtol=1e-4, atol=1e-5
    )


def test_embeddings_tied_and_not():
    tokens = np.random.default_rng(1).integers(0, 12, size=(4, 6)).astype(np.int32)

    def model(tokens):
        x = embedding(tokens, V, M)
        return {
            "x": x,
            "tied": vocabulary_logits(x, V, M),
            "own": vocabulary_logits(x, V, M, name="softmax"),
        }

    got, state = run(model, tokens=([B, S], tokens))
    assert sorted(state) == ["embedding", "softmax"]
    np.testing.assert_allclose(got["x"], state["embedding"][tokens] * math.sqrt(8), rtol=1e-5)
    np.testing.assert_allclose(
        got["tied"], np.asarray(got["x"]) @ state["embedding"].T, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        got["own"], np.asarray(got["x"]) @ state["softmax"].T, rtol=1e-4, atol=1e-5
    )


def test_positions():
    positions = np.tile(np.arange(6, dtype=np.int32), (4, 1))
    L = nm.Dimension("length", 10)
    got, state = run(
        lambda p: {"sin": sinusoids(p, M), "learned": learned_positions(p, L, M)},
        p=([B, S], positions),
    )
    rates = 10_000.0 ** (-np.arange(4) / 3)
    angles = positions[..., None] * rates
    np.testing.assert_allclose(
        got["sin"], np.concatenate([np.sin(angles), np.cos(angles)], -1), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(got["learned"], state["positions"][positions])


def test_dropout_keeps_the_mean_and_stops_without_a_key(x):
    ones = np.ones((4, 6, 8), np.float32)
    program = nm.trace(
        lambda x: (dropout(x, 0.25, nm.random.key(1)), dropout(x, 0.25, None)), nm.spec([B, S, M])
    )
    dropped, same = program.evaluate({}, x=ones)[1]
    np.testing.assert_array_equal(same, ones)
    assert set(np.round(np.unique(dropped), 4)) == {0.0, np.float32(1.3333)}
    assert 0.6 < np.mean(dropped.numpy() > 0) < 0.9


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_the_divergence_from_the_smoothed_target(smoothing):
    rng = np.random.default_rng(2)
    scores, targets = (
        rng.normal(size=(4, 6, 12)).astype(np.float32),
        rng.integers(0, 12, size=(4, 6)).astype(np.int32),
    )
    weights = rng.integers(0, 2, size=(4, 6)).astype(np.float32)

    def model(scores, targets, weights):
        loss, z = cross_entropy(scores, targets, V, smoothing=smoothing, z_loss=1e-2)
        return {"loss": loss, "z": z, "mean": weighted_mean(loss, weights)}

    got, _ = run(
        model, scores=([B, S, V], scores), targets=([B, S], targets), weights=([B, S], weights)
    )
    wide = scores.astype(np.float64)
    log_p = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    q = np.full((4, 6, 12), smoothing / 11)
    np.put_along_axis(q, targets[..., None], 1 - smoothing, -1)
    entropy = np.where(q > 0, q * np.log(np.where(q > 0, q, 1)), 0).sum(-1)
    wanted = entropy - (q * log_p).sum(-1)
    np.testing.assert_allclose(got["loss"], wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["z"], 1e-2 * np.log(np.exp(wide).sum(-1)) ** 2, rtol=1e-4)
    np.testing.assert_allclose(got["mean"], (wanted * weights).sum() / weights.sum(), rtol=1e-4)


def test_wrong_options_are_named():
    with pytest.raises(nm.NamedMeshError, match=r"dropout: rate=1\.5"):
        nm.trace(lambda x: dropout(x, 1.5, None), nm.spec([B]))
    with pytest.raises(nm.NamedMeshError, match="'rely' is not an activation"):
        nm.trace(lambda x: feed_forward(x, M, H, activation="rely"), nm.spec([B, M]))
