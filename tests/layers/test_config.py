"""Every option of a configuration: wrong values are named, each changes the model as in NumPy."""

import dataclasses
import operator

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.ir.op import every_op
from namedmesh.layers import (
    CHOICES,
    Config,
    Sgd,
    batch_of,
    config,
)
from tests.layers.numpy_transformer import Model
from tests.layers.small_model import (
    SHORT,
    SMALL,
    decoding,
    evaluation,
    examples,
    metrics,
    model_of,
    training,
    weights,
)

VARIANTS = {
    "the paper's": SMALL,
    "deeper": SMALL.but(layers=8),
    "dense": SMALL.but(experts=0),
    "untied": SMALL.but(tied=False),
    "learned positions": SMALL.but(positions="learned"),
    "relative positions": SMALL.but(positions="relative"),
    "root mean square": SMALL.but(normalizer="rms"),
    "norm after": SMALL.but(norm="post", normalizer="rms"),
    "gated gelu": SMALL.but(activation="gelu", gated=True),
    "swish": SMALL.but(activation="swish"),
    "experts in the encoder": SMALL.but(expert_sides="encoder", layers=8),
    "experts in the decoder": SHORT.but(expert_sides="decoder", z_weight=0.5),
    "balanced by a bias": SHORT.but(balance="bias"),
    "switch": SHORT.but(k=1, normalize="none"),
    "three choices": SHORT.but(k=3),
    "normalized after": SHORT.but(normalize="after_capacity"),
    "never normalized": SHORT.but(normalize="none", dispatch="einsum"),
    "experts choose": SHORT.but(router="expert_choice", z_weight=0.5),
    "experts choose, with room to spare": SMALL.but(router="expert_choice", capacity_factor=6.0),
    "experts choose, by einsum": SHORT.but(router="expert_choice", dispatch="einsum"),
    "peaks and balance": SHORT.but(z_weight=0.5, aux_weight=2.0, smoothing=0.0),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_model_is_the_one_numpy_writes_out(variant):
    program = evaluation(model_of(VARIANTS[variant]))
    state, batch = weights(program), examples()
    found = program.evaluate(state, **batch)[1]
    for name, value in Model(VARIANTS[variant], state).loss(batch).items():
        assert float(found[name]) == pytest.approx(value, rel=2e-5), name


@pytest.mark.parametrize("router", ["top_k", "expert_choice"])
@pytest.mark.parametrize("dispatch", ["gather", "einsum"])
def test_padding_takes_no_place_and_counts_nowhere(router, dispatch):
    """Rows of padding, padding before every token, and fewer places than tokens that want them."""
    chosen = SHORT.but(router=router, dispatch=dispatch, z_weight=0.5, positions="learned")
    batch = examples()
    more = {name: np.pad(array, [(0, 2), (array.shape[1], 0)]) for name, array in batch.items()}
    for side in ("source", "target"):
        more[side][more[f"{side}_segments"] == 0] = 5
    bare = metrics(evaluation(model_of(chosen)), **batch)
    padded = metrics(evaluation(model_of(chosen.but(capacity_factor=0.5), 5, 24, 20)), **more)
    assert (bare["decoder_no_room"] + bare["decoder_left_out"]).max() > 0.1
    for name in (
        "loss",
        "cross_entropy",
        "accuracy",
        "aux_loss",
        "encoder_left_out",
        "decoder_no_room",
    ):
        np.testing.assert_allclose(padded[name], bare[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("config", "forms"),
    [
        (SHORT, ["gather", "einsum"]),
        (SHORT.but(capacity_factor=float(SHORT.experts), shared=8), CHOICES["dispatch"]),
    ],
    ids=["with drops", "without"],
)
def test_all_forms_of_dispatch_train_alike(config, forms):
    first, *others = (
        metrics(training(model_of(config.but(dispatch=form))), **examples(), seed=3)
        for form in forms
    )
    for other in others:
        for name, value in first.items():
            np.testing.assert_allclose(other[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_only_the_router_sees_jitter_and_only_in_training():
    """With one choice of weight one, noise that changes no choice changes the gates alone."""
    plain = SMALL.but(k=1, dropout=0.0, capacity_factor=4.0)
    still, noisy = (
        metrics(training(model_of(plain.but(jitter=j))), **examples(), seed=3) for j in (0.0, 1e-3)
    )
    assert float(noisy["cross_entropy"]) == pytest.approx(float(still["cross_entropy"]), rel=1e-6)
    assert 1e-6 < abs(noisy["aux_loss"] / still["aux_loss"] - 1) < 1e-2
    assert signature(evaluation(model_of(plain.but(jitter=0.1)))) == signature(
        evaluation(model_of(plain))
    )


def test_without_dropout_jitter_and_random_choices_training_is_evaluation():
    calm = SMALL.but(dropout=0.0, second="all")
    wanted = metrics(evaluation(model_of(calm)), **examples())["loss"]
    assert metrics(training(model_of(calm)), **examples(), seed=3)["loss"] == pytest.approx(
        float(wanted), rel=1e-6
    )
    rates = (
        "dropout",
        "word_dropout",
        "target_word_dropout",
        "expert_dropout",
        "expert_masking",
    )
    for louder in (*(calm.but(**{name: 0.3}) for name in rates), calm.but(second="random")):
        assert metrics(training(model_of(louder)), **examples(), seed=3)["loss"] != pytest.approx(
            float(wanted), rel=1e-4
        )


@pytest.mark.parametrize(
    "rates",
    [
        {"word_dropout": 0.25},
        {"word_dropout": 0.25, "target_word_dropout": 0.9},
        {"target_word_dropout": 0.25},
    ],
)
def test_a_word_left_out_is_its_position_alone(rates):
    model = model_of(SMALL.but(dropout=0.0, **rates), 32, 64)
    vocab = model.V if "word_dropout" in rates else model.W
    spec = nm.spec([model.G, model.S], "int32")

    def both(tokens, positions):
        with nm.scope("x"):
            some = model.embed(tokens, positions, vocab, nm.random.key(5))
            return (
                some,
                model.embed(tokens, positions, vocab),
                model.embed(tokens - 1000, positions, vocab),
            )

    tokens = np.random.default_rng(0).integers(1, 9, (32, 64)).astype("int32")
    program = nm.trace(both, tokens=spec, positions=spec)
    made = program.evaluate(program.initial_state(0), tokens=tokens, positions=tokens)[1]
    some, every, none = (np.asarray(x) for x in made)
    kept, left_out = (some == every).all(-1), (some == none).all(-1)
    assert (kept ^ left_out).all() and 0.22 < left_out.mean() < 0.28


def test_second_choices_are_served_at_random_in_training_only():
    roomy = SMALL.but(dropout=0.0, capacity_factor=4.0)
    served = {
        second: metrics(training(model_of(roomy.but(second=second))), **examples(), seed=3)
        for second in CHOICES["second"]
    }
    for one in served.values():
        assert np.abs(one["encoder_no_room"]).max() < 1e-6
    assert served["all"]["encoder_left_out"].tolist() == [[0.0, 0.0]]
    assert served["none"]["encoder_left_out"].tolist() == [[0.0, 1.0]]
    first, second = served["random"]["encoder_left_out"][0]
    assert first == 0.0 and 0.05 < second < 0.95


def test_evaluation_has_a_capacity_and_a_rule_of_its_own():
    full = SMALL.but(dropout=0.0, capacity_factor=4.0, second="all")
    tight = full.but(evaluation_capacity_factor=0.5, evaluation_second="none")
    trained = metrics(training(model_of(tight)), **examples(), seed=3)
    assert max(np.abs(trained[f"encoder_{name}"]).max() for name in ("left_out", "no_room")) < 1e-6
    evaluated = metrics(evaluation(model_of(tight)), **examples())
    assert evaluated["encoder_left_out"].tolist() == [[0.0, 1.0]]
    assert evaluated["encoder_no_room"][0, 0] > 0.05
    drawn = full.but(evaluation_second="random")
    twice = [metrics(evaluation(model_of(drawn)), **examples())["encoder_left_out"] for _ in "ab"]
    assert 0.05 < twice[0][0, 1] < 0.95 and np.array_equal(twice[0], twice[1])


def test_capacity_while_decoding():
    places = lambda factor: decoding(model_of(SMALL.but(decoding_capacity_factor=factor))).dims[
        "capacity"
    ]
    assert places(None) == [6, 8], "6 in the encoder; of 8 hypotheses none is dropped"
    assert places(1.0) == [2, 6]


CHANGES = {
    "layers": 4, "experts": 8, "expert_sides": "encoder", "model": 10, "hidden": 14,
    "heads": 4, "key": 6,
    "source_vocab": 13, "target_vocab": 11, "tied": False, "positions": "relative", "longest": 17,
    "norm": "post", "normalizer": "rms", "activation": "gelu", "gated": True,
    "router": "expert_choice", "k": 1, "second": "all", "evaluation_second": "none",
    "balance": "bias", "normalize": "none", "jitter": 0.1,
    "group_tokens": 6, "capacity_factor": 1.0,
    "evaluation_capacity_factor": 1.0, "decoding_capacity_factor": 1.0, "dispatch": "einsum",
    "shared": 12,
    "remat": "full", "unroll": 2, "stages": 2, "microbatches": 3, "dropout": 0.2,
    "expert_dropout": 0.2,
    "expert_masking": 0.2, "word_dropout": 0.2, "target_word_dropout": 0.2,
    "smoothing": 0.0, "aux_weight": 1.0, "z_weight": 1.0, "dtype": "bfloat16",
}  # fmt: skip
TRAINING = (
    "second",
    "jitter",
    "dropout",
    "expert_dropout",
    "expert_masking",
    "word_dropout",
    "target_word_dropout",
    "smoothing",
    "aux_weight",
    "z_weight",
)  # nothing in decoding depends on these
EVALUATION = ("evaluation_second", "evaluation_capacity_factor", "decoding_capacity_factor")


def signature(program: nm.Program) -> list[tuple]:
    """Every op of a program: what it makes, and the numbers and words in it."""
    known = lambda op: [
        value
        for field in dataclasses.fields(op)
        if isinstance(value := getattr(op, field.name), (float, int, str))
    ]
    return [
        (op.kind, known(op), [(t.dtype, str(t.shape)) for t in op.outputs])
        for op in every_op(program.ops)
    ]


def test_every_option_changes_the_program():
    assert {*CHANGES} == {field.name for field in dataclasses.fields(Config)}
    base = SMALL.but(positions="learned", layers=8)  # a loop of several iterations
    signatures = lambda config: (
        signature(training(model_of(config))),
        signature(decoding(model_of(config))),
    )
    before, staged = signatures(base), base.but(stages=2)
    for name, value in CHANGES.items():
        start, other = (staged, signatures(staged)) if name == "microbatches" else (base, before)
        train, decode = map(operator.ne, signatures(start.but(**{name: value})), other)
        assert train == (name not in EVALUATION), name
        assert decode == (name not in TRAINING), name


WRONG = {
    **{name: "wrong" for name in CHOICES}, "layers": 6, "k": 5, "dropout": 1.0,
    "word_dropout": -0.5, "target_word_dropout": 1.0,
    "smoothing": -0.1, "jitter": 1.5, "model": 0, "hidden": -1, "heads": 2.5,
    "key": 0, "source_vocab": 0, "target_vocab": True, "longest": 0, "experts": -4, "tied": "yes",
    "gated": 1, "capacity_factor": 0.0, "evaluation_capacity_factor": 0.0, "group_tokens": 0,
    "decoding_capacity_factor": -1.0, "aux_weight": -0.01,
    "z_weight": float("nan"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_named(name):
    value = WRONG[name]
    with pytest.raises(nm.NamedMeshError) as caught:
        SMALL.but(**{name: value})
    assert (name in caught.value.problem) and str(value) in caught.value.problem
    assert caught.value.fix


@pytest.mark.parametrize(
    ("changes", "problem", "fix"),
    [
        ({"router": "topk"}, "router='topk' is not a choice", "did you mean 'top_k'?"),
        ({"dispatch": "gathr"}, "dispatch='gathr' is not a choice", "did you mean 'gather'?"),
        ({"k": 5}, "k=5 of 4 experts", "choose at least one and at most all experts"),
        (
            {"dropout": 1.0},
            "dropout=1.0 is not a number in [0, 1)",
            "pass a number in [0, 1)",
        ),
        ({"layer": 8}, "a configuration has no 'layer'", "did you mean 'layers'?"),
        (
            {"layers": 6},
            "a model of 6 layers cannot be halved into encoder and decoder "
            "with experts in every other layer",
            "pass a multiple of 4",
        ),
    ],
)
def test_errors_say_what_to_do(changes, problem, fix):
    with pytest.raises(nm.NamedMeshError) as caught:
        SMALL.but(**changes)
    assert (caught.value.problem, caught.value.fix) == (problem, fix)


def test_an_unknown_configuration_is_named():
    with pytest.raises(nm.NamedMeshError, match="there is no configuration 'moe_2048e'"):
        config("moe_2048e")


@pytest.mark.slow
def test_a_step_with_every_newer_option_runs_as_planned():
    """Compiled for eight devices and audited; its loss is that of an unsharded run."""
    chosen = SMALL.but(
        experts=8, router="expert_choice", positions="relative", gated=True, jitter=0.01, k=2
    )
    model = model_of(chosen, rows=8)

    def step(batch, seed):
        loss, watched = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        return {**watched, **Sgd(learning_rate=0.1).apply(nm.grad(loss))}

    program = nm.trace(step, batch=model.specs(), seed=nm.spec([], "int32"))
    compiled = nm.compile(program, mesh=nm.Mesh(all=8), layout="group:all, expert:all", strict=True)
    assert compiled.audit.exact, str(compiled.audit)
    state, batch = weights(program) | {"sgd/step": np.int32(0)}, examples(rows=8)
    updates, wanted = program.evaluate(state, **batch, seed=np.int32(5))
    after, found = compiled(compiled.place(state), **batch, seed=np.int32(5))
    assert float(found["loss"]) == pytest.approx(float(wanted["loss"]), rel=1e-5)
    for name, value in updates.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
