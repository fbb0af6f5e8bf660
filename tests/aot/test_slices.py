"""Several slices: targets, assignments that keep them together, and what is refused."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.aot import compile_for
from namedmesh.hardware.assignment import assign_devices, mean_hops
from namedmesh.hardware.topology import Target, Torus
from tests.aot.stack import B, M, train


def test_a_target_says_how_many_slices():
    target = Target.parse("tpu-v5e:4x4:2")
    assert (target.slices, target.cores, str(target)) == (2, 32, "tpu-v5e:4x4:2")
    assert target.one_slice == Target.parse("tpu-v5e:4x4")
    assert Target.parse("tpu-v5e:4x4:1") == Target.parse("tpu-v5e:4x4")
    assert "tpu-v5e:4x8:2" in target.suggest(64)


@pytest.mark.parametrize("text", ["cpu:8:2", "tpu-v5e:4x4:0", "tpu-v5e:4x4:", "tpu-v5e:4x4:2:2"])
def test_other_numbers_of_slices_are_refused(text):
    with pytest.raises(nm.NamedMeshError, match="cannot read"):
        Target.parse(text)


def test_every_slice_is_laid_out_like_the_first():
    torus = Torus.of_target(Target.parse("tpu-v5e:4x4"))
    assert torus is not None
    traffic = {("model",): 8.0, ("data",): 1.0}
    mesh, alone = nm.Mesh(data=4, model=8, slices=2), nm.Mesh(data=2, model=8)
    found = assign_devices(mesh, torus, traffic)
    order = np.array(found.order).reshape(2, 16)
    inner = assign_devices(alone, torus, traffic)
    np.testing.assert_array_equal(order[0], inner.order)
    np.testing.assert_array_equal(order[1], order[0] + 16)
    assert found.hops == inner.hops == mean_hops(alone, torus, traffic, inner.order)
    assert nm.Mesh(found.order, data=4, model=8, slices=2).device_assignment == found.order


def test_hosts_of_a_slice_stay_in_listed_order():
    torus = Torus.of_target(Target.parse("tpu-v5e:4x4"))
    mesh = nm.Mesh(data=2, model=8, hosts=4)
    found = assign_devices(mesh, torus, {("model",): 8.0})
    assert found.order == tuple(range(16))


def test_a_plan_of_other_slices_is_refused(artifact):
    with pytest.raises(nm.NamedMeshError) as raised:
        compile_for(artifact, "tpu-v5e:2x2:2")
    assert raised.value.problem.endswith("is planned for slices=1, and tpu-v5e:2x2:2 has 2")
    assert "--target tpu-v5e:2x4," in raised.value.fix


def test_a_report_says_what_leaves_a_host():
    program = nm.trace(train, x=nm.spec([B, M]))
    plan = nm.plan(program, nm.Mesh(data=2, model=4, hosts=2), "batch:data, hidden:model")
    report = compile_for(
        nm.export(program, plan.mesh, "batch:data, hidden:model"), "cpu:8", name="stack"
    )
    assert report.row()["planned_host_bytes"] == plan.total_host_bytes() > 0
    assert "leave a host in a step, as planned" in str(report)
    assert report.audit is not None and report.audit.exact
    assert nm.Mesh.parse(report.mesh[5:-1]) == plan.mesh
