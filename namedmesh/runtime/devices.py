"""Devices: as many virtual CPU devices as a mesh needs, arranged as the mesh says."""

from __future__ import annotations

import os

# XLA:CPU runs every virtual device on one thread pool; with fewer threads than devices a collective waits for
# devices that never get a thread. The pool's size is read once, when jax starts its CPU client.
os.environ.setdefault("NPROC", "64")

import jax
import numpy as np
from jax.sharding import Mesh as JaxMesh

from namedmesh.dims.errors import NamedMeshError
from namedmesh.dims.mesh import Mesh
from namedmesh.runtime.bridge import one_of_several, started


def use_cpu_devices(count: int) -> None:
    """Makes jax show at least this many virtual CPU devices; must come before anything else uses jax's devices."""
    if started():
        if jax.default_backend() == "cpu" and len(jax.devices()) < count:
            raise _too_few(count, "the program")
        return
    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not forced and count > jax.config.jax_num_cpu_devices:
        jax.config.update("jax_num_cpu_devices", count)


def _too_few(count: int, what: str, *details: str) -> NamedMeshError:
    found = jax.devices()
    return NamedMeshError(
        f"{what} needs {count} devices, and this process has {len(found)} ({found[0].platform})",
        *details,
        fix=f"use a smaller mesh, or on CPU call namedmesh.runtime.use_cpu_devices({count}) before anything else uses jax",
    )


def device_mesh(mesh: Mesh) -> JaxMesh:
    """jax's devices arranged as a mesh; on a CPU that has not started yet, as many as it needs are made."""
    if (
        not started()
        and not one_of_several()
        and os.environ.get("JAX_PLATFORMS", "").split(",")[0] in ("", "cpu")
    ):
        use_cpu_devices(mesh.devices)
    found = jax.devices()
    if len(found) < mesh.devices:
        raise _too_few(mesh.devices, "the mesh", f"mesh: {mesh}")
    order = mesh.device_assignment or range(mesh.devices)
    grid = np.array([found[i] for i in order]).reshape(tuple(mesh.axes.values()))
    return JaxMesh(grid, tuple(mesh.axes))
