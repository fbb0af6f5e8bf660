"""Mistakes that users of the layers make: each is an error that shows the user's own line."""

import dataclasses
from typing import Any

import pytest

import namedmesh as nm
from namedmesh.layers import (
    Adafactor,
    Adam,
    Batch,
    Beam,
    Cache,
    Config,
    Decoder,
    Heads,
    Sample,
    Sgd,
    Transformer,
    batch_of,
    config,
    cross_entropy,
    decode,
    dense,
    expert_capacity,
    moe,
    relative_bias,
    top_k_gating,
)

G, S, M, H, E = nm.dims("group=2 seq=4 model=8 hidden=16 expert=4")
TINY = config("tiny")
FIELDS = [field.name for field in dataclasses.fields(Batch)]


def untyped(value: Any) -> Any:
    """Hides a wrong value from the type checker."""
    return value


def decoded(method=None, config=TINY, source=None, **options):
    model = Transformer(config, group=2, source=4, target=4)

    def program(source, segments):
        decoder = Decoder(model, source, segments, hypotheses=2, **options)
        return decoder.decode(method(decoder.N) if method else None)

    spec = nm.spec([model.G, model.S], "int32")
    return nm.trace(program, source=source(model) if source else spec, segments=spec)


def traced(function):
    return nm.trace(function, nm.spec([G, S, M]))


MISTAKES = {
    "Adam: beta1=2": lambda: Adam(0.1, beta1=2),
    "Sgd: momentum=1.5": lambda: Sgd(0.1, momentum=1.5),
    "Adam: learning_rate=nan": lambda: Adam(float("nan")),
    "Adam: weight_decay=-1": lambda: Adam(0.1, weight_decay=-1),
    "Adafactor: clipping_threshold=0": lambda: Adafactor(clipping_threshold=0),
    "Transformer: 'tiny' is not a Config": lambda: Transformer(
        untyped("tiny"), group=2, source=4, target=4
    ),
    "2 learned positions for sequences of 4 tokens": lambda: decoded(
        config=TINY.but(positions="learned", longest=2)
    ),
    "a dict is not a Batch": lambda: traced(
        lambda x: Transformer(TINY, 2, 4, 4).loss(untyped({}))[0]
    ),
    "a batch without source, source_segments, source_positions, target": lambda: batch_of({}),
    "dense: over=model=8 is one dimension": lambda: traced(lambda x: dense(x, untyped(M), [H])),
    "dense: x has no dimension hidden": lambda: traced(lambda x: dense(x, [H], [M])),
    "moe: 5 dimensions": lambda: traced(lambda x: moe(x, untyped(None), (G, S, E, M, H))),
    "gating: k=9 of expert=8": lambda: traced(
        lambda x: top_k_gating(nm.rename(x, M, E.resized(8)), S, E.resized(8), S, k=9)
    ),
    "expert_capacity: factor=nan": lambda: expert_capacity(S, E, float("nan")),
    "cross_entropy: smoothing=1.0": lambda: traced(
        lambda x: cross_entropy(x, nm.argmax(x, M), M, smoothing=1.0)
    ),
    "relative_bias: 1 buckets": lambda: traced(lambda x: relative_bias(nm.range(S), H, buckets=1)),
    "Beam: alpha=nan": lambda: decoded(lambda N: Beam(N, alpha=float("nan"))),
    "Beam: the first tokens have no dimension model=8": lambda: decoded(lambda N: Beam(M)),
    "Decoder: end=64 is not a token of target_vocab=64": lambda: decoded(end=64),
    "Decoder: start=-1 is not a token": lambda: decoded(start=-1),
    "Sample: temperature=1e-38": lambda: decoded(
        lambda N: Sample(nm.random.key(0), temperature=1e-38)
    ),
    "Sample: top_k=65 of target_vocab=64": lambda: decoded(
        lambda N: Sample(nm.random.key(0), top_k=65)
    ),
    "Decoder: the source is int32": lambda: decoded(
        source=lambda m: nm.spec([m.G, m.S, m.M], "int32")
    ),
    "Decoder: the source is float32": lambda: decoded(source=lambda m: nm.spec([m.G, m.S])),
    "Cache: flat=model=8 for tokens of group=2": lambda: Cache(S, H, Heads(M, E, H), [G], flat=M),
    "decode: first is float32[group=2, seq=4, model=8]": lambda: traced(
        lambda x: decode(lambda tokens, cache: (tokens, cache), (), x, H)
    ),
    "decode: the step returned a Tensor, not logits and a cache": lambda: traced(
        lambda x: decode(lambda tokens, cache: untyped(x), (), nm.argmax(x, M), H)
    ),
    "logits do not have the tokens' dimensions and a vocabulary": lambda: traced(
        lambda x: decode(lambda tokens, cache: (tokens, cache), (), nm.argmax(x, M), H)
    ),
    "decode: end=8 is not a token of model=8": lambda: traced(
        lambda x: decode(lambda tokens, cache: (x, cache), (), nm.argmax(x, M), H, end=8)
    ),
    "decode: a cache has seq=4, but not group=2": lambda: traced(
        lambda x: decode(lambda tokens, cache: (x, cache), nm.range(S), nm.argmax(x, M), H, Beam(S))
    ),
    "k=9 of 8 experts": lambda: TINY.but(k=9),
    "a model of 6 layers": lambda: Config(layers=6, experts=4),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message):
    with pytest.raises(nm.NamedMeshError) as error:
        MISTAKES[message]()
    assert message in str(error.value)
    assert "test_layer_mistakes.py" in str(error.value), "the user's own line is shown"


