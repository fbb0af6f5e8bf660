"""Devices for a mesh: virtual CPU devices, order by host, arrangement as the mesh says."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh as JaxMesh

from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.jax_internals import devices_are_fixed, is_one_of_several


def use_cpu_devices(count: int) -> None:
    """Make jax have at least this many virtual CPU devices, before anything else uses them.

    Args:
        count: The number of devices; it has no effect on GPUs and TPUs.

    Raises:
        NamedMeshError: If jax has started already, with fewer CPU devices.

    Example:
        >>> from namedmesh.runtime import use_cpu_devices
        >>> use_cpu_devices(1)
    """
    if devices_are_fixed():
        if jax.default_backend() == "cpu" and len(jax.devices()) < count:
            raise _too_few(count, "the program")
        return
    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not forced and count > jax.config.jax_num_cpu_devices:
        jax.config.update("jax_num_cpu_devices", count)


def device_mesh(mesh: Mesh) -> JaxMesh:
    """Arrange jax's devices as a mesh says, host by host; make virtual CPU devices if need be."""
    platforms = os.environ.get("JAX_PLATFORMS", "").split(",")
    if not devices_are_fixed() and not is_one_of_several() and platforms[0] in ("", "cpu"):
        use_cpu_devices(mesh.devices)
    devices = order_by_host(jax.devices())
    if len(devices) < mesh.devices:
        raise _too_few(mesh.devices, "the mesh", f"mesh: {mesh}")
    check_hosts(devices[: mesh.devices], mesh)
    return arrange_devices(devices, mesh)


def arrange_devices(devices: Sequence[Any], mesh: Mesh) -> JaxMesh:
    """Arrange devices as a mesh says, in the order of its device assignment if it has one."""
    order = mesh.device_assignment or range(mesh.devices)
    grid = np.array([devices[i] for i in order]).reshape(tuple(mesh.axes.values()))
    return JaxMesh(grid, tuple(mesh.axes))


def _too_few(count: int, what: str, *details: str) -> NamedMeshError:
    """Make the error for too few devices."""
    devices, processes = jax.devices(), jax.process_count()
    owner = "this process has"
    advice = f"call namedmesh.runtime.use_cpu_devices({count}) before anything else uses jax"
    if processes > 1:
        owner, each = f"{processes} processes have", -(-count // processes)
        advice = f"give each process {each}: start_processes(devices=), launch --devices"
    return NamedMeshError(
        f"{what} needs {count} devices, and {owner} {len(devices)} ({devices[0].platform})",
        *details,
        fix=f"use a smaller mesh, or on CPU {advice}",
    )


def order_by_host(devices: Iterable[Any]) -> list[Any]:
    """Sort devices so that those of a slice follow each other, and in it those of a process."""
    return sorted(devices, key=lambda one: (_slice_of(one), one.process_index))


def _slice_of(device: Any) -> int:
    """Return the TPU slice that a device is in; 0 for other devices."""
    return (getattr(device, "slice_index", None) or 0) if device.platform == "tpu" else 0


def check_hosts(devices: Sequence[Any], mesh: Mesh) -> None:
    """Raise if the devices of a mesh are on other hosts than it says."""
    # A host has the devices of one process, or of several whole ones. Virtual CPU devices of a
    # single process stand in for those of any number of hosts.
    processes = [one.process_index for one in devices]
    count = len({*processes})
    virtual = count == 1 and devices[0].platform == "cpu"
    if mesh.hosts == 1 or virtual:
        return
    slices = len({_slice_of(one) for one in devices})
    if devices[0].platform == "tpu" and mesh.slices != slices:
        raise NamedMeshError(
            f"the mesh has {mesh.slices} slices, and its devices are on {slices}",
            f"mesh: {mesh}",
            fix=f"plan it for a mesh with slices={slices}",
        )
    inside = mesh.devices // mesh.hosts
    starts = range(0, mesh.devices, inside)
    if sum(len({*processes[start : start + inside]}) for start in starts) != count:
        raise NamedMeshError(
            f"the mesh has {mesh.hosts} hosts, and its {mesh.devices} devices are in {count} "
            f"{'process' if count == 1 else 'processes'}",
            f"mesh: {mesh}",
            fix=f"plan it for a mesh with hosts={count}, leave hosts out, or start {mesh.hosts} "
            f"processes of {inside} devices each",
        )
