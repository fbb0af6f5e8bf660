"""Evaluation: averages against numpy."""

import numpy as np
import pytest

from namedmesh.errors.errors import NamedMeshError
from namedmesh.training import average_results
from tests.training.programs import batch, compiled

ROWS = [np.arange(6.0).reshape(2, 3) * scale for scale in (1.0, 10.0, 100.0)]


def step(state, x):
    """Results that are scalars and arrays; the state is counted, to see that it is the same."""
    return state + 1, {"sum": x.sum(), "rows": x.sum(0), "tokens": state * len(x)}


def test_batches_weigh_the_same_by_default():
    found = average_results(step, 0, [{"x": rows} for rows in ROWS])  # type: ignore[arg-type]
    assert found["sum"] == pytest.approx(np.mean([rows.sum() for rows in ROWS]))
    assert isinstance(found["sum"], float)
    np.testing.assert_allclose(found["rows"], np.mean([rows.sum(0) for rows in ROWS], axis=0))


def test_weights_are_a_function_of_the_batch_or_a_result():
    batches = [{"x": np.full(count, 1.0 + count)} for count in (1, 2, 5)]
    tokens = lambda state, x: (state, {"mean": x.mean(), "count": float(len(x))})
    expected = np.concatenate([one["x"] for one in batches]).mean()
    by_batch = average_results(tokens, None, batches, weigh=lambda one: len(one["x"]))  # type: ignore[arg-type]
    by_result = average_results(tokens, None, batches, weigh="count")  # type: ignore[arg-type]
    assert by_batch["mean"] == by_result["mean"] == pytest.approx(expected)


def test_only_some_results_are_averaged():
    found = average_results(step, 0, [{"x": rows} for rows in ROWS], names=["sum"])  # type: ignore[arg-type]
    assert found.keys() == {"sum"}


def test_the_state_is_the_same_for_every_batch():
    found = average_results(step, 3, [{"x": ROWS[0]}] * 4)  # type: ignore[arg-type]
    assert found["tokens"] == 6.0


def test_a_compiled_program_is_averaged():
    executable = compiled("decode", "mixed")
    state = executable.init()
    batches = [{"x": batch(number)["x"]} for number in range(3)]
    outputs = [np.asarray(executable(state, **one)[1]) for one in batches]
    named = lambda state, **inputs: (state, {"y": executable(state, **inputs)[1]})
    found = average_results(named, state, batches)
    np.testing.assert_allclose(found["y"], np.mean(outputs, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batches, weigh", [([], None), ([1.0], 0.0), ([1.0, 2.0], -1.0)])
def test_averages_need_a_batch_that_counts(batches, weigh):
    constant = None if weigh is None else lambda one: weigh
    with pytest.raises(NamedMeshError, match=r"no batch to evaluate|the weights of the batches"):
        average_results(
            lambda state, x: (state, {"y": x}),
            None,  # type: ignore[arg-type]
            [{"x": one} for one in batches],
            weigh=constant,
        )
