"""Devices host by host, and meshes that say otherwise."""

import random
from dataclasses import dataclass

import jax
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.processes.devices import check_hosts, device_mesh, order_by_host


@dataclass(frozen=True)
class Device:
    """As much of a device as its place takes."""

    id: int
    process_index: int
    slice_index: int = 0
    platform: str = "tpu"


def make_devices(slices: int, processes: int, each: int, platform: str = "tpu") -> list[Device]:
    """Devices of so many slices, processes in each and devices in each of those, host by host."""
    return [
        Device(100 * (s * processes + p) + i, s * processes + p, s, platform)
        for s in range(slices)
        for p in range(processes)
        for i in range(each)
    ]


def test_devices_are_counted_slice_by_slice_and_process_by_process():
    devices = make_devices(2, 3, 4)
    # Slices need not start their processes in order.
    mixed = [Device(one.id, one.process_index * 5 % 7, one.slice_index) for one in devices]
    listed = sorted(mixed, key=lambda one: (one.id % 100, one.process_index))
    found = order_by_host(listed)
    assert [one.slice_index for one in found] == [0] * 12 + [1] * 12
    for start in range(0, 24, 4):
        run = found[start : start + 4]
        assert len({one.process_index for one in run}) == 1
        assert [one.id % 100 for one in run] == [0, 1, 2, 3]
    assert order_by_host(devices) == devices


def test_slices_of_other_devices_do_not_count():
    devices = [Device(i, i, slice_index=3 - i, platform="gpu") for i in range(4)]
    random.Random(0).shuffle(devices)
    assert [one.process_index for one in order_by_host(devices)] == [0, 1, 2, 3]


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_a_host_is_a_process_or_several(hosts):
    check_hosts(make_devices(1, 4, 2, "gpu"), nm.Mesh(data=8, hosts=hosts))


def test_a_process_on_two_hosts_is_refused():
    with pytest.raises(nm.NamedMeshError) as raised:
        check_hosts(make_devices(1, 2, 4, "gpu"), nm.Mesh(data=8, hosts=4))
    assert str(raised.value).splitlines()[0] == (
        "the mesh has 4 hosts, and its 8 devices are in 2 processes"
    )
    assert "hosts=2" in raised.value.fix and "4 processes of 2 devices" in raised.value.fix
    with pytest.raises(nm.NamedMeshError, match="are in 1 process\n"):
        check_hosts(make_devices(1, 1, 8, "gpu"), nm.Mesh(data=8, hosts=2))


def test_other_slices_are_refused():
    check_hosts(make_devices(2, 2, 2), nm.Mesh(data=8, slices=2))
    with pytest.raises(nm.NamedMeshError, match=r"the mesh has 4 slices, .* are on 2\n"):
        check_hosts(make_devices(2, 2, 2), nm.Mesh(data=8, slices=4))


def test_virtual_devices_of_one_process_stand_in_for_hosts():
    mesh = nm.Mesh(data=4, model=2, hosts=4)
    check_hosts(make_devices(1, 1, 8, "cpu"), mesh)
    found = device_mesh(mesh)
    np.testing.assert_array_equal(found.devices.ravel(), jax.devices()[:8])
