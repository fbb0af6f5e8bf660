"""Programs as SavedModels: their results when loaded, and what cannot be one."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import namedmesh as nm

B, M, H = nm.dims("batch=4 model=8 hidden=16")


def layers(x):
    """A loop over layers, a choice, and a variable in a scope."""

    def layer(h, _):
        w = nm.param("w", [M, H])
        return h + nm.einsum([nm.tanh(nm.einsum([h, w], [B, H])), w], [B, M]), None

    with nm.scope("tower"):
        h, _ = nm.scan(layer, x, over=nm.Dimension("layer", 3), stack=True)
    chosen = nm.cond(nm.sum(x) > 0.0, lambda: h, lambda: -h)
    return {"h": chosen, "largest": nm.argmax(chosen, M)}


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_loaded_model_computes_what_the_program_does(tmp_path, sign):
    program = nm.trace(layers, x=nm.spec([B, M]))
    state = program.initial_state(3)
    nm.write_saved_model(program, state, tmp_path / "model")
    x = np.abs(np.random.default_rng(0).normal(size=(4, 8))).astype(np.float32) * sign
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    found = served(x=tf.constant(x))
    _, wanted = program.evaluate(state, x=x)
    np.testing.assert_allclose(found["h"], wanted["h"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["largest"], wanted["largest"])


def test_files_go_with_it_and_a_single_result_has_a_name(tmp_path):
    (tmp_path / "words.txt").write_text("some words")
    program = nm.trace(lambda x: nm.sum(x), x=nm.spec([B]))
    for _ in range(2):  # the second replaces the first
        nm.write_saved_model(program, {}, tmp_path / "model", assets=[tmp_path / "words.txt"])
    assert (tmp_path / "model" / "assets" / "words.txt").read_text() == "some words"
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    assert float(served(x=tf.ones(4))["output"]) == 4.0


def test_what_cannot_be_served_is_told(tmp_path):
    def count(x):
        steps = nm.state("steps", [])
        nm.assign(steps, steps + 1.0)
        return x

    changing = nm.trace(count, x=nm.spec([B]))
    nameless = nm.trace(lambda x: (x, x + 1.0), x=nm.spec([B]))
    weighted = nm.trace(lambda x: x * nm.param("w", [B]), x=nm.spec([B]))
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (changing, {"steps": 0.0}, "changes steps"),
        (nameless, {}, "returns 2 tensors"),
        (weighted, {}, "variable w is not given"),
        (weighted, {"w": [1.0]}, "variable w was given with shape"),
    ]
    for program, state, problem in cases:
        with pytest.raises(nm.NamedMeshError, match=problem):
            nm.write_saved_model(program, state, tmp_path / "model")
    assert not (tmp_path / "model").exists()
