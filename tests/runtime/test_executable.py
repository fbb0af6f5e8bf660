"""Running: state is created sharded, donated, and survives bad input; memory is reported."""

from typing import Any

import jax
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.runtime import cache_compilations

B, M, H = nm.dims("batch=8 model=16 hidden=32")


def train(x, y):
    w = nm.param("w", [M, H])
    count = nm.state("count", [], dtype="int32")
    loss = nm.mean(nm.square(nm.einsum([x, w], [B, H]) - y))
    nm.assign(w, w - nm.grad(loss, w) * 0.1)
    nm.assign(count, count + 1)
    return {"loss": loss}


SPECS: dict[str, Any] = {"x": nm.spec([B, M]), "y": nm.spec([B, H])}


@pytest.fixture(scope="module")
def step():
    return nm.compile(
        train, **SPECS, mesh=nm.Mesh(data=4, model=2), layout="batch:data, hidden:model"
    )


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(8, 16)).astype(np.float32),
        "y": rng.normal(size=(8, 32)).astype(np.float32),
    }


def test_state_is_created_in_shards(step):
    state = step.init(0)
    assert state["w"].sharding.shard_shape(state["w"].shape) == (16, 16)
    assert {shard.data.shape for shard in state["w"].addressable_shards} == {(16, 16)}


def test_initial_state_does_not_depend_on_the_layout(step):
    other = nm.compile(
        train, **SPECS, mesh=nm.Mesh(data=8), layout="batch:data", params="model:data"
    )
    np.testing.assert_array_equal(np.asarray(step.init(3)["w"]), np.asarray(other.init(3)["w"]))
    assert np.abs(np.asarray(step.init(3)["w"]) - np.asarray(step.init(4)["w"])).max() > 0.01


def test_training_is_that_of_plain_numpy(step, batch):
    state = step.init(0)
    w = np.asarray(state["w"]).astype(np.float64)
    for _ in range(5):
        error = batch["x"] @ w - batch["y"]
        w -= 0.1 * 2 * batch["x"].T @ error / error.size
        state, out = step(state, **batch)
    assert int(state["count"]) == 5
    np.testing.assert_allclose(state["w"], w, rtol=1e-4, atol=1e-6)
    assert out["loss"].shape == ()


def test_the_old_state_is_donated_and_says_so(step, batch):
    old = step.init(0)
    new, _ = step(old, **batch)
    assert old.arrays["w"].is_deleted()
    with pytest.raises(nm.NamedMeshError, match="were used up by an earlier step"):
        step(old, **batch)
    step(new, **batch)


def test_a_failure_of_the_devices_is_not_taken_for_a_state_that_is_used_up(step, batch):
    def use_up_and_fail(*operands):
        for array in operands[2:]:
            array.delete()
        raise jax.errors.JaxRuntimeError("INTERNAL: the transform failed")

    state, usual = step.init(0), step._usual
    step._usual = (*usual[:3], use_up_and_fail, *usual[4:])
    try:
        with pytest.raises(nm.NamedMeshError, match="train failed on its devices") as caught:
            step(state, **batch)
    finally:
        step._usual = usual
    assert "the transform failed" in str(caught.value)


def test_bad_input_leaves_the_state_usable(step, batch):
    state = step.init(0)
    for wrong in (
        {**batch, "x": batch["x"][:4]},
        {**batch, "x": batch["x"].astype(np.float64)},
        {"x": batch["x"]},
        {**batch, "z": batch["x"]},
        {**batch, "y": "not an array"},
    ):
        with pytest.raises(nm.NamedMeshError):
            step(state, **wrong)
    after, _ = step(state, **batch)
    assert int(after["count"]) == 1


def test_a_state_from_elsewhere_is_moved_only_on_request(step, batch):
    other = nm.compile(train, **SPECS, mesh=nm.Mesh(data=8), layout="batch:data")
    state = other.init(0)
    with pytest.raises(nm.NamedMeshError, match="is sharded otherwise"):
        step(state, **batch)
    moved, _ = step(step.place(state), **batch)
    assert int(moved["count"]) == 1


def test_report_counts_shards_not_wholes(step):
    whole = 16 * 32 * 4
    assert step.report.compile_seconds > 0
    assert step.report.argument_bytes < whole + 8 * 16 * 4 + 8 * 32 * 4
    assert step.report.peak_bytes >= step.report.argument_bytes


@pytest.mark.parametrize("size", [5, 10, 3])
def test_sizes_that_do_not_divide_are_padded_at_rest(size, batch):
    (N,) = nm.dims(f"odd={size}")

    def update(x):
        w = nm.param("w", [M, N], nm.normal_init(1.0))
        nm.assign(w, w * 2.0)
        return nm.sum(w * x)

    step = nm.compile(update, nm.spec([N]), mesh=nm.Mesh(data=8), layout="odd:data")
    state = step.init(0)
    before = np.asarray(state["w"])
    assert before.shape == (16, size)
    x = np.arange(size, dtype=np.float32)
    state, total = step(state, x)
    np.testing.assert_allclose(state["w"], before * 2)
    np.testing.assert_allclose(total, (before * x).sum(), rtol=1e-4)
    np.testing.assert_array_equal(step.place(dict(state))["w"], state["w"])


def test_device_assignment_moves_shards_to_other_devices(batch):
    order = [3, 1, 0, 2, 7, 5, 4, 6]
    plain = nm.compile(train, **SPECS, mesh=nm.Mesh(data=8), layout="batch:data")
    moved = nm.compile(
        train, **SPECS, mesh=nm.Mesh(data=8, device_assignment=order), layout="batch:data"
    )
    placed = moved.put(**batch)["x"]
    where = {shard.device.id: shard.index[0].start or 0 for shard in placed.addressable_shards}
    assert [where[device] for device in order] == list(range(8))
    one, other = plain(plain.init(0), **batch)[1], moved(moved.init(0), **batch)[1]
    np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-6)


def test_compilations_are_cached_between_processes(tmp_path):
    cache_compilations(tmp_path / "cache")
    try:
        nm.compile(
            lambda x: nm.sin(x) * 3.25, x=nm.spec([B, M]), mesh=nm.Mesh(data=8), layout="batch:data"
        )
        assert list((tmp_path / "cache").iterdir())
    finally:
        jax.config.update("jax_compilation_cache_dir", None)


def test_precision_reaches_the_compiler():
    f = lambda x, y: nm.einsum([x, y], [M, H])
    mesh = nm.Mesh(data=8)
    exact = nm.compile(
        f, **SPECS, mesh=mesh, layout="batch:data", precision="highest"
    ).artifact.step_module
    plain = nm.compile(f, **SPECS, mesh=mesh, layout="batch:data").artifact.step_module
    assert exact != plain
