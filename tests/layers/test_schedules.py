"""Schedules against NumPy."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import (
    constant_rate,
    cosine_decay,
    inverse_square_root,
    linear_cooldown,
    linear_warmup,
)

STEPS = np.array([0, 1, 7, 8, 99, 100, 101, 9_999, 10_000, 40_000])
CASES = {
    "constant": (constant_rate(0.3), lambda step: np.full(step.shape, 0.3)),
    "the paper's": (inverse_square_root(), lambda step: 1.0 / np.sqrt(np.maximum(step, 10_000))),
    "inverse square root": (
        inverse_square_root(2.0, after=8),
        lambda step: 2.0 / np.sqrt(np.maximum(step, 8)),
    ),
    "cosine": (
        cosine_decay(0.5, steps=100, end=0.1),
        lambda step: 0.1 + 0.4 * 0.5 * (1.0 + np.cos(np.pi * np.minimum(step / 100, 1.0))),
    ),
    "warmup to a number": (
        linear_warmup(0.3, steps=100),
        lambda step: 0.3 * np.minimum((step + 1) / 100, 1.0),
    ),
    "cooldown of another": (
        linear_cooldown(inverse_square_root(1.0, after=8), total=120, steps=60),
        lambda step: np.clip((120 - step) / 60, 0.0, 1.0) / np.sqrt(np.maximum(step, 8)),
    ),
    "warmup of another": (
        linear_warmup(inverse_square_root(1.0, after=8), steps=100),
        lambda step: np.minimum((step + 1) / 100, 1.0) / np.sqrt(np.maximum(step, 8)),
    ),
}


@pytest.mark.parametrize("label", CASES)
def test_schedule_is_its_formula(label):
    schedule, formula = CASES[label]
    program = nm.trace(lambda step: schedule(step), step=nm.spec([], "int32"))
    (made,) = program.outputs
    assert (made.dtype, len(made.shape)) == ("float32", 0)
    found = [program.evaluate({}, step=np.int32(step))[1] for step in STEPS]
    np.testing.assert_allclose(found, formula(STEPS.astype(np.float64)), rtol=1e-5, atol=1e-8)


def test_a_number_of_steps_is_positive():
    with pytest.raises(nm.NamedMeshError, match="cosine_decay: steps=0"):
        cosine_decay(1.0, steps=0)
