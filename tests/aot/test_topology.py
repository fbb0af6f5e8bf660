"""Targets, the torus they lie on, and meshes laid over it."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.aot import absent_devices
from namedmesh.errors.source import Source
from namedmesh.hardware.assignment import mean_hops, torus_assignment, traffic_of
from namedmesh.hardware.topology import Target, Torus
from namedmesh.records.collective import Collective


def torus(text: str) -> Torus:
    found = Torus.of_target(Target.parse(text))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("tpu-v3:2x2", 8),
        ("tpu-v3:32x32", 2048),
        ("tpu-v4:2x2x1", 4),
        ("tpu-v5e:4x4", 16),
        ("tpu-v5p:4x4x4", 64),
        ("tpu-v7x:4x4x4", 128),
        ("cpu:8", 8),
        ("h100:32x8", 256),
        ("gb200:2x72", 144),
    ],
)
def test_a_target_is_one_word(text, cores):
    target = Target.parse(text)
    assert (str(target), target.cores) == (text, cores)


def test_the_compiler_may_have_another_name_for_a_generation(monkeypatch):
    assert Target.parse("tpu7x:2x2x4:2") == Target.parse("tpu-v7x:2x2x4:2")
    asked = []
    monkeypatch.setenv("TPU_LIBRARY_PATH", "libtpu.so")
    monkeypatch.setattr(
        absent_devices.topologies,
        "get_topology_desc",
        lambda **options: asked.append(options) or SimpleNamespace(devices=[]),
    )
    for text in ("tpu-v7x:2x2x4:2", "tpu-v5e:4x4"):
        absent_devices._tpu_devices.__wrapped__(Target.parse(text))
    assert [one["topology_name"] for one in asked] == ["tpu7x:2x2x4", "v5e:4x4"]
    assert [one.get("num_slices") for one in asked] == [2, None]


def test_ironwood_has_the_figures_of_its_page():
    core = nm.Hardware.parse("tpu-v7x")
    assert core.flops["bfloat16"] * 2 == 2307e12 and core.memory_bytes == 96 * 2**30
    assert core.memory_bandwidth * 2 == 7380e9
    assert Target.parse("tpu-v7x:4x4x8").rings == (True, True, True)
    assert Target.parse("tpu-v7x:2x2x4").rings == (False, False, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpu-v3", "cannot read 'tpu-v3' as a target"),
        ("gpu:8", "there is no chip 'gpu'"),
        ("cpu:2x4", "cpu devices have 1 size, their number, not 2"),
        ("tpu-v3:0x2", "cannot read 'tpu-v3:0x2' as a target"),
        ("tpu-v33:2x2", "there is no TPU generation 'v33'\n.*\n  fix: did you mean 'v3'?"),
        ("tpu-v3:2x2x2", "a slice of TPU v3 has 2 dimensions, not 3"),
        (None, "cannot read None as a target"),
    ],
)
def test_what_is_no_target_is_refused(text, message):
    with pytest.raises(nm.NamedMeshError, match=message.replace("?", r"\?")):
        Target.parse(text)


def test_devices_are_listed_host_by_host():
    """As the TPU compiler lists them: the first twelve of v3:4x4."""
    found = torus("tpu-v3:4x4")
    assert list(zip(found.places, found.cores, strict=True))[:12] == [
        ((0, 0), 0), ((0, 0), 1), ((1, 0), 0), ((1, 0), 1),
        ((0, 1), 0), ((0, 1), 1), ((1, 1), 0), ((1, 1), 1),
        ((2, 0), 0), ((2, 0), 1), ((3, 0), 0), ((3, 0), 1),
    ]  # fmt: skip
    assert len({*zip(found.places, found.cores, strict=True)}) == 32


def test_only_whole_dimensions_close_to_a_ring():
    assert torus("tpu-v3:16x32").rings == (False, True)
    assert torus("tpu-v5p:2x4x8").rings == (False, True, True)


def hops_one_by_one(mesh: nm.Mesh, where: Torus, traffic: dict[str, float], assignment) -> float:
    """The same mean, pair by pair."""
    grid = np.array(assignment).reshape(tuple(mesh.axes.values()))
    total = 0.0
    for axis, sent in traffic.items():
        lines = np.moveaxis(grid, list(mesh.axes).index(axis), -1).reshape(-1, mesh.axes[axis])
        distances = []
        for one, other in ((a, b) for line in lines for a, b in itertools.permutations(line, 2)):
            apart = [
                abs(i - j) for i, j in zip(where.places[one], where.places[other], strict=True)
            ]
            sizes = zip(apart, where.sizes, where.rings, strict=False)
            distances.append(sum(min(n, size - n) if ring else n for n, size, ring in sizes))
        total += sent * float(np.mean(distances))
    return total / sum(traffic.values())


@pytest.mark.parametrize("target", ["tpu-v3:4x4", "tpu-v5p:2x4x4"])
def test_mean_hops_are_those_counted_pair_by_pair(target):
    where, traffic = torus(target), {"data": 1.0, "expert": 3.0}
    mesh = nm.Mesh(data=4, expert=8)
    order = np.random.default_rng(0).permutation(32)
    assert mean_hops(mesh, where, traffic, order.tolist()) == pytest.approx(
        hops_one_by_one(mesh, where, traffic, order)
    )


def test_the_heavy_axis_gets_neighbours():
    """Four devices that talk most: two chips side by side, wherever the axis is in the mesh."""
    where, traffic = torus("tpu-v3:4x4"), {"expert": 100.0, "data": 1.0}
    mesh = nm.Mesh(expert=4, data=8)
    chosen = torus_assignment(mesh, where, traffic)
    assert mean_hops(mesh, where, {"expert": 1.0}, chosen) == pytest.approx(
        2 / 3
    )  # of three others one is on the same chip
    assert mean_hops(mesh, where, {"expert": 1.0}) == pytest.approx(8 / 3)
    assert nm.Mesh(device_assignment=chosen, **mesh.axes).device_assignment == chosen


@pytest.mark.parametrize(
    "target", ["tpu-v3:2x2", "tpu-v3:4x4", "tpu-v3:8x16", "tpu-v5e:4x8", "tpu-v4:2x2x4"]
)
@pytest.mark.parametrize("weights", [(1, 100, 1), (100, 1, 1), (1, 1, 1), (0, 0, 0)])
def test_no_assignment_is_worse_than_the_listed_order(target, weights):
    where = torus(target)
    rest = len(where.places) // 4
    for sizes in ((2, 2, rest), (rest, 2, 2), (1, 4, rest)):
        axes: dict[str, Any] = dict(zip("abc", sizes, strict=True))
        mesh = nm.Mesh(**axes)
        traffic = dict(zip("abc", weights, strict=True))
        chosen = torus_assignment(mesh, where, traffic)
        assert sorted(chosen) == list(range(mesh.devices))
        assert mean_hops(mesh, where, traffic, chosen) <= mean_hops(mesh, where, traffic)


def test_a_whole_pod_is_laid_out_in_a_moment():
    where, mesh = torus("tpu-v3:32x32"), nm.Mesh(data=32, expert=64)
    traffic = {"expert": 10.0, "data": 1.0}
    assert mean_hops(
        mesh, where, traffic, torus_assignment(mesh, where, traffic)
    ) < 0.75 * mean_hops(mesh, where, traffic)


def test_sizes_that_fit_no_block_keep_the_listed_order():
    where = torus("tpu-v5e:2x3")
    assert torus_assignment(nm.Mesh(a=6), where, {"a": 1.0}) == tuple(range(6))


def test_a_mesh_and_torus_of_different_sizes_are_an_error():
    with pytest.raises(nm.NamedMeshError, match="the mesh has 4 devices and the torus 8"):
        torus_assignment(nm.Mesh(a=4), torus("tpu-v3:2x2"), {"a": 1.0})
    with pytest.raises(nm.NamedMeshError, match="the mesh has no axis 'b'"):
        torus_assignment(nm.Mesh(a=8), torus("tpu-v3:2x2"), {"b": 1.0})


def test_traffic_is_what_the_plan_sends_along_each_set_of_axes():
    def planned(axes: tuple[str, ...], bytes: int, times: int) -> Collective:
        source = Source("model.py", 1)
        facts = ("AllReduce", axes, bytes // 4, "float32", bytes, times)
        return Collective(*facts, "x", "sum.1", "forward", source, devices=2)

    collectives = [
        planned(("data",), 40, 3),
        planned(("data", "expert"), 20, 1),
        planned(("data",), 4, 1),
    ]
    assert traffic_of(collectives) == {("data",): 124, ("data", "expert"): 20}
