"""Devices host by host, as a mesh with hosts expects them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError


def order_by_host(devices: Iterable[Any]) -> list[Any]:
    """Sort devices so that those of a slice follow each other, and in it those of a process."""
    return sorted(devices, key=lambda one: (_slice_of(one), one.process_index))


def _slice_of(device: Any) -> int:
    """The TPU slice that a device is of; other devices have none."""
    return (getattr(device, "slice_index", None) or 0) if device.platform == "tpu" else 0


def check_hosts(devices: Sequence[Any], mesh: Mesh) -> None:
    """Raise where a mesh says that its devices lie on other hosts than they do.

    A host has the devices of one process, or of several whole ones. Virtual CPU devices of a single
    process stand in for those of any number of hosts.
    """
    processes = [one.process_index for one in devices]
    count = len({*processes})
    virtual = count == 1 and devices[0].platform == "cpu"
    if mesh.hosts == 1 or virtual:
        return
    slices = len({_slice_of(one) for one in devices})
    if devices[0].platform == "tpu" and mesh.slices != slices:
        raise NamedMeshError(
            f"the mesh has {mesh.slices} slices, and its devices lie on {slices}",
            f"mesh: {mesh}",
            fix=f"plan it for a mesh with slices={slices}",
        )
    inside = mesh.devices // mesh.hosts
    starts = range(0, mesh.devices, inside)
    if sum(len({*processes[start : start + inside]}) for start in starts) != count:
        raise NamedMeshError(
            f"the mesh has {mesh.hosts} hosts, and its {mesh.devices} devices lie in {count} "
            f"{'process' if count == 1 else 'processes'}",
            f"mesh: {mesh}",
            fix=f"plan it for a mesh with hosts={count}, leave hosts out, or start {mesh.hosts} "
            f"processes of {inside} devices each",
        )
