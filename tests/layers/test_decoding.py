"""Decoding token by token equals decoding at once; both beam searches agree; nothing is copied."""

import re

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import Batch, Beam, Config, Decoder, Greedy, Transformer

# With room for every token, so that the model all at once drops none either.
CONFIG = Config(
    layers=8,
    experts=4,
    model=16,
    hidden=32,
    heads=2,
    key=8,
    source_vocab=12,
    target_vocab=6,
    capacity_factor=4.0,
    dropout=0.0,
)
VARIANTS = {
    "paper": CONFIG,
    "modern": CONFIG.but(
        positions="relative", normalizer="rms", activation="swish", gated=True, tied=False, k=1
    ),
    "dense": CONFIG.but(experts=0, layers=4, positions="learned", norm="post"),
}
LAYOUT = "group:all, expert:all"


def model_of(config: Config, target: int = 5) -> Transformer:
    return Transformer(config, group=8, source=6, target=target)


def sentences() -> dict[str, np.ndarray]:
    """Sources of several lengths, one a row."""
    source = np.random.default_rng(0).integers(2, 12, size=(8, 6)).astype(np.int32)
    segments = (np.arange(6) < np.array([6, 5, 4, 3, 6, 5, 2, 1])[:, None]).astype(np.int32)
    return {"source": source * segments, "segments": segments}


def decoding(model: Transformer, method, **options) -> nm.Program:
    def decode(source, segments):
        decoder = Decoder(model, source, segments, **options)
        return decoder.decode(method(decoder.N))

    spec = nm.spec([model.G, model.S], "int32")
    return nm.trace(decode, source=spec, segments=spec)


def log_probabilities(model: Transformer) -> nm.Program:
    """All at once: the log probability of every token of given targets."""

    def score(source, segments, target):
        positions = lambda dim, like: nm.broadcast(nm.range(dim), like.shape)
        whole = nm.ones(target.shape, "int32")
        batch = Batch(
            source, segments, positions(model.S, source), target, whole, positions(model.T, target)
        )
        encoded, _ = model.encode(source, segments, batch.source_positions)
        decoded, _ = model.decode(batch, nm.shift(target, model.T, 1), encoded)
        return nm.log_softmax(model.scores(decoded), over=model.W)

    spec = nm.spec([model.G, model.S], "int32")
    return nm.trace(score, source=spec, segments=spec, target=nm.spec([model.G, model.T], "int32"))


@pytest.mark.parametrize(
    "variant", ["paper", pytest.param("modern", marks=pytest.mark.slow), "dense"]
)
def test_one_token_at_a_time_is_all_at_once(variant):
    model = model_of(VARIANTS[variant])
    program = decoding(model, lambda N: Greedy())
    state = {name: np.asarray(value) for name, value in program.initial_state(0).items()}
    step = nm.compile(
        program, mesh=nm.Mesh(all=4), layout=nm.Layout(LAYOUT).only(program.dims), strict=True
    )
    found = step(step.place(state), **sentences())[1]
    sequences, scores = np.asarray(found["sequences"])[:, 0], np.asarray(found["scores"])[:, 0]
    _, reference = log_probabilities(model).evaluate(state, **sentences(), target=sequences)
    reference = np.asarray(reference)
    for g, sequence in enumerate(sequences):
        ends = np.flatnonzero(sequence == 1)
        length = ends[0] + 1 if len(ends) else len(sequence)
        assert sequence[:length].tolist() == reference[g, :length].argmax(-1).tolist()
        assert scores[g] == pytest.approx(
            reference[g, np.arange(length), sequence[:length]].sum(), rel=1e-4
        )


def cache_lines(text: str, shape: str) -> dict[str, set[str]]:
    """Find the kinds of instruction that make a tensor of a shape, in the entry and elsewhere."""
    kinds: dict[str, set[str]] = {"entry": set(), "elsewhere": set()}
    where = "elsewhere"
    for line in text.splitlines():
        if line.endswith("{"):
            where = "entry" if line.startswith("ENTRY") else "elsewhere"
        found = re.search(rf"= {re.escape(shape)}(?:{{[\d,]*}})? ([\w-]+)\(", line)
        if found:
            kinds[where].add(found.group(1))
    return kinds


@pytest.fixture(scope="module")
def searches():
    """Flat and ordinary search on one random model: what they found, and what was compiled."""
    model, made, state = model_of(CONFIG), {}, None
    for flat in (True, False):
        program = decoding(model, Beam, hypotheses=3, flat=flat)
        state = state or program.initial_state(3)
        step = nm.compile(program, mesh=nm.Mesh(all=4), layout=LAYOUT, strict=True)
        found = step(
            step.place({name: np.asarray(value) for name, value in state.items()}), **sentences()
        )[1]
        made[flat] = {name: np.asarray(value) for name, value in found.items()}, step.text
    return made


@pytest.mark.slow
def test_flat_and_ordinary_search_find_the_same(searches):
    (flat, _), (ordinary, _) = searches[True], searches[False]
    np.testing.assert_array_equal(flat["sequences"], ordinary["sequences"])
    np.testing.assert_allclose(flat["scores"], ordinary["scores"], rtol=1e-5)
    assert len({tuple(one) for one in flat["sequences"].reshape(-1, 5)}) > 3, "the sentences differ"


@pytest.mark.slow
def test_the_step_of_flat_search_appends_to_the_cache_and_never_copies_it(searches):
    # A row for each of 2 x 5 layers and steps, 2 sentences a device, 3 hypotheses, heads, key.
    shape = "f32[10,2,3,2,8]"
    flat, ordinary = cache_lines(searches[True][1], shape), cache_lines(searches[False][1], shape)
    quiet = {
        "parameter",
        "get-tuple-element",
        "tuple",
        "while",
        "bitcast",
        "dynamic-update-slice",
        "fusion",
        "broadcast",
    }
    assert "dynamic-update-slice" in flat["elsewhere"]
    assert flat["elsewhere"] <= quiet, (
        "loop bodies only append; the entry may copy the empty cache to begin with"
    )
    assert ordinary["elsewhere"] - quiet, (
        "ordinary search puts its cache in another order, so the test can fail"
    )
    for line in searches[True][1].splitlines():
        if f"= {shape}" in line and " fusion(" in line and "dynamic-update-slice" not in line:
            assert "broadcast" in line, (
                "a fusion makes the cache otherwise than by appending: " + line
            )
