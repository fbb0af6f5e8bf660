"""Seconds of collectives between hosts and slices, against formulas of what leaves one."""

import dataclasses

import pytest

import namedmesh as nm
from namedmesh.errors.source import Source
from namedmesh.hardware.links import Host, Nodes, TorusSlice
from namedmesh.records.collective import Collective
from namedmesh.records.crossing import count_crossing_bytes

KINDS = ["AllReduce", "AllGather", "ReduceScatter", "AllToAll"]
NODES = Nodes(8, inside=1e9, across=1e8, inside_latency=1e-6, across_latency=1e-5, start=1e-4)
SLICE = TorusSlice("v5e", None, 50e9, latency=1e-6, start=2e-6, across=3e9, across_latency=1e-5)


def collective(kind: str, size: int, mesh: nm.Mesh, *axes: str) -> Collective:
    host, slice_ = (
        count_crossing_bytes(kind, size, axes, mesh, blocks) for blocks in (mesh.hosts, mesh.slices)
    )
    source = Source("a.py", 1)
    facts = (kind, axes, size, "int8", size, 1, "x", "sum.1", "forward", source, mesh.size(axes))
    return Collective(*facts, host_bytes=host, slice_bytes=slice_)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", [("a",), ("b",), ("a", "b")])
def test_hosts_of_the_mesh_are_the_nodes(kind, axes):
    said, filled = nm.Mesh(a=4, b=4, hosts=4), nm.Mesh(a=4, b=4)
    four = dataclasses.replace(NODES, devices=4)
    one, other = (collective(kind, 16 * 10**6, mesh, *axes) for mesh in (said, filled))
    assert NODES.seconds(one, said, {}) == four.seconds(other, filled, {})


@pytest.mark.parametrize("kind", KINDS)
def test_every_device_of_a_host_carries_its_share_of_what_leaves(kind):
    mesh = nm.Mesh(a=4, b=4, hosts=2)
    across = Nodes(8, inside=1e30, across=1e8, inside_latency=0, across_latency=0, start=0)
    for axes in (("a",), ("a", "b")):
        one = collective(kind, 16 * 10**6, mesh, *axes)
        assert across.seconds(one, mesh, {}) == pytest.approx(one.host_bytes / 8 / 1e8)


def test_a_permutation_inside_hosts_uses_fast_links():
    mesh = nm.Mesh(a=2, b=4, hosts=2)
    near = collective("CollectivePermute", 10**6, mesh, "b")
    far = collective("CollectivePermute", 10**6, mesh, "a")
    assert NODES.seconds(near, mesh, {}) == pytest.approx(1e-4 + 1e-6 + 1e-3)
    assert NODES.seconds(far, mesh, {}) == pytest.approx(1e-4 + 1e-5 + 1e-2)


def test_a_sum_over_slices_is_one_inside_and_one_of_shards_between():
    mesh, inner = nm.Mesh(a=2, b=16, slices=2), nm.Mesh(a=1, b=16)
    size = 64 * 10**6
    whole = SLICE.seconds(collective("AllReduce", size, mesh, "a", "b"), mesh, {})
    inside = SLICE.seconds(collective("AllReduce", size, inner, "b"), inner, {})
    # Of 16 chips each sends its sixteenth to the other slice, and gets back the sum.
    assert whole == pytest.approx(inside + 2e-5 + size / 16 / 3e9)


def test_an_exchange_between_slices_waits_for_the_slower_network():
    mesh = nm.Mesh(a=2, b=16, slices=2)
    size = 64 * 10**6
    found = SLICE.seconds(collective("AllToAll", size, mesh, "a", "b"), mesh, {})
    assert found == pytest.approx(2e-6 + 1e-5 + size / 2 / 3e9)


def test_inside_a_slice_nothing_changes():
    slices, one = nm.Mesh(a=2, b=16, slices=2), nm.Mesh(b=16)
    for kind in KINDS:
        found = SLICE.seconds(collective(kind, 10**6, slices, "b"), slices, {})
        assert found == SLICE.seconds(collective(kind, 10**6, one, "b"), one, {})


def test_processes_of_one_host_share_its_network_stack():
    mesh, host = nm.Mesh(a=4, hosts=2), Host(1e9, 1e-5, across=5e8, across_start=1e-3)
    one = collective("AllReduce", 10**6, mesh, "a")
    alone = collective("AllReduce", 10**6, nm.Mesh(a=4), "a")
    expected = host.seconds(alone, nm.Mesh(a=4), {}) + 1e-3 + 2 * 10**6 / 5e8
    assert host.seconds(one, mesh, {}) == pytest.approx(expected)


def test_a_network_that_does_not_say_is_refused():
    mesh = nm.Mesh(a=4, slices=2)
    with pytest.raises(nm.NamedMeshError, match="how fast slices send"):
        TorusSlice("v5e", None, 50e9, 1e-6, 0).seconds(
            collective("AllReduce", 8, mesh, "a"), mesh, {}
        )
    with pytest.raises(nm.NamedMeshError, match="how fast hosts send"):
        Host(1e9, 1e-5).seconds(collective("AllReduce", 8, mesh, "a"), mesh, {})


@pytest.mark.parametrize("target", ["tpu-v5e", "h100", "cpu"])
def test_it_is_cheaper_to_send_less_between_slices(target):
    B, M, H = nm.dims("batch=65536 model=512 hidden=2048")

    def train(x):
        wi, wo = nm.param("wi", [M, H]), nm.param("wo", [H, M])
        loss = nm.mean(nm.square(nm.einsum([nm.einsum([x, wi], [B, H]), wo], [B, M])))
        grads = nm.grad(loss)
        nm.assign(wi, wi - grads["wi"])
        nm.assign(wo, wo - grads["wo"])

    program = nm.trace(train, x=nm.spec([B, M]))
    layout = "batch:data, hidden:model"
    apart = nm.plan(program, nm.Mesh(data=2, model=16, slices=2), layout)
    together = nm.plan(program, nm.Mesh(model=16, data=2, slices=2), layout)
    assert apart.total_slice_bytes() < together.total_slice_bytes()
    assert nm.cost(apart, target).seconds < nm.cost(together, target).seconds
    plain = nm.plan(program, nm.Mesh(data=2, model=16), layout)
    assert nm.cost(plain, "tpu-v5e").seconds < nm.cost(apart, "tpu-v5e").seconds


def test_a_file_can_say_how_slices_are_joined(tmp_path):
    path = tmp_path / "mine.yaml"
    lines = "name: mine\nflops: {float32: 1e12}\nvector_flops: 1e11\nmemory_bytes: 1e10\n"
    lines += "memory_bandwidth: 1e11\n"
    torus = "{kind: torus, generation: v5e, bandwidth: 5e10, across: 2e9, across_latency: 1e-5}"
    path.write_text(f"{lines}network: {torus}\n")
    network = nm.Hardware.parse(path).network
    assert network == TorusSlice("v5e", None, 5e10, 0.0, 0.0, 2e9, 1e-5)
