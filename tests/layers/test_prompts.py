"""Decoding after prompts that are read at once: caches split in any way, padding, and options."""

import functools

import numpy as np
import pytest

import namedmesh as nm
from examples.llm.architecture import Architecture, Latent
from examples.llm.model import LanguageModel
from examples.llm.settings import Settings
from namedmesh.layers import Beam, Greedy, Sample, decode

SHAPE = Architecture(vocab=20, layers=2, model=16, hidden=24, heads=2, group=2, key=8)
LATENT = SHAPE.but(heads=4, group=1, latent=Latent(queries=6, keys=10, rotated=4, value=6))
LOCAL = SHAPE.but(window=3, local=(True, False))
SETTINGS = Settings(SHAPE, batch=2, length=9, layout="one")
B, N, T = nm.dims("batch=2 hypothesis=1 step=4")


def weights(program: nm.Program) -> dict[str, np.ndarray]:
    """The same numbers for every program of a model."""
    return {
        name: np.asarray(value) * (1.0 if "scale" in name else 3.0)
        for name, value in program.initial_state(seed=0).items()
    }


def tokens(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 20, (2, count)).astype(np.int32)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("shape", [SHAPE, LATENT, LOCAL], ids=["grouped", "latent", "local"])
def test_steps_after_a_prompt_are_whole_rows(shape, shards):
    """Five tokens at once and four one by one; the second row has two of padding in front."""
    model = LanguageModel(SETTINGS.but(architecture=shape, cache_shards=shards))
    P, S = nm.Dimension("prompt", 5), model.S

    def both(rows, padding):
        prompt = nm.rename(nm.slice(rows, S, 0, 5), S.resized(5), P)
        step, cache = model.decoding([B, N], nm.Dimension("position", 9), None, prompt, padding)
        rest = nm.rename(nm.slice(rows, S, 5, 4), S.resized(4), T)

        def one(cache, token):
            logits, cache = step(nm.broadcast(token, [B, N]), cache)
            return cache, nm.sum(logits, over=N)

        _, scores = nm.scan(one, cache, rest, over=T)
        whole = nm.slice(model.logits(rows, padding)[0], S, 5, 4)
        return nm.transpose(scores, [B, T, model.V]), whole

    program = nm.trace(both, nm.spec([B, S], "int32"), nm.spec([B], "int32"))
    steps, whole = program.evaluate(
        weights(program), rows=tokens(9), padding=np.array([0, 2], np.int32)
    )[1]
    np.testing.assert_allclose(steps, whole, rtol=1e-4, atol=1e-4)


@functools.cache
def sampled(mesh: str, layout: str, shards: int = 1) -> tuple[np.ndarray, ...]:
    """What is drawn at two temperatures after prompts, and the log probabilities."""
    model = LanguageModel(SETTINGS.but(cache_shards=shards))
    P = nm.Dimension("prompt", 4)

    def draw(prompt, last, temperature, top_p):
        method = Sample(nm.random.key(1), temperature=temperature, top_p=top_p)
        written = model.write_on(prompt, last, [B, N], T, method)
        return written["sequences"], written["log_probabilities"], written["scores"]

    scalar, row = nm.spec([]), nm.spec([B], "int32")
    program = nm.trace(draw, nm.spec([B, P], "int32"), row, nm.spec([B]), scalar)
    chosen = nm.Layout(layout).only(program.dims)
    step = nm.compile(program, mesh=nm.Mesh.parse(mesh), layout=chosen, strict=True)
    temperature = np.array([1.0, 0.0], np.float32)
    state, rows = step.place(weights(program)), tokens(5)
    results = step(state, rows[:, :4], rows[:, 4], temperature, np.float32(0.9))[1]
    return tuple(np.asarray(one) for one in results)


@pytest.mark.parametrize(
    ("mesh", "layout", "shards"),
    [
        ("data=2", "batch:data", 1),
        ("tensor=2", "heads:tensor, hidden:tensor, vocab:tensor", 1),
        ("context=2", "position_shard:context", 2),
    ],
    ids=["batch", "heads", "positions"],
)
def test_a_cache_split_in_any_way_draws_the_same_tokens(mesh, layout, shards):
    one, split = sampled("one=1", ""), sampled(mesh, layout, shards)
    assert one[0].tolist() == split[0].tolist()
    np.testing.assert_allclose(one[1], split[1], atol=1e-4)


def test_log_probabilities_add_up_to_scores():
    sequences, each, scores = sampled("one=1", "")
    assert (each < 0).all() and sequences.shape == each.shape
    np.testing.assert_allclose(each.sum(-1), scores, rtol=1e-5)


def test_a_cold_sequence_takes_the_likeliest_token():
    model = LanguageModel(SETTINGS)
    P = nm.Dimension("prompt", 4)
    write = lambda prompt, last: model.write_on(prompt, last, [B, N], T, Greedy())["sequences"]
    program = nm.trace(write, nm.spec([B, P], "int32"), nm.spec([B], "int32"))
    rows = tokens(5)
    greedy = np.asarray(program.evaluate(weights(program), prompt=rows[:, :4], last=rows[:, 4])[1])
    assert greedy[1].tolist() == sampled("one=1", "")[0][1].tolist()


@pytest.mark.parametrize("method", [Greedy(), Beam(N, alpha=0.0)], ids=["greedy", "beam"])
def test_any_of_several_tokens_ends_a_sequence(method):
    V = nm.Dimension("vocab", 8)
    step = lambda tokens, cache: (nm.one_hot(tokens + 1, V) * 50.0, cache)
    write = lambda first: decode(step, (), first, T, method, end=(3, 6))["sequences"]
    written = nm.evaluate(write, first=([B, N], [[1], [4]]))
    assert np.asarray(written).reshape(2, 4).tolist() == [[2, 3, 0, 0], [5, 6, 0, 0]]
