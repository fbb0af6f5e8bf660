"""Mistakes that users of the layers make, each an error that says what is wrong, on their own line."""

import pytest

import namedmesh as nm
from namedmesh.layers import (
    Adafactor,
    Adam,
    Config,
    Decoder,
    Heads,
    Sgd,
    Transformer,
    batch_of,
    beam_search,
    config,
    cross_entropy,
    dense,
    expert_capacity,
    greedy,
    moe,
    relative_bias,
    sample,
    top_k_gating,
)

G, S, M, H, E = nm.dims("group=2 seq=4 model=8 hidden=16 expert=4")
TINY = config("tiny")


def decoded(method, config=TINY, flat=False, source=None, **options):
    model = Transformer(config, group=2, source=4, target=4)

    def program(source, segments):
        return method(Decoder(model, source, segments, hypotheses=2, flat=flat), **options)

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
    "Transformer: 'tiny' is no Config": lambda: Transformer("tiny", group=2, source=4, target=4),
    "2 learned positions for sequences of 4 tokens": lambda: decoded(
        greedy, TINY.but(positions="learned", longest=2)
    ),
    "a dict is no Batch": lambda: traced(lambda x: Transformer(TINY, 2, 4, 4).loss({})[0]),
    "a batch without source": lambda: batch_of({}),
    "dense: over=model=8 is one dimension": lambda: traced(lambda x: dense(x, M, [H])),
    "dense: x has no dimension hidden": lambda: traced(lambda x: dense(x, [H], [M])),
    "moe: 5 dims": lambda: traced(lambda x: moe(x, None, (G, S, E, M, H))),
    "gating: k=1.5": lambda: traced(
        lambda x: top_k_gating(nm.rename(x, M, E.resized(8)), S, E.resized(8), S, k=1.5)
    ),
    "gating: capacity=4 is no Dimension": lambda: traced(
        lambda x: top_k_gating(x, S, M, 4, second="all")
    ),
    "capacity: factor=nan": lambda: expert_capacity(S, E, float("nan")),
    "cross_entropy: smoothing=1.0": lambda: traced(
        lambda x: cross_entropy(x, nm.argmax(x, M), M, smoothing=1.0)
    ),
    "relative_bias: 1 buckets": lambda: traced(
        lambda x: relative_bias(nm.range(S), Heads(M, H, E), buckets=1)
    ),
    "beam_search: alpha=nan": lambda: decoded(beam_search, alpha=float("nan")),
    "beam_search: end=64 is no token of target_vocab=64": lambda: decoded(beam_search, end=64),
    "decoding: start=-1 is no token": lambda: decoded(greedy, start=-1),
    "sequences that do not share a past": lambda: decoded(greedy, flat=True),
    "sample: temperature=1e-38": lambda: decoded(
        lambda d: sample(d, nm.random.key(0), temperature=1e-38)
    ),
    "Decoder: the source is int32": lambda: decoded(
        greedy, source=lambda m: nm.spec([m.G, m.S, m.M], "int32")
    ),
    "Decoder: the source is float32": lambda: decoded(greedy, source=lambda m: nm.spec([m.G, m.S])),
    "k=9 of 8 experts": lambda: TINY.but(k=9),
    "a model of 6 layers": lambda: Config(layers=6, experts=4),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message):
    with pytest.raises(nm.NamedMeshError) as error:
        MISTAKES[message]()
    assert message in str(error.value)
    assert "test_mistakes.py" in str(error.value), "the user's own line is shown"
