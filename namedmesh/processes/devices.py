"""Devices: as many virtual CPU devices as a mesh needs, arranged as the mesh says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh as JaxMesh

from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError, whole_number
from namedmesh.jax_internals import devices_are_fixed, is_one_of_several
from namedmesh.processes.host_order import check_hosts, order_by_host

_MOST = 2**20  # virtual devices of one process


def use_cpu_devices(count: int) -> None:
    """Make jax show at least this many virtual CPU devices.

    Call it before anything else uses jax's devices. It has no effect on GPUs and TPUs.

    Args:
        count: How many devices are needed.

    Raises:
        NamedMeshError: If jax has started already, with fewer CPU devices.

    Example:
        >>> from namedmesh.runtime import use_cpu_devices
        >>> use_cpu_devices(1)
    """
    number = whole_number(count)
    if number is None or not 0 < number <= _MOST:
        raise NamedMeshError(
            f"{count!r} is not a number of devices", fix="give a whole number, e.g. 8"
        )
    count = number
    if devices_are_fixed():
        if jax.default_backend() == "cpu" and len(jax.devices()) < count:
            raise _too_few(count, "the program")
        return
    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not forced and count > jax.config.jax_num_cpu_devices:
        jax.config.update("jax_num_cpu_devices", count)


def device_mesh(mesh: Mesh) -> JaxMesh:
    """jax's devices arranged as a mesh says, in the order of its device assignment if it has one.

    They are counted host by host: the first axes of the mesh go across hosts. On a CPU that has not
    started yet, as many virtual devices as the mesh needs are made.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "").split(",")
    if not devices_are_fixed() and not is_one_of_several() and platforms[0] in ("", "cpu"):
        use_cpu_devices(mesh.devices)
    devices = order_by_host(jax.devices())
    if len(devices) < mesh.devices:
        raise _too_few(mesh.devices, "the mesh", f"mesh: {mesh}")
    check_hosts(devices[: mesh.devices], mesh)
    return arrange_devices(devices, mesh)


def arrange_devices(devices: Sequence[Any], mesh: Mesh) -> JaxMesh:
    """Devices in the places that a mesh gives them."""
    order = mesh.device_assignment or range(mesh.devices)
    grid = np.array([devices[i] for i in order]).reshape(tuple(mesh.axes.values()))
    return JaxMesh(grid, tuple(mesh.axes))


def _too_few(count: int, what: str, *details: str) -> NamedMeshError:
    """The error for a process with too few devices."""
    devices = jax.devices()
    platform = devices[0].platform
    return NamedMeshError(
        f"{what} needs {count} devices, and {_who()} {len(devices)} ({platform})",
        *details,
        fix=f"use a smaller mesh, or on CPU {_give_more(count)}",
    )


def _who() -> str:
    """Who has the devices."""
    count = jax.process_count()
    return "this process has" if count == 1 else f"{count} processes have"


def _give_more(count: int) -> str:
    """How to have so many CPU devices."""
    processes = jax.process_count()
    if processes == 1:
        return f"call namedmesh.runtime.use_cpu_devices({count}) before anything else uses jax"
    return (
        f"give each process {-(-count // processes)}: start_processes(devices=), launch --devices"
    )
