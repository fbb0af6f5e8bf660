"""Decoding with models that are not Transformers: a recurrent network and a Markov chain."""

import itertools

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import Beam, Greedy, Sample, decode

B, N, T, V, H, J = nm.dims("batch=4 hypothesis=3 step=3 vocab=6 hidden=6 hidden_before=6")
END = 1
RNG = np.random.default_rng(0)
WEIGHTS = {
    "embedding": RNG.normal(size=(6, 6)).astype(np.float32),
    "recurrent": RNG.normal(size=(6, 6)).astype(np.float32),
    "output": RNG.normal(size=(6, 6)).astype(np.float32),
    "start": RNG.normal(size=(4, 6)).astype(np.float32),
}
SPECS = {
    "embedding": nm.spec([V, H]),
    "recurrent": nm.spec([J, H]),
    "output": nm.spec([H, V]),
    "start": nm.spec([B, H]),
}
SPLIT = [(1, ""), (2, "batch:all"), (2, "vocab:all"), (2, "hidden:all")]


def recurrent(weights, rows, method, end: int | None = END):
    """Decode with a recurrent network; its cache is a state for each row, and a shared count."""

    def step(tokens, cache):
        state, count = cache
        x = nm.gather(weights["embedding"], tokens, V)
        before = nm.rename(state, H, J)
        state = nm.tanh(x + nm.einsum([before, weights["recurrent"]], [*rows, H]))
        logits = nm.einsum([state, weights["output"]], [*rows, V]) * nm.cast(count, "float32")
        return logits, (state, count + 1)

    start = nm.broadcast(weights["start"], [*rows, H])
    return decode(step, (start, 1), nm.zeros(rows, "int32"), T, method, end=end)


def log_probabilities(g: int, prefix: tuple[int, ...]) -> np.ndarray:
    """The same network for one batch element: what follows a prefix."""
    state = WEIGHTS["start"][g]
    for token in (0, *prefix):
        state = np.tanh(WEIGHTS["embedding"][token] + state @ WEIGHTS["recurrent"])
    logits = state @ WEIGHTS["output"] * (len(prefix) + 1)
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def score(g: int, sequence: tuple[int, ...]) -> float:
    return sum(log_probabilities(g, sequence[:i])[token] for i, token in enumerate(sequence))


def run(function, devices: int, layout: str, specs=SPECS, arrays=WEIGHTS):
    step = nm.compile(
        function, weights=specs, mesh=nm.Mesh(all=devices), layout=layout, strict=True
    )
    return {name: np.asarray(value) for name, value in step(None, **arrays)[1].items()}


@pytest.mark.parametrize(("devices", "layout"), SPLIT)
def test_greedy_is_a_loop_in_numpy(devices, layout):
    results = run(lambda weights: recurrent(weights, [B], Greedy()), devices, layout)
    for g in range(B.size):
        sequence = ()
        while len(sequence) < T.size and END not in sequence:
            sequence += (int(log_probabilities(g, sequence).argmax()),)
        padded = [*sequence, *[0] * (T.size - len(sequence))]
        assert results["sequences"][g].tolist() == padded
        assert results["scores"][g] == pytest.approx(score(g, sequence), rel=1e-5)


@pytest.mark.parametrize(("devices", "layout"), SPLIT)
def test_a_wide_beam_is_an_exhaustive_search(devices, layout):
    wide = N.resized(1 + 5 + 25)
    results = run(lambda weights: recurrent(weights, [B, wide], Beam(wide)), devices, layout)
    others = [token for token in range(V.size) if token != END]
    for g in range(B.size):
        every = []
        for length in range(T.size):
            for prefix in itertools.product(others, repeat=length):
                penalty = ((5 + length + 1) / 6) ** 0.6
                every.append((score(g, (*prefix, END)) / penalty, (*prefix, END)))
        every = sorted(every, reverse=True)[:10]
        np.testing.assert_allclose(results["scores"][g, :10], [s for s, _ in every], rtol=1e-5)
        padded = [[*sequence, *[0] * (T.size - len(sequence))] for _, sequence in every]
        assert results["sequences"][g, :10].tolist() == padded


def test_without_an_end_token_every_sequence_has_every_step():
    wide = N.resized(36)
    beam = lambda weights: recurrent(weights, [wide, B], Beam(wide, alpha=1.0), end=None)
    results = run(beam, 2, "batch:all")
    assert results["sequences"].shape == (4, 36, 3)
    for g in range(B.size):
        every = sorted(
            ((score(g, one) / (8 / 6), one) for one in itertools.product(range(6), repeat=3)),
            reverse=True,
        )[:10]
        assert [tuple(one) for one in results["sequences"][g, :10]] == [one for _, one in every]
        np.testing.assert_allclose(results["scores"][g, :10], [s for s, _ in every], rtol=1e-5)


def test_a_beam_of_one_without_a_batch_is_greedy():
    weights = {**WEIGHTS, "start": WEIGHTS["start"][0]}
    specs, one = {**SPECS, "start": nm.spec([H])}, N.resized(1)
    beam, greedy = (
        run(lambda weights, m=m: recurrent(weights, [one], m, end=None), 1, "", specs, weights)
        for m in (Beam(one, alpha=0.0), Greedy())
    )
    assert beam["sequences"].tolist() == greedy["sequences"].tolist()
    np.testing.assert_allclose(beam["scores"], greedy["scores"], rtol=1e-6)


def test_samples_of_a_markov_chain_come_as_often_as_it_says():
    draws, S = nm.dims("draw=20000 step=2")
    transitions = RNG.dirichlet(np.ones(3), size=3).astype(np.float32)
    words = V.resized(3)

    def walk(weights):
        log_table = nm.log(weights["table"])
        step = lambda tokens, cache: (nm.gather(log_table, tokens, J.resized(3)), cache)
        first = nm.full([draws], 2, "int32")
        return decode(step, (), first, S, Sample(nm.random.key(1)))

    specs = {"table": nm.spec([J.resized(3), words])}
    one, split = (
        run(walk, devices, layout, specs, {"table": transitions})
        for devices, layout in ((1, ""), (2, "draw:all"))
    )
    expected = transitions[2][:, None] * transitions  # the first word, then the second
    first, second = one["sequences"].T
    share = np.bincount(first * 3 + second, minlength=9).reshape(3, 3) / draws.size
    np.testing.assert_allclose(share, expected, atol=5 * np.sqrt(0.25 / draws.size))
    np.testing.assert_allclose(one["scores"], np.log(expected[first, second]), rtol=1e-4)
    np.testing.assert_array_equal(one["sequences"], split["sequences"])
