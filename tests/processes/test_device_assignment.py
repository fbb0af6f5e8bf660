"""A saved device assignment: which devices a run uses, and that nothing else changes."""

import jax
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.runtime import Executable, load

B, M, H = nm.dims("batch=8 model=6 hidden=12")
ORDER = (3, 1, 0, 2, 7, 5, 4, 6)


def train(x):
    w = nm.param("w", [M, H])
    loss = nm.mean(nm.square(nm.einsum([x, w], [B, H])))
    nm.assign(w, w - nm.grad(loss, w))
    return loss


@pytest.fixture(scope="module")
def artifact():
    program = nm.trace(train, x=nm.spec([B, M]))
    return nm.export(program, nm.Mesh(data=2, model=4), "batch:data, hidden:model")


def test_a_saved_assignment_is_used_by_the_run(artifact, tmp_path):
    artifact.with_device_assignment(ORDER).save(tmp_path / "assigned.nmesh")
    plain, assigned = Executable(artifact), load(tmp_path / "assigned.nmesh")
    listed = jax.devices()
    assert [device.id for device in assigned.mesh.devices.flat] == [listed[i].id for i in ORDER]
    assert assigned.mesh.axis_names == ("data", "model")
    assert assigned.audit.exact, str(assigned.audit)

    x = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    state, loss = plain(plain.init(1), x)
    other, same_loss = assigned(assigned.init(1), x)
    assert float(loss) == float(same_loss)
    np.testing.assert_array_equal(np.asarray(state["w"]), np.asarray(other["w"]))


def test_each_place_of_the_mesh_has_the_same_shard_on_another_device(artifact):
    plain, assigned = Executable(artifact), Executable(artifact.with_device_assignment(ORDER))
    data = {
        shard.device.id: np.asarray(shard.data) for shard in plain.init(1)["w"].addressable_shards
    }
    moved = assigned.init(1)["w"]
    assert moved.sharding.is_equivalent_to(assigned.sharding(assigned.variables["w"]), 2)
    listed = jax.devices()
    for shard in moved.addressable_shards:
        place = ORDER.index(shard.device.id)
        np.testing.assert_array_equal(np.asarray(shard.data), data[listed[place].id])


def test_modules_do_not_depend_on_the_assignment(artifact):
    assigned = artifact.with_device_assignment(ORDER)
    assert assigned.step_module == artifact.step_module
    assert assigned.mesh.device_assignment == ORDER
    assert assigned.with_device_assignment(None) == artifact


def test_an_assignment_that_leaves_a_device_out_is_refused(artifact):
    with pytest.raises(nm.NamedMeshError, match="does not place 8 devices once each"):
        artifact.with_device_assignment([0, 1, 2, 3, 4, 5, 6, 6])
