"""Devices that are not here: compile-only GPUs and TPU cores, or virtual CPU devices."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import platform
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from namedmesh.aot.gpu_description import describe_gpu
from namedmesh.aot.local_gpu import list_tuning, start_tuning
from namedmesh.aot.memory import read_totals
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.topology import Target
from namedmesh.jax_internals import (
    capture_stderr,
    devices_are_fixed,
    find_gpu_compiler,
    load_gpu_compiler,
)
from namedmesh.processes.devices import order_by_host, use_cpu_devices

# The TPU compiler asks these of the machine it runs on, which has no TPU.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # several processes may compile: none of them holds a TPU
}
_HOST = f"{platform.system()} {platform.machine()}"
_INSTALL = (
    "on x86-64 Linux run pip install libtpu, or set TPU_LIBRARY_PATH to a libtpu.so; "
    "elsewhere use a target such as h100:1x8 or cpu:8"
)


def prepare_target(target: Target) -> None:
    """Set the environment that jax and the TPU compiler read when they start."""
    if target.platform == "cpu":
        use_cpu_devices(target.cores)
        return
    if target.platform == "gpu" and start_tuning(target):
        return
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not devices_are_fixed() and not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "cpu")


def devices_of(target: Target) -> list[Any]:
    """Return the devices of a target: virtual CPU devices, or compile-only GPUs or TPU cores."""
    prepare_target(target)
    if target.platform == "cpu":
        devices = jax.devices("cpu")
        if len(devices) < target.cores:
            raise NamedMeshError(
                f"target {target} needs {target.cores} CPU devices, "
                f"and this process has {len(devices)}",
                fix=f"call namedmesh.runtime.use_cpu_devices({target.cores}) "
                "before anything else uses jax",
            )
        return devices[: target.cores]
    return _gpu_devices(target) if target.platform == "gpu" else _tpu_devices(target)


@functools.lru_cache
def _gpu_devices(target: Target) -> list[Any]:
    """Return the devices that XLA's GPU compiler describes."""
    library = find_gpu_compiler()
    if library is None:
        raise NamedMeshError(
            f"target {target} needs XLA's GPU compiler, and Python finds no jax_plugins.xla_cuda "
            f"here ({_HOST})",
            fix="on Linux run pip install 'namedmesh[gpu-aot]': it needs no GPU and no driver",
        )
    load_gpu_compiler(library)
    if local := list_tuning(target):
        return order_by_host(local)
    nodes, gpus = target.shape
    host = math.gcd(gpus, target.chip.host)  # hosts of a node have equally many
    text, said = describe_gpu(target.chip), []
    try:
        with capture_stderr() as said:
            found = topologies.get_topology_desc(
                platform="cuda", topology=f"{nodes}x{gpus // host}x{host}", target_config=text
            )
    except Exception as error:
        # The error says no more than that it failed, the log where and why.
        reasons = [line.rpartition("Proto: ")[2] for line in said if "Proto: " in line]
        raise NamedMeshError(
            f"XLA's GPU compiler does not read the description of {target}",
            *(reasons or first_lines(error)),
            fix="change that line; what this version of the compiler does not know has to go",
        ) from error
    return order_by_host(found.devices)


@functools.lru_cache
def _tpu_devices(target: Target) -> list[Any]:
    """Return the devices that the TPU compiler describes."""
    if not os.environ.get("TPU_LIBRARY_PATH") and importlib.util.find_spec("libtpu") is None:
        raise NamedMeshError(
            f"target {target} needs the TPU compiler, and Python finds no libtpu here ({_HOST})",
            fix=_INSTALL,
        )
    try:
        shape = "x".join(map(str, target.shape))
        name = f"{target.chip.compiler_name or target.generation}:{shape}"
        options: dict[str, Any] = {} if target.slices == 1 else {"num_slices": target.slices}
        if target.chip.megacore:
            options["chip_config_name"] = "megacore"
        found = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
        return order_by_host(found.devices)
    except Exception as error:
        raise NamedMeshError(
            f"the TPU compiler does not start for target {target} ({_HOST})",
            *first_lines(error),
            fix=f"use a slice that exists, such as tpu-v3:4x4; {_INSTALL}",
        ) from error


@functools.lru_cache
def hbm_bytes(device: Any, target: Target) -> int | None:
    """Return the memory that a program may use on a device."""
    if target.platform == "gpu":
        own = target.chip.multiprocessors
        return own.memory if own else target.chip.memory
    if device.platform == "cpu":
        return None
    # The compiler tells it only for programs that need more, so one that does is compiled.
    here = SingleDeviceSharding(device)
    too_large = jax.ShapeDtypeStruct((2**20, 2**19), np.float32, sharding=here)
    try:
        jax.jit(lambda x: x + 1.0).lower(too_large).compile()
    except RuntimeError as error:
        totals = read_totals(str(error))
        return totals[1] if totals else None
    return None


def first_lines(error: Exception) -> list[str]:
    """Return the first lines of a compiler's error, which may be very long."""
    lines = [line[:300] for line in str(error).splitlines() if line.strip()]
    return lines[:4] or [type(error).__name__]
