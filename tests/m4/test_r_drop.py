"""R-drop: two passes over a batch, and the loss between what they predict."""

import numpy as np
import pytest
from scipy.special import log_softmax, rel_entr

import namedmesh as nm
from examples.m4.programs import compute_r_drop
from namedmesh.layers import Transformer, batch_of, symmetric_divergence
from tests.layers.small_model import SMALL, examples, metrics, model_of, training


def training_twice(model: Transformer, weight: float) -> nm.Program:
    def loss(batch, seed):
        key = nm.random.key_from_seed(seed)
        return compute_r_drop(model, batch_of(batch), key, weight)[1]

    return nm.trace(loss, batch=model.specs(), seed=nm.spec([], "int32"))


def test_divergence_is_the_mean_of_both_directions():
    B, V = nm.dims("batch=5 vocab=7")
    one, other = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(np.float32)
    program = nm.trace(
        lambda x, y: symmetric_divergence(x, y, V), x=nm.spec([B, V]), y=nm.spec([B, V])
    )
    p, q = (np.exp(log_softmax(x.astype(np.float64), -1)) for x in (one, other))
    wanted = (rel_entr(p, q).sum(-1) + rel_entr(q, p).sum(-1)) / 2
    np.testing.assert_allclose(program.evaluate({}, x=one, y=other)[1], wanted, rtol=1e-5)


def test_the_loss_is_that_of_two_passes_and_what_is_between_them():
    model = model_of(SMALL.but(dropout=0.2))

    def passes(batch, seed):
        key = nm.random.key_from_seed(seed)
        return [
            model.loss(batch_of(batch), nm.random.fold_in(key, number))[0]
            for number in (1001, 1002)
        ]

    inputs = {"batch": model.specs(), "seed": nm.spec([], "int32")}
    one, other = nm.trace(passes, **inputs).evaluate(
        nm.trace(passes, **inputs).initial_state(0), **examples(), seed=np.int32(3)
    )[1]
    twice = training_twice(model, 0.5)
    found = twice.evaluate(twice.initial_state(0), **examples(), seed=np.int32(3))[1]
    apart = float(found["divergence"])
    assert apart > 1e-3 and float(one) != float(other)
    wanted = (float(one) + float(other)) / 2 + 0.5 * apart
    assert float(found["loss"]) == pytest.approx(wanted, rel=1e-5)


def test_without_dropout_nothing_is_between_them():
    calm = SMALL.but(dropout=0.0, second="all")
    once = metrics(training(model_of(calm)), **examples(), seed=3)
    twice = metrics(training_twice(model_of(calm), 5.0), **examples(), seed=3)
    assert float(twice["divergence"]) == pytest.approx(0.0, abs=1e-6)
    assert float(twice["loss"]) == pytest.approx(float(once["loss"]), rel=1e-5)
