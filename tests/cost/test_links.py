"""Seconds of collectives over switches, nodes and tori, against formulas."""

from collections import Counter

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.errors.source import Source
from namedmesh.hardware.links import Host, Nodes, TorusSlice, _count_passing
from namedmesh.hardware.topology import Target, Torus
from namedmesh.records.collective import Collective

NODES = Nodes(
    4, inside=1e9, across=1e8, inside_latency=1e-6, across_latency=1e-5, start=1e-4
)  # of four devices


def collective(kind, size, mesh, *axes):
    devices = mesh.size(axes)
    return Collective(
        kind, axes, size, "int8", size, 1, "x", "sum.1", "forward", Source("a.py", 1), devices
    )


def seconds(network, kind, size, mesh, *axes, traffic=None):
    return network.seconds(collective(kind, size, mesh, *axes), mesh, traffic or {})


def test_a_ring_within_a_node():
    mesh = nm.Mesh(data=4)
    expected = 1e-4 + 2 * 3 * 1e-6 + 2 * 0.75 * 8000 / 1e9
    assert seconds(NODES, "AllReduce", 8000, mesh, "data") == pytest.approx(expected)
    expected = 1e-4 + 3 * 1e-6 + 0.75 * 8000 / 1e9
    assert seconds(NODES, "AllGather", 8000, mesh, "data") == pytest.approx(expected)


def test_the_last_axes_of_a_mesh_stay_within_a_node():
    mesh = nm.Mesh(outer=4, inner=4)
    near = seconds(NODES, "AllReduce", 10**6, mesh, "inner")
    far = seconds(NODES, "AllReduce", 10**6, mesh, "outer")
    assert near == pytest.approx(1e-4 + 6e-6 + 1.5e6 / 1e9)
    assert far == pytest.approx(1e-4 + 6e-5 + 1.5e6 / 1e8)


def test_between_nodes_every_device_sends_a_shard():
    mesh = nm.Mesh(all=16)
    within, beyond = 1.5 * 10**6 / 1e9, 1.5 * 10**6 / 4 / 1e8
    expected = 1e-4 + 2 * (3e-6 + 3e-5) + within + beyond
    assert seconds(NODES, "AllReduce", 10**6, mesh, "all") == pytest.approx(expected)


def test_an_exchange_waits_for_the_slower_links():
    mesh = nm.Mesh(all=16)
    found = seconds(NODES, "AllToAll", 16 * 10**6, mesh, "all")
    assert found == pytest.approx(1e-4 + 1e-5 + 12 * 10**6 / 1e8)
    assert seconds(NODES, "CollectivePermute", 10**6, nm.Mesh(all=4), "all") == pytest.approx(
        1e-4 + 1e-6 + 1e-3
    )


def test_copies_on_a_host_are_shared_by_all_devices():
    host = Host(bandwidth=1e9, start=1e-5)
    few, many = nm.Mesh(data=2), nm.Mesh(data=8)
    assert seconds(host, "AllGather", 10**6, few, "data") < seconds(
        host, "AllGather", 10**6, many, "data"
    )


def test_a_line_and_a_ring_of_chips():
    """16 chips of v5e are a line of 16 that closes; 8 of them do not."""
    line = TorusSlice("v5e", (1, 8), 1e9, latency=1e-6, start=0.0)
    ring = TorusSlice("v5e", (1, 16), 1e9, latency=1e-6, start=0.0)
    # The last link of a line carries seven eighths of a gathered buffer.
    assert line.link_bytes("AllGather", 8000, ["all"], nm.Mesh(all=8)) == 7000
    assert ring.link_bytes("AllGather", 16000, ["all"], nm.Mesh(all=16)) == 7500
    assert seconds(line, "AllGather", 8000, nm.Mesh(all=8), "all") == pytest.approx(7e-6 + 7e-6)
    assert seconds(ring, "AllReduce", 16000, nm.Mesh(all=16), "all") == pytest.approx(
        2 * 8e-6 + 15e-6
    )


def test_the_heaviest_traffic_gets_the_shortest_ways():
    network = TorusSlice("v3", (4, 4), 1e9, latency=0.0, start=0.0)
    mesh = nm.Mesh(data=16, model=2)
    heavy = {("model",): 1e9, ("data",): 1.0}
    # The cores of a chip exchange for nothing.
    assert seconds(network, "AllReduce", 10**6, mesh, "model", traffic=heavy) == 0
    light = {("model",): 1.0, ("data",): 1e9}
    assert seconds(network, "AllReduce", 10**6, mesh, "data", traffic=light) > 0


def test_groups_that_share_a_chip_share_its_links():
    network = TorusSlice("v3", (4, 4), 1e9, latency=0.0, start=0.0)
    every = seconds(network, "AllGather", 10**6, nm.Mesh(all=32), "all")
    mesh = nm.Mesh(data=16, model=2)
    of_half = seconds(network, "AllGather", 10**6, mesh, "data", traffic={("model",): 1.0})
    assert of_half == pytest.approx(2 * every)


def test_a_slice_of_other_size_is_said():
    with pytest.raises(nm.NamedMeshError, match="32 cores and the mesh 8 devices"):
        seconds(nm.Hardware.parse("tpu-v3:4x4").network, "AllReduce", 8, nm.Mesh(data=8), "data")


def count_literally(target, grid, axes, mesh):
    """The messages on the busiest link, link by link."""
    inner = [i for i, axis in enumerate(mesh.axes) if axis in axes]
    outer = [i for i in range(len(mesh.axes)) if i not in inner]
    groups = grid.transpose(*outer, *inner, -1).reshape(-1, mesh.size(axes), grid.shape[-1])
    loads = Counter()
    for group in groups[..., :-1].tolist():
        for place, goal in zip(group, [*group[1:], group[0]], strict=True):
            here = list(place)
            for i, (size, ring) in enumerate(zip(target.shape, target.rings, strict=True)):
                ahead = (goal[i] - here[i]) % size
                forward = ahead <= size - ahead if ring else goal[i] > here[i]
                while here[i] != goal[i]:
                    loads[i, tuple(here), forward] += 1
                    here[i] = (here[i] + (1 if forward else -1)) % size
    return max(loads.values(), default=0)


@pytest.mark.parametrize("slice_", ["tpu-v3:4x4", "tpu-v3:32x2", "tpu-v4:4x4x4", "tpu-v4:2x2x3"])
def test_messages_between_neighbours_of_a_group(slice_):
    target = Target.parse(slice_)
    torus = Torus.of_target(target)
    assert torus is not None
    rng = np.random.default_rng(3)
    for order in (np.arange(target.cores), rng.permutation(target.cores)):
        mesh = nm.Mesh(x=2, y=target.cores // 4, z=2)
        grid = torus.positions[order].reshape(2, -1, 2, torus.positions.shape[-1])
        for axes in (("x",), ("y",), ("x", "z"), ("x", "y", "z")):
            expected = count_literally(target, grid, axes, mesh)
            assert _count_passing(target, mesh, grid, frozenset(axes)) == expected > 0
