"""Ahead of time: an Artifact compiled for devices that are not here, and what it would take there.

python -m namedmesh.aot.compile ARTIFACT [ARTIFACT ...] --target tpu-v3:32x32 [--json OUT]
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pathlib
import platform
import re
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh as JaxMesh
from jax.sharding import SingleDeviceSharding

from namedmesh.aot.memory import (
    Exhausted,
    attributed,
    exhausted,
    known_buffers,
    largest,
    levers,
    presumed,
)
from namedmesh.aot.report import Aot, Layout, trainable
from namedmesh.aot.topology import (
    GENERATIONS,
    Target,
    Torus,
    mean_hops,
    torus_assignment,
    traffic_of,
)
from namedmesh.dims.errors import NamedMeshError
from namedmesh.hlo.schedule import Schedule
from namedmesh.runtime.artifact import Artifact
from namedmesh.runtime.audit import audit
from namedmesh.runtime.bridge import started
from namedmesh.runtime.devices import use_cpu_devices
from namedmesh.runtime.executable import Report, compiled, lowered_step

# The TPU compiler asks these of the machine it runs on, which has no TPU.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # several processes may compile at once: none of them holds a TPU
}
_INSTALL = "on x86-64 Linux run pip install libtpu, or set TPU_LIBRARY_PATH to a libtpu.so; elsewhere use a target such as cpu:8"


def compile_for(artifact: Artifact, target: Target | str, *, name: str | None = None) -> Aot:
    """Compiles an Artifact's step for a target without it, and reports memory, communication and cost for one core.

    A mesh without a device_assignment is laid over the target's torus so that the plan's traffic has short ways.
    Not fitting into memory is an answer: fits is False, and the report says by how much and what would help. name is
    the report's name for the model, by default the artifact's own.
    """
    target = Target.parse(target) if isinstance(target, str) else target
    if artifact.mesh.devices != target.cores:
        raise NamedMeshError(
            f"{artifact.name} is planned for {artifact.mesh.devices} devices, and {target} has {target.cores}",
            f"mesh: {artifact.mesh}",
            fix=_matching(target, artifact.mesh.devices),
        )
    devices = devices_of(target)
    layout = laid_out(artifact, Torus.of_devices(devices, target))
    order = layout.assignment or range(len(devices))
    grid = np.array([devices[i] for i in order]).reshape(tuple(artifact.mesh.axes.values()))
    start = time.perf_counter()
    lowering = lowered_step(artifact, JaxMesh(grid, tuple(artifact.mesh.axes)))
    try:
        step, lack = compiled(lowering), None
    except RuntimeError as error:
        step, lack = None, exhausted(str(error), artifact)
        if lack is None:
            raise _refused(artifact, target, error) from error
    seconds = time.perf_counter() - start
    text = step.as_text() if step is not None else _dumped(lowering)
    hbm = hbm_bytes(devices[0]) if lack is None else lack.available
    schedule = Schedule(text) if text else None
    return reported(
        artifact, target, layout, step, schedule, seconds, lack, hbm, name or artifact.name
    )


def reported(
    artifact: Artifact,
    target: Target,
    layout: Layout,
    step: Any,
    schedule: Schedule | None,
    seconds: float,
    lack: Exhausted | None,
    hbm: int | None,
    name: str,
) -> Aot:
    """The report of a compiled step, or of one that does not fit, for which there may be a schedule all the same."""
    cost: Any = (step.cost_analysis() if step is not None else None) or {}
    cost = cost[0] if isinstance(cost, list) else cost
    if step is not None and schedule is not None:
        memory = attributed(artifact, Report.of(step, seconds), schedule)
    else:
        memory = presumed(artifact, lack) if lack is not None else None
    buffers = lack.buffers if lack is not None else ()
    if not buffers:
        buffers = largest(artifact, schedule) if schedule else known_buffers(artifact)
    clock = GENERATIONS[target.generation].clock if target.generation else None
    cycles = schedule.cycles() if schedule else 0
    return Aot(
        model=name,
        target=str(target),
        mesh=str(artifact.mesh),
        cores=target.cores,
        weights=trainable(artifact),
        fits=lack is None,
        hbm_bytes=hbm,
        memory=memory,
        lack=lack,
        buffers=tuple(buffers),
        levers=tuple(levers(artifact, memory)) if lack is not None and memory is not None else (),
        audit=audit(schedule.text, artifact.mesh, artifact.collectives) if schedule else None,
        program_flops=artifact.flops / target.cores,
        compiler_flops=cost.get("flops"),
        bytes_accessed=cost.get("bytes accessed"),
        loops=schedule.loops if schedule else 0,
        optimal_seconds=cost.get("optimal_seconds"),
        compute_seconds=cycles / clock if cycles and clock else None,
        compile_seconds=seconds,
        layout=layout,
    )


def laid_out(artifact: Artifact, torus: Torus | None) -> Layout:
    """Which device takes which place of the mesh, and how far apart devices that talk are."""
    mesh, traffic = artifact.mesh, traffic_of(artifact.collectives)
    if torus is None:
        return Layout(mesh.device_assignment, None, None)
    chosen = mesh.device_assignment or torus_assignment(mesh, torus, traffic)
    return Layout(chosen, mean_hops(mesh, torus, traffic, chosen), mean_hops(mesh, torus, traffic))


def prepare(target: Target) -> None:
    """Sets what jax and the TPU compiler read when they start; without effect once they have."""
    if target.platform == "cpu":
        use_cpu_devices(target.cores)
        return
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not started() and not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "cpu")


def devices_of(target: Target) -> list[Any]:
    """The devices of a target: virtual CPU devices, or TPU devices that can be compiled for and nothing else."""
    prepare(target)
    if target.platform == "cpu":
        found = jax.devices("cpu")
        if len(found) < target.cores:
            raise NamedMeshError(
                f"target {target} needs {target.cores} CPU devices, and this process has {len(found)}",
                fix=f"call namedmesh.runtime.use_cpu_devices({target.cores}) before anything else uses jax",
            )
        return found[: target.cores]
    return _tpu_devices(target)


@functools.lru_cache
def _tpu_devices(target: Target) -> list[Any]:
    if not os.environ.get("TPU_LIBRARY_PATH") and importlib.util.find_spec("libtpu") is None:
        raise NamedMeshError(
            f"target {target} needs the TPU compiler, and Python finds no libtpu here ({platform.system()} {platform.machine()})",
            fix=_INSTALL,
        )
    try:
        return list(
            topologies.get_topology_desc(
                platform="tpu", topology_name=str(target).removeprefix("tpu-")
            ).devices
        )
    except Exception as error:
        raise NamedMeshError(
            f"the TPU compiler does not start for target {target} ({platform.system()} {platform.machine()})",
            *_first_lines(error),
            fix=f"use a slice that exists, such as tpu-v3:4x4; {_INSTALL}",
        ) from error


@functools.lru_cache
def hbm_bytes(device: Any) -> int | None:
    """The memory that a program may use on a device, which the compiler says only of programs that need more."""
    if device.platform == "cpu":
        return None
    too_large = jax.ShapeDtypeStruct(
        (2**20, 2**19), np.float32, sharding=SingleDeviceSharding(device)
    )
    try:
        jax.jit(lambda x: x + 1.0).lower(too_large).compile()
    except RuntimeError as error:
        match = re.search(r"(?:Used \S+ of|available HBM \(|has) ?([\d.]+)([MG])", str(error))
        return int(float(match[1]) * (2**30 if match[2] == "G" else 2**20)) if match else None
    return None


def _dumped(lowering: Any) -> str | None:
    """The last text of a step's module that the compiler writes before it gives up; None where it writes none."""
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(RuntimeError):
            compiled(lowering, {"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        written = [
            path
            for path in pathlib.Path(folder).rglob("*.txt")
            if "is_scheduled=true" in path.read_text()[:4000]
        ]
        return max(written, key=lambda path: path.stat().st_mtime).read_text() if written else None


def _refused(artifact: Artifact, target: Target, error: Exception) -> NamedMeshError:
    return NamedMeshError(
        f"the compiler of {target} refuses {artifact.name}",
        *_first_lines(error),
        fix="replace the op it names; an op that runs on CPU alone has no place in a program for TPU",
    )


def _first_lines(error: Exception) -> list[str]:
    return [line[:300] for line in str(error).splitlines() if line.strip()][:4] or [
        type(error).__name__
    ]


def _matching(target: Target, devices: int) -> str:
    """A target of the same generation with as many cores as a mesh has devices."""
    if target.platform == "cpu":
        return f"use --target cpu:{devices}"
    chips, rest = divmod(devices, GENERATIONS[target.generation].cores)
    shape = [1] * len(target.shape)
    for factor in _factors(chips):
        shape[shape.index(min(shape))] *= factor
    if rest or chips < 1:
        return f"plan it for a mesh of {target.cores} devices"
    same = Target(target.platform, target.generation, tuple(sorted(shape)))
    return f"use --target {same}, or plan it for a mesh of {target.cores} devices"


def _factors(number: int) -> list[int]:
    """Prime factors, the largest first."""
    found, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found[::-1]


if __name__ == "__main__":
    from namedmesh.command import main

    sys.exit(main(["aot", *sys.argv[1:]]))
