"""A GPU of this machine, on which the kernels of a step for a cluster of its kind are tuned."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

import jax

from namedmesh.hardware.topology import Target
from namedmesh.jax_internals import devices_are_fixed, simulate_gpus

_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


@functools.lru_cache
def find_local_gpu() -> str:
    """Return the name of this machine's first GPU by its driver; empty if there is none."""
    command = shutil.which("nvidia-smi")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if command is None or hidden or os.environ.get("JAX_PLATFORMS") == "cpu":
        return ""
    options = ["--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run([command, *options], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""


def can_tune(target: Target) -> str:
    """Return the name of the local GPU if it is of a target's kind; empty otherwise."""
    name, chip = find_local_gpu(), target.chip
    same = any(kind in name.lower() for kind in chip.kinds)
    return name if same and not any(board in name.lower() for board in chip.boards) else ""


def start_tuning(target: Target) -> bool:
    """Have jax start with all GPUs of a target, of which one is here, if that is possible."""
    if devices_are_fixed() or not _is_installed() or not can_tune(target):
        return False
    # Compile-only devices have no autotuner, whatever the machine has; a client of the local GPU
    # that believes in the others does. Only one GPU of this machine takes part.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # Processes share the tuning otherwise, and this one would wait for those that do not exist.
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_shard_autotuning=false".lstrip()
    nodes, gpus = target.shape
    simulate_gpus(f"{nodes}x{gpus}x1")
    return True


def _is_installed() -> bool:
    """Return whether jax has what runs on GPUs, beside what compiles for them."""
    return any(importlib.util.find_spec(name) for name in _PLUGINS)


def list_tuning(target: Target) -> Sequence[Any]:
    """Return the GPUs of a target that jax started with; none if it started otherwise."""
    devices = jax.devices()
    started = devices[0].platform == "gpu" and can_tune(target) and len(devices) == target.cores
    return devices if started else ()


def are_here(devices: Sequence[Any]) -> bool:
    """Return whether devices are those that jax started with, rather than compile-only ones."""
    return any(one is devices[0] for one in jax.devices())


def describe_tuning(target: Target, devices: Sequence[Any]) -> str:
    """Say on which GPU kernels were tuned, or why they were not."""
    if target.platform != "gpu":
        return ""
    name = can_tune(target)
    if are_here(devices):
        return f"kernels tuned on this machine's {devices[0].device_kind}"
    if not name:
        return "kernels not tuned: that takes a GPU of the target's kind in this machine"
    if not _is_installed():
        return f"kernels not tuned: pip install 'jax[cuda12]' tunes them on this machine's {name}"
    return (
        f"kernels not tuned on this machine's {name}: jax had started before; "
        "run namedmesh aot, or a new process"
    )
