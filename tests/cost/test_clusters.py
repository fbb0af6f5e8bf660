"""Costs and searches on nodes of GPUs and slices of TPUs that the target names."""

import json

import pytest

import namedmesh as nm
from namedmesh.cli.main import main

B, M, H = nm.dims("batch=65536 model=512 hidden=2048")
LAYOUT = "batch:data, hidden:tensor"


def train(x):
    wi, wo = nm.param("wi", [M, H]), nm.param("wo", [H, M])
    loss = nm.mean(nm.square(nm.einsum([nm.einsum([x, wi], [B, H]), wo], [B, M])))
    grads = nm.grad(loss)
    nm.assign(wi, wi - grads["wi"])
    nm.assign(wo, wo - grads["wo"])
    return loss


def program():
    return nm.trace(train, x=nm.spec([B, M]))


def plan(**mesh):
    return nm.plan(program(), nm.Mesh(None, **mesh), LAYOUT)


@pytest.mark.parametrize(
    ("target", "alone", "blocks"),
    [
        ("h100:4x8", "h100", {"hosts": 4}),
        ("h100:8x4", "h100", {"hosts": 8}),
        ("gb200:2x16", "gb200", {"hosts": 2}),
        ("tpu-v5e:4x4:2", "tpu-v5e:4x4", {"slices": 2}),
    ],
)
@pytest.mark.parametrize("axes", [{"data": 4, "tensor": 8}, {"tensor": 16, "data": 2}])
def test_a_target_of_nodes_is_a_mesh_on_as_many_hosts(target, alone, blocks, axes):
    named, meshed = nm.cost(plan(**axes), target), nm.cost(plan(**axes, **blocks), alone)
    assert named.seconds == meshed.seconds
    leaving = sum(one.leaving_bytes for one in named.links)
    planned = meshed.plan.total_slice_bytes() or meshed.plan.total_host_bytes()
    assert leaving == planned > 0


def test_nodes_have_several_processes():
    # Hosts of four GPUs share an NVLink domain: what stays there takes no network card.
    inside = nm.cost(plan(data=4, tensor=8, hosts=8), "gb200:1x32")
    assert inside.links == () and inside.advice is None
    assert inside.seconds < nm.cost(plan(data=4, tensor=8, hosts=8), "gb200").seconds


@pytest.mark.parametrize(
    ("target", "block", "links"),
    [("h100:4x8", "node", ("NVLink", "NICs")), ("tpu-v5e:4x4:2", "slice", ("ICI", "DCN"))],
)
def test_the_links_of_each_axis_are_told_and_the_better_order(target, block, links):
    bad, good = nm.cost(plan(tensor=8, data=4), target), nm.cost(plan(data=4, tensor=8), target)
    by_axes = {one.axes: one.link for one in good.links}
    assert by_axes["tensor",] == links[0] and by_axes["data",] == " and ".join(links)
    assert good.advice is None and "warning" not in str(good)
    assert bad.advice and f"the order of {good.plan.mesh}: the last ones stay inside" in bad.advice
    assert f"leaves a {block}" in str(bad) and "warning" in str(bad)
    assert bad.seconds > good.seconds
    assert bad.to_json()["advice"] == bad.advice
    assert [*bad.to_json()["links"][0]] == ["axes", "link", "wire_bytes", "leaving_bytes"]


def test_axes_that_nodes_cut_go_across_them():
    cost = nm.cost(plan(data=8, tensor=3), "h100:3x8")
    assert {one.link for one in cost.links} == {"NVLink and NICs"}
    assert all(one.leaving_bytes <= 8 * one.wire_bytes for one in cost.links)
    assert {one.link for one in nm.cost(plan(data=8, tensor=3), "gb200:1x24").links} == set()


@pytest.mark.parametrize(
    ("target", "axes", "message"),
    [
        ("h100:4x8", {"data": 2, "tensor": 8}, "4 nodes of 8 have 32 devices, and the mesh 16"),
        ("tpu-v5e:4x4:2", {"data": 16, "slices": 4}, "target has 2 slices, and the mesh 4"),
        ("cpu:8", {"data": 8}, "there is no hardware 'cpu:8'"),
        ("h10:2x8", {"data": 16}, "there is no hardware 'h10:2x8'"),
    ],
)
@pytest.mark.filterwarnings("ignore:no dimension")
def test_other_devices_are_refused(target, axes, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.cost(nm.plan(program(), nm.Mesh(None, **axes), "batch:data"), target)


def test_a_search_on_nodes_is_one_on_hosts():
    options = {"axes": 2, "plans": 24, "progress": False, "processes": 1}
    named = nm.search(program(), 32, "h100:4x8", **options)
    hosts = nm.search(program(), 32, "h100", hosts=4, **options)
    assert [(one.mesh, one.layout, one.takes) for one in named.front] == [
        (one.mesh, one.layout, one.takes) for one in hosts.front
    ]
    assert named.best.mesh.hosts == 4 and "leaves a host" in str(named)
    assert nm.cost(named.best.plan(), "h100:4x8").advice is None
    slices = nm.search(program(), 32, "tpu-v5e:4x4:2", **options)
    assert slices.best.mesh.slices == 2
    with pytest.raises(nm.NamedMeshError, match="4 nodes of 8 have 32 devices, and the mesh 64"):
        nm.search(program(), 64, "h100:4x8", **options)


def test_the_command_line_takes_nodes(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nflops: {float32: 1e12}\nvector_flops: 1e11\nmemory_bytes: 1e10\n"
        "memory_bandwidth: 1e11\n"
        "network: {kind: nodes, devices: 4, nodes: 2, inside: 2e11, across: 2e10}\n"
    )
    command = ["cost", "tests/cost/test_clusters.py:program", "--layout", LAYOUT]
    for target, mesh in (("h100:2x4", "data=2"), (str(tmp_path / "mine.yaml"), "data=2")):
        assert main([*command, "--mesh", f"tensor=4,{mesh}", "--target", target, "--json"]) == 0
        assert "leave a node" in json.loads(capsys.readouterr().out)["advice"]