ALL_AT_ONCE = {
    "Config: 3 arguments are wrong": (
        lambda: TINY.but(router="topk", dropout=1.0, tied="yes"),
        [
            "tied='yes' is not True or False",
            "did you mean 'top_k'?",
            "dropout=1.0 is not a number in",
        ],
    ),
    "Config: 2 arguments are wrong": (
        lambda: TINY.but(layer=2, model_size=3),
        ["has no 'layer'; did you mean 'layers'?", "has no 'model_size'"],
    ),
    "a batch without source_positions, target": (
        lambda: batch_of(untyped(dict.fromkeys(FIELDS[:2] + FIELDS[4:]))),
        ["inputs: source, source_segments, target_segments, target_positions"],
    ),
    "dense: 2 arguments are wrong": (
        lambda: traced(lambda x: dense(x, [H, E], [M])),
        ["x has no dimension hidden", "x has no dimension expert"],
    ),
    "gating: 3 arguments are wrong": (
        lambda: traced(lambda x: top_k_gating(x, S, M, S, k=9, second="al", normalize="n")),
        ["second='al' is not a choice; did you mean 'all'?", "normalize='n'", "k=9 of model=8"],
    ),
    "Adam: 2 arguments are wrong": (
        lambda: Adam(-1.0, beta2=1.0),
        ["learning_rate=-1.0 is not a positive number or a schedule", "beta2=1.0 is not a number"],
    ),
    "sgd: 2 arguments are wrong": (
        lambda: traced(lambda x: Sgd(0.1).apply({"v": x, "w": x})),
        ["v is not a parameter", "w is not a parameter"],
    ),
    "Sample: 2 arguments are wrong": (
        lambda: decoded(lambda N: Sample(nm.random.key(0), top_k=0, top_p=2.0)),
        ["top_k=0", "top_p=2.0 is not a probability"],
    ),
    "Decoder: 2 arguments are wrong": (
        lambda: decoded(end=64, start=-1),
        ["end=64 is not a token", "start=-1 is not a token"],
    ),
}


@pytest.mark.parametrize("problem", ALL_AT_ONCE)
def test_every_mistake_is_listed(problem):
    function, details = ALL_AT_ONCE[problem]
    with pytest.raises(nm.NamedMeshError) as caught:
        function()
    assert caught.value.problem == problem
    for detail in details:
        assert any(detail in line for line in caught.value.details), detail
