import json

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import namedmesh as nm
from benchmarks import layer, lowering, moe, moe_jax

SIZES = moe.Sizes(group=8, seq=16, model=8, hidden=16, expert=8)


@pytest.fixture(autouse=True)
def parsed_flags():
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["test"])


def published(module, monkeypatch, tmp_path, **values):
    monkeypatch.setattr(module, "SIZES", SIZES)
    path = tmp_path / "result.json"
    with flagsaver.flagsaver(json=str(path), **values):
        module.main([])
    return json.loads(path.read_text())


def test_lowering_is_the_same_work_for_any_number_of_devices(monkeypatch, tmp_path):
    monkeypatch.setattr(lowering, "DEVICES", (2, 8))
    result = published(lowering, monkeypatch, tmp_path, rounds=1)
    assert [row["devices"] for row in result["rows"]] == [2, 8]
    assert result["size_ratio"] <= 1.05
    assert {"time_ratio", "versions"} <= result.keys()


def test_layer_is_compared_with_jax_and_has_the_same_collectives(monkeypatch, tmp_path):
    result = published(layer, monkeypatch, tmp_path, steps=2)
    assert {"ratio_to_jax", "namedmesh_ms", "jax_ms", "steps"} <= result.keys()
    assert result["collectives"] == {
        name: {"AllToAll": 4, "AllReduce": 1} for name in ("namedmesh", "jax")
    }


def test_the_layer_written_in_jax_returns_the_same():
    step = nm.compile(moe.program(SIZES), mesh=nm.Mesh(all=8), layout="group:all, expert:all")
    random = np.random.default_rng(1)
    inputs = step.put(
        **{name: random.standard_normal((8, 16, 8), np.float32) for name in ("x", "dy")}
    )
    state = step.init(1)
    made = step(state, **inputs)[1]
    layer.check(
        made,
        moe_jax.step(SIZES, step.mesh)(
            *inputs.values(), *(state[name] for name in ("wg", "wi", "wo"))
        ),
    )
    assert np.abs(made["wg"]).max() > 0
    with pytest.raises(AssertionError):
        layer.check(
            {**made, "wg": np.asarray(made["wg"]) + 1}, [made[name] for name in layer.RESULTS]
        )
