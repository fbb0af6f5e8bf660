"""Gating against a literal transcription of Algorithm 1, and its relatives against plain NumPy."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import (
    EinsumDispatch,
    expert_capacity,
    expert_choice_gating,
    jitter,
    top_k_gating,
)
from tests.layers.algorithm1 import softmax, top2_gating

SHAPES = [(3, 8, 4, 4), (2, 16, 4, 2), (1, 12, 8, 3), (4, 5, 2, 1), (2, 32, 16, 8)]


def run(function, **inputs):
    specs = {name: nm.spec(shape, str(array.dtype)) for name, (shape, array) in inputs.items()}
    program = nm.trace(function, **specs)
    return program.evaluate({}, **{name: array for name, (_, array) in inputs.items()})[1]


def logits_with_ties(rng, shape):
    """Few distinct values, so that many experts tie."""
    return rng.integers(-2, 3, size=shape).astype(np.float32)


def left_out_at_random(logits, draws, padding):
    """The share of real tokens whose second gate, doubled, is not above the draw, one by one."""
    left_out = 0
    for place in zip(*np.nonzero(~padding), strict=True):
        first, second = np.sort(np.exp(logits[place].astype(np.float64)))[::-1][:2]
        left_out += 2 * second / (first + second) <= draws[place]
    return left_out / (~padding).sum()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_top2_is_algorithm_1(shape, ties, padded):
    G, S, E, C = (
        nm.Dimension(name, size)
        for name, size in zip(("group", "seq", "expert", "capacity"), shape, strict=True)
    )
    rng = np.random.default_rng(sum(shape))
    logits = (
        logits_with_ties(rng, shape[:3])
        if ties
        else rng.normal(size=shape[:3]).astype(np.float32) * 2
    )
    draws = rng.uniform(size=shape[:2]).astype(np.float32)
    padding = rng.uniform(size=shape[:2]) < 0.3 if padded else np.zeros(shape[:2], bool)

    def gate(logits, draws, padding):
        routing = top_k_gating(logits, S, E, C, draws=[draws], padding=padding if padded else None)
        combine = nm.transpose(EinsumDispatch(routing).combine_weights, [G, S, E, C])
        return {
            "combine": combine,
            "aux": routing.aux_loss,
            "left_out": routing.left_out,
            "no_room": routing.no_room,
            "load": routing.load,
        }

    got = run(gate, logits=([G, S, E], logits), draws=([G, S], draws), padding=([G, S], padding))
    groups = [top2_gating(logits[g], C.size, draws[g], padding[g]) for g in range(G.size)]
    np.testing.assert_allclose(
        got["combine"], np.stack([combine for combine, _, _ in groups]), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(got["aux"], np.mean([aux for _, aux, _ in groups]), rtol=1e-5)
    served = np.stack([one for _, _, one in groups], 1)
    dropped = got["left_out"] + got["no_room"]
    np.testing.assert_allclose(dropped, 1 - served.sum((1, 2)) / (~padding).sum(), atol=1e-6)
    if not ties:
        left_out = left_out_at_random(logits, draws, padding)
        np.testing.assert_allclose(got["left_out"], [0.0, left_out], atol=1e-6)
    load = (
        np.stack([(combine > 0).sum((0, 2)) for combine, _, _ in groups])
        / np.maximum((~padding).sum(1), 1)[:, None]
    )
    np.testing.assert_allclose(got["load"], load, atol=1e-6)


def test_the_auxiliary_loss_has_the_gradient_of_its_formula():
    G, S, E, C = nm.dims("group=2 seq=8 expert=4 capacity=4")
    logits = np.random.default_rng(0).normal(size=(2, 8, 4)).astype(np.float32)

    def gate(logits):
        routing = top_k_gating(logits, S, E, C, second="all")
        return nm.grad(routing.aux_loss, logits)

    got = run(gate, logits=([G, S, E], logits))
    gates = softmax(logits.astype(np.float64))
    share = np.stack(
        [np.bincount(gates[g].argmax(-1), minlength=4) / 8 for g in range(2)]
    )  # not differentiated
    dgates = np.broadcast_to(share[:, None] / (2 * 4 * 8), gates.shape)
    np.testing.assert_allclose(
        got, gates * (dgates - (gates * dgates).sum(-1, keepdims=True)), rtol=1e-4, atol=1e-8
    )


def test_switch_routing_weighs_by_the_gate_itself():
    G, S, E, C = nm.dims("group=1 seq=6 expert=3 capacity=6")
    logits = np.random.default_rng(1).normal(size=(1, 6, 3)).astype(np.float32)

    def gate(logits):
        routing = top_k_gating(logits, S, E, C, k=1, normalize="none")
        return {"weight": routing.weight, "expert": routing.expert, "z": routing.z_loss}

    got = run(gate, logits=([G, S, E], logits))
    gates = softmax(logits)
    np.testing.assert_array_equal(got["expert"][..., 0], gates.argmax(-1))
    np.testing.assert_allclose(got["weight"][..., 0], gates.max(-1), rtol=1e-5)
    np.testing.assert_allclose(got["z"], np.mean(np.log(np.exp(logits).sum(-1)) ** 2), rtol=1e-5)


@pytest.mark.parametrize("k", [3, 4])
def test_top_k_serves_the_k_best_when_there_is_room(k):
    G, S, E, C = nm.dims("group=2 seq=5 expert=6 capacity=20")
    logits = np.random.default_rng(k).normal(size=(2, 5, 6)).astype(np.float32)

    def gate(logits):
        routing = top_k_gating(logits, S, E, C, k=k, second="all")
        return nm.sum(EinsumDispatch(routing).combine_weights, over=C)

    gates = softmax(logits)
    wanted = np.where(gates >= np.sort(gates, -1)[..., -k][..., None], gates, 0)
    np.testing.assert_allclose(
        run(gate, logits=([G, S, E], logits)), wanted / wanted.sum(-1, keepdims=True), rtol=1e-5
    )


def test_weights_normalised_after_capacity_sum_to_one_for_every_served_token():
    G, S, E, C = nm.dims("group=2 seq=16 expert=4 capacity=3")
    logits = np.random.default_rng(2).normal(size=(2, 16, 4)).astype(np.float32) * 3

    def gate(logits):
        return top_k_gating(logits, S, E, C, second="all", normalize="after_capacity").weight

    total = np.asarray(run(gate, logits=([G, S, E], logits))).sum(-1)
    assert set(np.round(total, 4).ravel()) == {0.0, 1.0}


def test_experts_choose_their_best_tokens():
    G, S, E, C = nm.dims("group=2 seq=8 expert=3 capacity=4")
    logits = np.random.default_rng(3).normal(size=(2, 8, 3)).astype(np.float32)

    def gate(logits):
        routing = expert_choice_gating(logits, S, E, C)
        return {"token": routing.token, "weight": routing.weight}

    got = run(gate, logits=([G, S, E], logits))
    gates = softmax(logits).transpose(0, 2, 1)
    order = np.argsort(-gates, -1, kind="stable")[..., :4]
    np.testing.assert_array_equal(got["token"], order)
    np.testing.assert_allclose(got["weight"], np.take_along_axis(gates, order, -1), rtol=1e-5)


def test_capacity_is_twice_the_even_share_by_default():
    S, E = nm.dims("seq=2048 expert=128")
    assert expert_capacity(S, E).size == 32
    assert expert_capacity(S, E, 1.25).size == 20
    assert expert_capacity(nm.Dimension("seq", 4), E).size == 1


def test_jitter_stays_around_one():
    (B,) = nm.dims("batch=1000")
    made = nm.trace(lambda x: jitter(x, nm.random.key(0), 0.05), nm.spec([B])).evaluate(
        {}, x=np.ones(1000, np.float32)
    )[1]
    assert 0.95 <= made.numpy().min() < 0.96 and 1.04 < made.numpy().max() <= 1.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"second": "randum"}, "gating: second='randum' is not a choice"),
        ({"normalize": "never"}, "gating: normalize='never' is not a choice"),
        ({"k": 5}, "gating: k=5 of expert=4"),
        ({}, "needs 1 draws and got 0"),
    ],
)
def test_wrong_options_are_named(options, message):
    G, S, E, C = nm.dims("group=2 seq=8 expert=4 capacity=4")
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(lambda logits: top_k_gating(logits, S, E, C, **options).weight, nm.spec([G, S, E]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_count_beyond_their_digits(dtype):
    """No two tokens share a place, and tokens beyond the capacity are dropped."""
    tokens, places = 5000, 4500
    G, S, E, C = nm.dims(f"group=1 seq={tokens} expert=2 capacity={places}")
    logits = np.zeros((1, tokens, 2), np.float32) + np.array([3.0, 0.0], np.float32)

    def gate(logits):
        routing = top_k_gating(nm.cast(logits, dtype), S, E, C, k=1, second="all")
        assert {routing.weight.dtype, routing.aux_loss.dtype, routing.load.dtype} == {dtype}
        return {
            "place": routing.place,
            "weight": nm.cast(routing.weight, "float32"),
            "load": nm.cast(routing.load, "float32"),
        }

    got = run(gate, logits=([G, S, E], logits))
    np.testing.assert_array_equal(np.ravel(got["place"]), np.arange(tokens))
    np.testing.assert_array_equal(np.ravel(got["weight"]) > 0, np.arange(tokens) < places)
    np.testing.assert_allclose(got["load"], [[0.9, 0.0]], rtol=1e-2)


def test_expert_choice_in_16_bits_counts_beyond_their_digits():
    G, S, E, C = nm.dims("group=1 seq=5000 expert=2 capacity=2500")
    logits = np.random.default_rng(0).normal(size=(1, 5000, 2)).astype(np.float32)

    def gate(logits):
        routing = expert_choice_gating(nm.cast(logits, "bfloat16"), S, E, C)
        return {"load": nm.cast(routing.load, "float32")}

    np.testing.assert_allclose(
        run(gate, logits=([G, S, E], logits))["load"], [[0.5, 0.5]], rtol=1e-2
    )
